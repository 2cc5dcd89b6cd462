"""Power loss while messages are published and acked, at every single file operation of a real run."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.traced_disk import Acknowledge, Disk, Write, restore, short, trace

from penstock.queue.embedded import EmbeddedQueues

MESSAGES = 30
CHOICES = 2  # random choices of unsynced writes at each operation

_CHILD = """
import os, sys
from pathlib import Path
from penstock.queue.embedded import EmbeddedQueues
from penstock.queue.queues import Queues

port = EmbeddedQueues(Path(sys.argv[1]))
acks = os.open(Path(sys.argv[1]) / "acks", os.O_WRONLY | os.O_CREAT)
queue = Queues(port).queue("jobs")
# Otherwise SQLite copies the write-ahead log into the database only every few thousand pages.
port.file._open().execute("PRAGMA wal_autocheckpoint=12")
for n in range(1, int(sys.argv[2]) + 1):
    queue.publish(b"x" * 200, id=str(n))
    os.write(acks, b"%d\\n" % n)
    if n % 3 == 0:
        queue.get().ack()
"""


class Lost(Exception):
    """A message that was acknowledged is not there."""


def _found_in(folder: Path, files: dict[str, bytes]) -> set[int]:
    """The messages that a new process finds, whatever state they are in."""
    restore(folder, files)
    port = EmbeddedQueues(folder)
    try:
        assert port.file.read("PRAGMA integrity_check") == [("ok",)]
        placed = "SELECT seq FROM ready UNION ALL SELECT seq FROM leased"
        counted = port.file.read(f"SELECT count(*) FROM ({placed})")
        assert counted == port.file.read("SELECT count(*) FROM messages"), "a message without a place"
        return {int(id) for (id,) in port.file.read("SELECT id FROM messages")}
    finally:
        port.close()


def _lose_power(folder: Path, child: str) -> str:
    """After every operation of `child`, in several ways; what was looked at. Raises for what is lost."""
    disk, chance, states = Disk(), random.Random(7), 0
    unimportant = ("queues.db-shm", "holders", "lock", "signal")
    done = trace(child, folder / "traced", str(MESSAGES), ignored=unimportant)
    assert sum(isinstance(each, Acknowledge) for each in done) == MESSAGES
    assert any(isinstance(each, Write) and each.file == "queues.db" for each in done[len(done) // 2 :])
    for number, operation in enumerate(done):
        disk.do(operation)
        if isinstance(operation, Acknowledge):
            continue
        for files in [disk.everything(), disk.only_synced(), *(disk.some(chance) for _ in range(CHOICES))]:
            try:
                found = _found_in(folder / "replayed", files)
            except (sqlite3.Error, AssertionError) as error:
                raise AssertionError(f"after operation {number}, {short(operation)}: {error}") from error
            # Every third publication is followed by an ack of the oldest, which power loss may take back.
            must = set(range(disk.acknowledged // 3 + 1, disk.acknowledged + 1))
            if not must <= found <= {*range(1, disk.acknowledged + 2)}:
                raise Lost(f"after operation {number}, {short(operation)}: {sorted(must - found)}")
            states += 1
    return f"{len(done)} operations, {states} states, {MESSAGES} messages"


def test_every_published_message_survives_power_loss_at_any_moment(
    in_memory: Path, report: Callable[[str], None]
) -> None:
    report(f"power loss while a queue is used: {_lose_power(in_memory, _CHILD)}, 0 lost")


def test_a_publication_that_returns_before_the_sync_is_noticed(in_memory: Path) -> None:
    unsafe = _CHILD.replace("queue = ", "port.file.sync_log = lambda: None\nqueue = ")
    with pytest.raises(Lost):
        _lose_power(in_memory, unsafe)
