"""What `penstock doctor` looks at in a log: topics, partitions, segments and locks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli import progress, words
from penstock.cli.doctor import Finding
from penstock.errors import Damaged, LockTimeout, PenstockError

if TYPE_CHECKING:
    from penstock.log.embedded import EmbeddedLog
    from penstock.log.manifest import SegmentEntry
    from penstock.log.partition import Partition

_LOCK_WAIT_S = 2.0


def log(home: Path, *, deep: bool) -> list[Finding]:
    if not (home / "log.json").exists():
        return [Finding("log", str(home), "ok", "no log here yet; the first topic creates it")]
    try:
        return list(_checked(home, deep=deep))
    except PenstockError as error:
        return [_problem(str(home), error)]


def _checked(home: Path, *, deep: bool) -> Iterator[Finding]:
    # Locks come first: opening a partition whose lock is stuck would wait for it in silence.
    stuck = list(_locks(home))
    yield from stuck
    if stuck:
        return
    from penstock.log.embedded import EmbeddedLog

    port = EmbeddedLog(home)
    try:
        yield from _groups(port)
        names = sorted(one.name for one in (home / "topics").iterdir() if one.is_dir())
        for name in names:
            yield from _topic(port, name, deep=deep)
        if not names:
            yield Finding("log", str(home), "ok", "no topics yet")
    finally:
        port.close()


def _locks(home: Path) -> Iterator[Finding]:
    from penstock.log.disk import RealLock

    for path in sorted(
        [*home.glob("ledger/*lock"), *home.glob("topics/*/create.lock"), *home.glob("topics/*/*/lock")]
    ):
        lock = RealLock(path, str(path.relative_to(home)))
        try:
            lock.acquire(_LOCK_WAIT_S)
            lock.release()
        except LockTimeout as error:
            held = f"by {error.holder}" if error.holder else "by another process"
            todo = "if that process is stuck, end it; the lock goes with it"
            yield Finding("log", error.what, "problem", f"held {held} for over {_LOCK_WAIT_S:g} s", todo)
        finally:
            lock.close()


def _groups(port: EmbeddedLog) -> Iterator[Finding]:
    import sqlite3

    try:
        count = len(port.groups())
    except (sqlite3.Error, PenstockError) as error:
        todo = "restore groups.db from a backup, or remove it: groups then begin anew"
        yield Finding("log", "consumer groups", "problem", str(error), todo)
        return
    yield Finding("log", "consumer groups", "ok", words.count(count, "group"))


def _topic(port: EmbeddedLog, name: str, *, deep: bool) -> Iterator[Finding]:
    folder = port.home / "topics" / name
    if not (folder / "topic.json").exists():
        todo = f"nothing uses it; remove the folder {folder} or create the topic again"
        yield Finding("log", name, "warning", "left by a create or delete that was cut short", todo)
        return
    try:
        count = port.settings(name).partitions
    except PenstockError as error:
        yield _problem(name, error)
        return
    findings = [finding for number in range(count) for finding in _partition(port, name, number, deep=deep)]
    wrong = [finding for finding in findings if finding.state != "ok"]
    yield from wrong
    if not wrong:
        read = "every record read and checked" if deep else "all segments in place"
        yield Finding("log", name, "ok", f"{words.count(count, 'partition')}, {read}")


def _partition(port: EmbeddedLog, name: str, number: int, *, deep: bool) -> Iterator[Finding]:
    try:
        partition = port.partition(name, number)
        port.bounds(name, number)
        entries = partition.manifest().segments
    except PenstockError as error:
        yield _problem(f"{name}/{number}", error)
        return
    yield from _segments(partition, entries)
    if deep:
        yield from _records(port, name, number, entries)


def _segments(partition: Partition, entries: tuple[SegmentEntry, ...]) -> Iterator[Finding]:
    where = f"{partition.topic}/{partition.number}"
    for entry, following in zip(entries, (*entries[1:], None), strict=True):
        path = partition.folder / entry.file
        if not path.exists():
            yield _gone(where, f"{entry.file} is missing", entry.base, entry.end)
        elif entry.sealed and path.stat().st_size < entry.size_bytes:
            told = f"{entry.file} has {path.stat().st_size:,} bytes where {entry.size_bytes:,} were written"
            yield _gone(where, told, entry.base, entry.end)
        if following and entry.end is not None and entry.end < following.base:
            yield _gone(where, "no file holds these records", entry.end, following.base)


def _gone(where: str, told: str, first: int, end: int | None) -> Finding:
    offsets = f"offsets {first:,} to {end - 1:,}" if end is not None else f"offsets from {first:,} on"
    return Finding(
        "log", where, "problem", f"{told} ({offsets})", "restore that file from a backup, or read on after it"
    )


def _records(
    port: EmbeddedLog, name: str, number: int, entries: tuple[SegmentEntry, ...]
) -> Iterator[Finding]:
    """Every batch of every segment; a damaged one does not hide the next."""
    end = port.bounds(name, number)[1]
    with progress.watched(f"reading {name}/{number}", total=max(end - entries[0].base, 1)) as shown:
        for entry in entries:
            try:
                for batch in port.read(name, number, entry.base, until=entry.end):
                    done = int(batch.column(1)[-1].as_py()) + 1
                    shown.update(done=done - entries[0].base, told=f"offset {done:,}")
            except Damaged as error:
                yield _problem(f"{name}/{number}", error)


def _problem(name: str, error: PenstockError) -> Finding:
    return Finding("log", name, "problem", error.message, error.hint)
