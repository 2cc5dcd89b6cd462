"""A bounded channel between threads."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.waiting import wait_until

import penstock as ps
from penstock.direct.channel import Overflow


def _asleep(channel: ps.Channel[int], call: Callable[[], object]) -> threading.Thread:
    """`call` on a thread of its own, which has come to wait."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    waits = (channel._room, channel._some)
    wait_until(lambda: any(one._waiters for one in waits), what="the thread to wait")  # type: ignore[attr-defined]
    return thread


def _send(channel: ps.Channel[int], numbers: range) -> None:
    for number in numbers:
        channel.send(number)


def test_what_is_sent_is_received_in_order() -> None:
    channel = ps.Channel[int]()
    for number in range(5):
        channel.send(number)
    channel.close()
    assert list(channel) == [0, 1, 2, 3, 4]


def test_each_message_is_received_once_by_many_receivers() -> None:
    channel = ps.Channel[int](capacity=7)
    with ThreadPoolExecutor(8) as pool:
        receivers = [pool.submit(lambda: list(channel)) for _ in range(4)]
        senders = [pool.submit(_send, channel, range(first, first + 1_000)) for first in (0, 1_000, 2_000)]
        for sender in senders:
            sender.result(60)
        channel.close()
        found = [number for receiver in receivers for number in receiver.result(60)]
    assert sorted(found) == list(range(3_000))


def test_block_waits_for_room() -> None:
    channel = ps.Channel[int](capacity=1)
    channel.send(1)
    sender = _asleep(channel, lambda: channel.send(2))
    assert channel.receive() == 1
    sender.join(20)
    assert (channel.receive(timeout="20 seconds"), channel.dropped) == (2, 0)


def test_block_gives_up_when_the_time_given_is_over() -> None:
    channel = ps.Channel[int](capacity=1)
    channel.send(1)
    with pytest.raises(ps.ChannelFull) as refused:
        channel.send(2, timeout="1 ms")
    assert (refused.value.capacity, len(channel)) == (1, 1)


def test_room_that_comes_just_as_the_time_is_over_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one who waits is not told of it, and would wait for ever."""
    channel = ps.Channel[int](capacity=1)
    channel.send(1)

    def woken_too_late(_timeout: float | None) -> bool:
        channel._waiting.popleft()
        return False

    monkeypatch.setattr(channel._room, "wait", woken_too_late)
    channel.send(2, timeout="20 seconds")
    assert channel.receive() == 2


def test_drop_oldest_makes_room_and_counts() -> None:
    channel = ps.Channel[int](capacity=2, overflow="drop_oldest")
    for number in range(5):
        channel.send(number)
    assert ([channel.receive(), channel.receive()], channel.dropped) == ([3, 4], 3)


def test_reject_says_so_at_once_and_keeps_what_waits() -> None:
    channel = ps.Channel[int](capacity=1, overflow="reject")
    channel.send(1)
    with pytest.raises(ps.ChannelFull, match="1 messages wait"):
        channel.send(2)
    assert channel.receive() == 1


def test_receive_says_none_when_nothing_comes_in_time() -> None:
    assert ps.Channel[int]().receive(timeout=0) is None


def test_a_receiver_is_woken_by_a_message() -> None:
    channel, found = ps.Channel[int](), list[int | None]()
    receiver = _asleep(channel, lambda: found.append(channel.receive()))
    channel.send(1)
    receiver.join(20)
    assert found == [1]


@pytest.mark.parametrize("overflow", ["block", "drop_oldest", "reject"])
def test_a_closed_channel_takes_nothing_more_and_gives_what_it_has(overflow: Overflow) -> None:
    channel = ps.Channel[int](capacity=1, overflow=overflow)
    with channel:
        channel.send(1)
    with pytest.raises(ps.ChannelClosed):
        channel.send(2)
    assert (channel.receive(), channel.receive(), channel.dropped) == (1, None, 0)


def test_closing_wakes_whoever_waits() -> None:
    full, empty = ps.Channel[int](capacity=1), ps.Channel[int]()
    full.send(1)
    told = list[str]()

    def send() -> None:
        try:
            full.send(2)
        except ps.ChannelClosed:
            told.append("closed")

    threads = [_asleep(full, send), _asleep(empty, lambda: told.append(str(empty.receive())))]
    full.close()
    empty.close()
    for thread in threads:
        thread.join(20)
    assert sorted(told) == ["None", "closed"]


def test_bad_options_are_refused() -> None:
    with pytest.raises(ps.BadOption, match="capacity"):
        ps.Channel(0)
    with pytest.raises(ps.BadOption, match="overflow"):
        ps.Channel(overflow="explode")  # type: ignore[arg-type]
    with pytest.raises(ps.BadOption, match="None"):
        ps.Channel[object]().send(None)


def test_what_waits_in_a_process_that_is_killed_is_gone() -> None:
    """The sender was told nothing: from its side, all ten were sent."""
    code = """
import os, signal, penstock as ps
channel = ps.Channel()
for number in range(10):
    channel.send(number)
    print("sent", flush=True)
for _ in range(3):
    channel.receive()
    print("worked on", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    said = done.stdout.splitlines()
    assert (said.count("sent"), said.count("worked on")) == (10, 3)
