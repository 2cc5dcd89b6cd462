"""`penstock consume`: order, places, groups, following."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import Popen

import pytest
from tests.cli.command import Command, error_of
from tests.waiting import wait_until

import penstock as ps
from penstock.cli.interrupt import Interrupt
from penstock.places import parse_place

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def topic(log: ps.Log) -> ps.Topic:
    return log.create_topic("t", "n BIGINT", partitions=3)


def _fill(topic: ps.Topic, numbers: range) -> None:
    """One append each, over the partitions in turn."""
    for number in numbers:
        topic.append({"n": number}, partition=number % 3)


def _numbers(lines: list[dict[str, dict[str, int]]]) -> list[int]:
    return [line["value"]["n"] for line in lines]


def test_records_come_in_the_order_they_were_appended_across_partitions(
    cli: Command, topic: ps.Topic
) -> None:
    _fill(topic, range(30))
    assert _numbers(cli.lines("consume", "t")) == list(range(30))


def test_a_line_tells_where_and_when(cli: Command, topic: ps.Topic) -> None:
    _fill(topic, range(2))
    line = cli.lines("consume", "t")[1]
    assert (line["partition"], line["offset"], line["value"]) == (1, 0, {"n": 1})
    appended = datetime.fromisoformat(line["timestamp"])
    assert timedelta(0) <= datetime.now(UTC) - appended < timedelta(minutes=5)


def test_values_only(cli: Command, topic: ps.Topic) -> None:
    _fill(topic, range(2))
    assert cli("consume", "t", "--values").stdout == '{"n": 0}\n{"n": 1}\n'


def test_one_partition_from_an_offset_on(cli: Command, topic: ps.Topic) -> None:
    _fill(topic, range(12))
    assert _numbers(cli.lines("consume", "t", "--partition", 2, "--from", 2)) == [8, 11]
    assert _numbers(cli.lines("consume", "t", "--from", "latest")) == []
    assert _numbers(cli.lines("consume", "t", "--max", 2)) == [0, 1]


def test_from_a_time_on(cli: Command, topic: ps.Topic) -> None:
    _fill(topic, range(3))
    later = topic.append({"n": 3}, partition=0)
    (at,) = (event.timestamp for event in topic.events(partition=0, start=later.offset))
    assert _numbers(cli.lines("consume", "t", "--from", at.isoformat())) == [3]
    assert _numbers(cli.lines("consume", "t", "--from", "-5m")) == [0, 1, 2, 3]
    assert _numbers(cli.lines("consume", "t", "--from", "1 hour ago", "--max", 1)) == [0]


def test_an_offset_that_is_not_there_is_out_of_range(cli: Command, topic: ps.Topic) -> None:
    _fill(topic, range(3))
    result = cli("consume", "t", "--from", 7, "--json")
    assert (result.exit_code, error_of(result)["type"]) == (2, "OffsetOutOfRange")
    assert cli("consume", "t", "--partition", 9).exit_code == 2


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", "earliest"),
        ("LATEST", "latest"),
        ("42", 42),
        ("-5m", NOON - timedelta(minutes=5)),
        ("- 90 s", NOON - timedelta(seconds=90)),
        ("10 minutes ago", NOON - timedelta(minutes=10)),
        ("2026-01-30", NOON - timedelta(hours=36)),
        ("2026-01-31T11:00Z", NOON - timedelta(hours=1)),
        ("2026-01-31T13:00+02:00", NOON - timedelta(hours=1)),
    ],
)
def test_places(text: str, place: object) -> None:
    assert parse_place(text, now=NOON) == place


@pytest.mark.parametrize("text", ["", "soon", "-", "-5 parsecs", "5m", "-1", "2026-13-01"])
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(ps.BadOption):
        parse_place(text, now=NOON)


# ---- groups ----------------------------------------------------------------------------------------


def test_a_group_goes_on_where_it_was(cli: Command, topic: ps.Topic) -> None:
    _fill(topic, range(30))
    first = cli.lines("consume", "t", "--group", "g", "--max", 10)
    rest = cli.lines("consume", "t", "--group", "g")
    assert sorted(_numbers(first) + _numbers(rest)) == list(range(30))
    assert cli.lines("consume", "t", "--group", "g") == []
    assert len(cli.lines("consume", "t", "--group", "another")) == 30


def test_a_group_that_has_commits_says_that_from_does_not_count(cli: Command, topic: ps.Topic) -> None:
    _fill(topic, range(3))
    cli("consume", "t", "--group", "g")
    assert "penstock group reset" in cli("consume", "t", "--group", "g", "--from", "latest").stderr


def test_partition_and_group_do_not_go_together(cli: Command, topic: ps.Topic) -> None:
    assert cli("consume", "t", "--group", "g", "--partition", 1).exit_code == 2


def test_deletes_of_a_compacted_topic_are_marked(cli: Command, log: ps.Log) -> None:
    topic = log.create_topic("c", "k STRING, v BIGINT", key="k", cleanup="compact")
    topic.append({"k": "a", "v": 1})
    topic.delete({"k": "a"})
    assert [(line["deleted"], line["value"]) for line in cli.lines("consume", "c")] == [
        (False, {"k": "a", "v": 1}),
        (True, {"k": "a"}),
    ]


# ---- retention -----------------------------------------------------------------------------------------


@pytest.fixture
def cut(log: ps.Log, cli: Command) -> ps.Topic:
    """A topic whose first records are gone."""
    topic = log.create_topic("cut", "n BIGINT")
    topic.append([{"n": number} for number in range(10)])
    cli("consume", "cut", "--group", "g", "--max", 2)
    log.alter_topic("cut", retention_ms=0)
    cli("topic", "compact", "cut")
    log.alter_topic("cut", retention_ms=None)
    topic.append([{"n": number} for number in range(10, 15)])
    return topic


def test_records_that_retention_took_are_an_error_that_counts_them(cli: Command, cut: ps.Topic) -> None:
    result = cli("consume", "cut", "--group", "g", "--json")
    assert (result.exit_code, error_of(result)["type"], error_of(result)["missed"]) == (2, "RecordsLost", 8)


def test_on_lost_earliest_goes_on(cli: Command, cut: ps.Topic) -> None:
    result = cli("consume", "cut", "--group", "g", "--on-lost", "earliest", "--values")
    assert [json.loads(line)["n"] for line in result.stdout.splitlines()] == [10, 11, 12, 13, 14]
    assert "8 records" in result.stderr


# ---- following -----------------------------------------------------------------------------------------


@pytest.fixture
def following(cli: Command, topic: ps.Topic) -> Iterator[Popen[str]]:
    _fill(topic, range(3))
    with cli.start("consume", "t", "--follow") as process:
        yield process


def _next(process: Popen[str]) -> int:
    assert process.stdout
    return int(json.loads(process.stdout.readline())["value"]["n"])


def test_following_shows_what_comes_and_ends_well_with_ctrl_c(following: Popen[str], topic: ps.Topic) -> None:
    assert [_next(following) for _ in range(3)] == [0, 1, 2]
    for number in range(3, 9):
        topic.append({"n": number}, partition=number % 3)
        assert _next(following) == number
    following.send_signal(signal.SIGINT)
    assert following.wait(60) == 0
    assert following.stderr and following.stderr.read() == ""


def test_following_notices_new_partitions(following: Popen[str], log: ps.Log) -> None:
    assert [_next(following) for _ in range(3)] == [0, 1, 2]
    log.alter_topic("t", partitions=6)
    log.topic("t").append({"n": 3}, partition=5)
    assert _next(following) == 3


def test_a_member_that_is_interrupted_has_committed_what_it_printed(cli: Command, topic: ps.Topic) -> None:
    _fill(topic, range(9))
    with cli.start("consume", "t", "--group", "g", "--follow") as process:
        printed = [_next(process) for _ in range(9)]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert sorted(printed) == list(range(9))
    assert cli.lines("consume", "t", "--group", "g") == []


def test_a_killed_member_leaves_the_rest_to_the_next_one(cli: Command, topic: ps.Topic) -> None:
    _fill(topic, range(30))
    with cli.start("consume", "t", "--group", "g", "--follow") as process:
        printed = [_next(process) for _ in range(5)]
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        assert process.stdout
        printed += [json.loads(line)["value"]["n"] for line in process.stdout.read().splitlines()]
    rest = _numbers(cli.lines("consume", "t", "--group", "g"))
    assert set(printed) | set(rest) == set(range(30))


def test_on_a_terminal_lines_are_for_eyes(cli: Command, topic: ps.Topic) -> None:
    _fill(topic, range(1))
    script = "export -f penstock; SHELL=$BASH script -qec 'penstock consume t' /dev/null"
    shown = cli.shell(f"command -v script >/dev/null || exit 0; {script}")
    assert shown.returncode == 0
    if shown.stdout:
        assert "0:0" in shown.stdout
        assert '"partition"' not in shown.stdout


def test_nothing_is_left_open(cli: Command, topic: ps.Topic) -> None:
    before = _open_files()
    for _ in range(3):
        cli("consume", "t", "--group", "g")
    wait_until(lambda: _open_files() <= before + 3, what="files to be closed")


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_an_interrupt_that_python_dropped_is_made_good() -> None:
    interrupt = Interrupt()
    with interrupt.watching():
        with suppress(KeyboardInterrupt):  # as the end of a generator does
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()
