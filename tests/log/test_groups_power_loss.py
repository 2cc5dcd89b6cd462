"""Power loss while a group commits, at every single file operation of a real run.

A child process commits offsets through a GroupStore under `strace`. Its writes are then replayed
up to each operation in turn: all of them, only what was synced, or the synced ones and a random
choice of the others, torn at sectors. Whatever was left, the database must open and hold every
commit that was acknowledged by then, and none that was never made.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.traced_disk import Acknowledge, Disk, Write, restore, short, trace

from penstock.clock import SystemClock
from penstock.log.group import GroupStore

COMMITS = 60
CHOICES = 2  # random choices of unsynced writes at each operation

_CHILD = """
import os, sys
from pathlib import Path
from penstock.clock import SystemClock
from penstock.log.group import GroupStore
from penstock.log.settings import TopicSettings
from penstock.schema import RecordSchema

topic = TopicSettings("t", RecordSchema.of("k BIGINT"), partitions=2)
store = GroupStore(Path(sys.argv[1]) / "groups.db", SystemClock(), "boot")
acks = os.open(Path(sys.argv[1]) / "acks", os.O_WRONLY | os.O_CREAT)
member = store.join("g", "t", lease_s=30, settings=lambda: topic)
# Otherwise SQLite copies the write-ahead log into the database only every thousand pages.
store._open().execute("PRAGMA wal_autocheckpoint=12")
for offset in range(1, int(sys.argv[2]) + 1):
    member.poll()
    member.commit({0: offset, 1: 2 * offset})
    os.write(acks, b"%d\\n" % offset)
    if offset % 20 == 0:
        store.hold("view", "t", {0: offset}, reason="x" * 6_000)
if sys.argv[3] == "leaving":
    member.leave()
    store.close()
"""


# ---- the test ------------------------------------------------------------------------------------


def committed_in(folder: Path, files: dict[str, bytes]) -> dict[int, int]:
    """What a new process finds, starting with these files."""
    restore(folder, files)
    store = GroupStore(folder / "groups.db", SystemClock(), "the next boot")
    try:
        found = store.committed("g", "t")
        with store._reading() as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return found
    finally:
        store.close()


@pytest.mark.parametrize("ending", ["leaving", "dying"])
def test_every_acknowledged_commit_survives_power_loss_at_any_moment(
    in_memory: Path, report: Callable[[str], None], ending: str
) -> None:
    disk, chance, states = Disk(), random.Random(7), 0
    done = trace(_CHILD, in_memory / "traced", str(COMMITS), ending, ignored=("groups.db-shm", "members"))
    assert sum(isinstance(each, Acknowledge) for each in done) == COMMITS
    assert any(isinstance(each, Write) and each.file == "groups.db" for each in done[len(done) // 2 :])
    for number, operation in enumerate(done):
        disk.do(operation)
        if isinstance(operation, Acknowledge):
            continue
        kept = [disk.everything(), disk.only_synced(), *(disk.some(chance) for _ in range(CHOICES))]
        for files in kept:
            try:
                found = committed_in(in_memory / "replayed", files)
            except (sqlite3.Error, AssertionError) as error:
                raise AssertionError(f"after operation {number}, {short(operation)}: {error}") from error
            at = found.get(0, 0)
            assert disk.acknowledged <= at <= disk.acknowledged + 1, f"after {number}, {short(operation)}"
            assert found.get(1, 0) == 2 * at, "a commit is whole"
            states += 1
    report(
        f"power loss while a group commits ({ending}): {len(done)} operations, {states} states, "
        f"{COMMITS} commits, 0 lost"
    )
