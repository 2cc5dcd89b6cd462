"""Several files that are synced for one append: at once, and none of them forgotten."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import penstock as ps
from penstock.errors import SyncFailed
from penstock.log.disk import RealDisk
from penstock.log.head import Head, SharedHead

TOPICS = ["a", "b", "c", "d", "e", "f"]  # more than are synced at once


def test_syncs_wait_for_the_disk_together() -> None:
    together = threading.Barrier(3, timeout=30)

    def meets() -> None:
        together.wait()

    RealDisk().sync_all([meets] * 3)


def test_a_sync_that_fails_is_raised_when_all_have_ended() -> None:
    ended: list[str] = []

    def fails() -> None:
        raise SyncFailed(Path("x"), "a fault made for this test")

    for syncs in ([fails, lambda: ended.append("second")], [lambda: ended.append("first"), fails]):
        with pytest.raises(SyncFailed):
            RealDisk().sync_all(syncs)
    assert ended == ["second", "first"]


def test_appends_to_many_topics_go_on_in_a_forked_child(home: Path) -> None:
    """The threads that sync are the parent's alone.

    In a process of its own: a child that cleans up after other tests may wait for threads of theirs.
    """
    done = subprocess.run(
        [sys.executable, "-c", _FORKS, str(home), *TOPICS],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout == "0\n", done.stderr
    with ps.open_log(home) as log:
        assert [list(log.topic(name).rows()) for name in TOPICS] == [[{"id": 1}, {"id": 2}]] * len(TOPICS)


_FORKS = """
import faulthandler, os, sys
import penstock as ps

home, *topics = sys.argv[1:]
with ps.open_log(home) as log:
    for name in topics:
        log.create_topic(name, "id BIGINT")
    log.producer("parent").append({name: [{"id": 1}] for name in topics})
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(100, exit=True)
        log.producer("child").append({name: [{"id": 2}] for name in topics})
        os._exit(0)
    print(os.waitpid(child, 0)[1])
"""


def test_a_head_that_is_half_written_leaves_the_one_before(tmp_path: Path) -> None:
    disk = RealDisk()
    head = SharedHead(disk, tmp_path / "head")
    head.write(Head(next_offset=1))
    head.write(Head(next_offset=2))
    newer = (tmp_path / "head").read_bytes()
    head.write(Head(next_offset=3))  # into the slot of the first
    assert (head.read() or Head()).next_offset == 3
    at = next(
        n
        for n, (old, new) in enumerate(zip(newer, (tmp_path / "head").read_bytes(), strict=True))
        if old != new
    )
    with (tmp_path / "head").open("r+b") as file:
        file.seek(at + 30)
        file.write(b"\xff\xff")
    assert (head.read() or Head()).next_offset == 2
    head.close()
