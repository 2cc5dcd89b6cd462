"""Bytes that are not what was written, on real files: never served, always named, and nothing else lost.

Each test changes a file of a small log, byte by byte where that is feasible, and opens the
partition anew: in the same boot (its head in shared memory is intact), or after a restart.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.clock import ManualClock
from penstock.errors import Damaged, PenstockError, SegmentMissing, StorageError
from penstock.log import frame, index, maintenance, segment, settings
from penstock.log import manifest as manifests
from penstock.log.disk import RealDisk
from penstock.log.embedded import EmbeddedLog
from penstock.log.frame import BrokenFrame, PendingFrame
from penstock.log.log import Log
from penstock.log.partition import Committed, Partition
from penstock.log.reader import PartitionReader
from penstock.log.settings import TopicSettings

BATCHES = 4
ROWS = 3


class Rebooted(RealDisk):
    """The same disk after the machine was started anew."""

    boots = 0

    def __init__(self) -> None:
        Rebooted.boots += 1
        self._boot = f"boot {Rebooted.boots}"

    def boot_id(self) -> str:
        return self._boot


class NoTransactions:
    def outcome(self, transaction: str) -> Committed | None:
        raise AssertionError("there are no atomic appends here")

    def was_committed(self, transaction: str) -> bool:
        raise AssertionError("there are no atomic appends here")


@dataclass
class Place:
    """One partition on real files, to be opened again and again."""

    folder: Path
    settings: TopicSettings
    clock: ManualClock
    chosen: Path | None = None

    @property
    def path(self) -> Path:
        """The segment being appended to, or another one that was chosen."""
        return self.chosen or max(self.folder.glob("*.arrows"))

    def opened(self, disk: RealDisk | None = None) -> Partition:
        return Partition(
            disk or RealDisk(), self.clock, self.folder, topic=self.settings.name, number=0,
            settings=lambda: self.settings, transactions=NoTransactions(),
        )  # fmt: skip

    def frames(self) -> list[segment.Located]:
        data = pa.py_buffer(self.path.read_bytes())
        start = segment.read_start(data)
        return list(segment.scan(data, start.first_frame_at, data.size, base=start.base))

    def restart(self, *, keep_head: bool) -> Partition:
        if not keep_head:
            (self.folder / "head").unlink(missing_ok=True)
        return self.opened(Rebooted())


def read_from(partition: Partition, settings: TopicSettings, offset: int) -> Iterator[tuple[int, int]]:
    """(offset, id) of each record, as far as it can be read."""
    reader = PartitionReader(partition, lambda _: settings)
    try:
        for batch in reader.read(offset):
            yield from zip(batch.column("_offset").to_pylist(), batch.column("id").to_pylist(), strict=True)
    finally:
        reader.close()


def read_until_damage(
    place: Place, partition: Partition, offset: int = 0
) -> tuple[list[tuple[int, int]], Damaged]:
    found: list[tuple[int, int]] = []
    with pytest.raises(Damaged) as caught:
        for record in read_from(partition, place.settings, offset):
            found.append(record)
    return found, caught.value


def append_one(partition: Partition, settings: TopicSettings, id: int) -> int:
    batch = pa.RecordBatch.from_pylist([{"id": id, "text": "more"}], schema=settings.stored)
    extent = partition.append([PendingFrame(batch)], settings)
    partition.finish(extent, settings)
    return extent.first


def record_at(offset: int) -> tuple[int, int]:
    return offset, 100 + offset


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": 100 + n, "text": f"text {n}"} for n in range(first, first + count)]


RECORDS = [record_at(n) for n in range(BATCHES * ROWS)]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    clock = ManualClock()
    with Log(EmbeddedLog(tmp_path / "home", clock=clock)) as log:
        topic = log.create_topic("t", "id BIGINT NOT NULL, text STRING")
        for n in range(BATCHES):
            clock.advance(1)
            topic.append(rows(n * ROWS, ROWS))
        return Place(tmp_path / "home" / "topics" / "t" / "0", log.port.settings("t"), clock)


@pytest.fixture
def sealed(place: Place) -> Place:
    """The same records in a segment that is appended to no more."""
    partition = place.opened()
    path = place.path
    with partition.locked() as head:
        partition.roll(head, place.settings)
    partition.close()
    return Place(place.folder, place.settings, place.clock, path)


class Flips:
    """Flips one bit of a file at a time and puts it back."""

    def __init__(self, path: Path) -> None:
        self.path, self.content = path, path.read_bytes()

    def __iter__(self) -> Iterator[int]:
        """Every byte; which bit of it depends on where it is."""
        for at in range(len(self.content)):
            self._write(at, self.content[at] ^ (1 << (at * 5 + at // 8) % 8))
            yield at
            self._write(at, self.content[at])

    def _write(self, at: int, value: int) -> None:
        fd = os.open(self.path, os.O_WRONLY)
        try:
            os.pwrite(fd, bytes([value]), at)
        finally:
            os.close(fd)


# ---- torn and truncated --------------------------------------------------------------------------


def test_a_torn_tail_is_cut_after_a_restart_whatever_byte_it_was_torn_at(place: Place) -> None:
    whole, frames = place.path.read_bytes(), place.frames()
    for size in [
        *range(frames[-2].position, frames[-1].position, 9),
        *range(frames[-1].position, len(whole)),
    ]:
        place.path.write_bytes(whole[:size])
        kept = ROWS * (BATCHES - 2 if size < frames[-1].position else BATCHES - 1)
        partition = place.restart(keep_head=False)
        assert list(read_from(partition, place.settings, 0)) == RECORDS[:kept]
        assert append_one(partition, place.settings, 999) == kept
        assert list(read_from(partition, place.settings, 0)) == [*RECORDS[:kept], (kept, 999)]
        partition.close()


def test_garbage_after_the_last_record_is_cut_after_a_restart(place: Place) -> None:
    whole, last = place.path.read_bytes(), place.frames()[-1]
    another = whole[last.position :]  # a whole frame, but not the next one
    for garbage in (b"\0" * 700, b"\xff" * 64, os.urandom(513), another, another[:-1], whole[:200]):
        place.path.write_bytes(whole + garbage)
        partition = place.restart(keep_head=True)
        assert list(read_from(partition, place.settings, 0)) == RECORDS
        assert append_one(partition, place.settings, 999) == len(RECORDS)
        partition.close()
        place.path.write_bytes(whole)
        (place.folder / "head").unlink()


def test_a_file_that_lost_synced_bytes_is_refused(place: Place) -> None:
    """In the same boot the head knows how long it was; after a restart the old head is a lower bound."""
    whole, frames = place.path.read_bytes(), place.frames()
    for size in range(frames[-2].position, len(whole), 7):
        place.path.write_bytes(whole[:size])
        partition = place.opened()
        served, damage = read_until_damage(place, partition)
        assert served == RECORDS[: len(served)]
        assert (damage.topic, damage.partition, damage.segment) == ("t", 0, place.path.name)
        assert damage.first == len(served)
        with pytest.raises(Damaged):
            append_one(partition, place.settings, 999)
        partition.close()
        with pytest.raises(Damaged) as refused:
            place.restart(keep_head=True).head()
        assert refused.value.first == len(served)
        assert place.path.stat().st_size == size, "nothing was cut"


# ---- flipped bits --------------------------------------------------------------------------------


def test_every_flipped_bit_of_a_segment_is_noticed() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
    start = segment.start_bytes(schema, topic="t", partition=0, base=0)
    batch = pa.RecordBatch.from_pylist([{"id": 7, "text": "seven"}, {"id": 8, "text": None}], schema=schema)
    whole = start + bytes(PendingFrame(batch).place(0, 1_700_000_000_000_000))

    def reads(content: bytes) -> pa.RecordBatch:
        data = pa.py_buffer(content)
        header = segment.read_start(data)
        (found,) = segment.scan(data, header.first_frame_at, data.size, base=0)
        return frame.decode(data, found.position, found.header, header.schema)

    assert reads(whole) == batch
    for at in range(len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << bit
            with pytest.raises(BrokenFrame):
                reads(bytes(flipped))


@pytest.mark.parametrize("which", ["place", "sealed"])
def test_a_flipped_bit_is_named_and_everything_around_it_is_served(
    which: str, request: pytest.FixtureRequest
) -> None:
    place: Place = request.getfixturevalue(which)
    frames = place.frames()
    bounds = [located.position for located in frames] + [place.path.stat().st_size]
    partition = place.opened()
    for at in Flips(place.path):
        hit = next(number for number, end in enumerate(bounds) if at < end) - 1  # -1: the schema
        served, damage = read_until_damage(place, partition)
        assert (damage.topic, damage.partition, damage.segment) == ("t", 0, place.path.name)
        assert served == RECORDS[: max(hit, 0) * ROWS]
        assert damage.first == len(served)
        if hit < 0:
            if which == "place":
                with pytest.raises(Damaged):
                    append_one(place.opened(), place.settings, 999)
            continue
        assert damage.last == damage.first + ROWS - 1
        past = damage.last + 1
        assert list(read_from(partition, place.settings, past)) == RECORDS[past:]
        inside = read_until_damage(place, partition, damage.first + 1)
        assert inside[0] == []
    assert list(read_from(partition, place.settings, 0)) == RECORDS


def test_a_flipped_bit_in_synced_records_is_refused_after_a_restart_not_cut(place: Place) -> None:
    size = place.path.stat().st_size
    for at in Flips(place.path):
        with pytest.raises(Damaged) as refused:
            place.restart(keep_head=True).head()
        assert (refused.value.topic, refused.value.partition) == ("t", 0)
        assert refused.value.segment == place.path.name
        assert place.path.stat().st_size == size, f"byte {at}: cut"
    assert list(read_from(place.restart(keep_head=True), place.settings, 0)) == RECORDS


# ---- the index -----------------------------------------------------------------------------------


def every_answer(place: Place, partition: Partition) -> list[object]:
    """What an index could get wrong: reading from every offset, and finding every time."""
    start = 1_700_000_000_000_000
    times = [start + n * 500_000 for n in range(2 * BATCHES + 4)]
    reader = PartitionReader(partition, lambda _: place.settings)
    try:
        found: list[object] = [reader.offset_at(time) for time in times]
    finally:
        reader.close()
    return found + [list(read_from(partition, place.settings, n)) for n in range(len(RECORDS) + 1)]


@pytest.mark.parametrize("which", ["place", "sealed"])
def test_a_flipped_bit_in_an_index_changes_nothing(which: str, request: pytest.FixtureRequest) -> None:
    place: Place = request.getfixturevalue(which)
    partition = place.opened()
    right = every_answer(place, partition)
    path = index.path_of(place.path)
    flips = Flips(path)
    for _ in flips:
        assert every_answer(place, partition) == right
        path.write_bytes(flips.content)


@pytest.mark.parametrize("wrong", ["missing", "empty", "zeroed", "short", "garbage", "shifted", "another's"])
def test_an_index_that_is_lost_or_wrong_changes_nothing(place: Place, wrong: str) -> None:
    right = every_answer(place, place.opened())
    path = index.path_of(place.path)
    content = path.read_bytes()
    entry = index.ENTRY.itemsize
    changed = {
        "empty": b"",
        "zeroed": bytes(len(content)),
        "short": content[: entry + 5],
        "garbage": b"\x5a" * len(content),
        "shifted": content[entry:] + content[:entry],
        "another's": content[-entry:] * BATCHES,
    }
    path.unlink()
    if wrong in changed:
        path.write_bytes(changed[wrong])
    partition = place.opened()
    assert every_answer(place, partition) == right
    assert append_one(partition, place.settings, 112) == len(RECORDS)
    assert list(read_from(partition, place.settings, 0)) == [*RECORDS, (12, 112)]


# ---- the manifest --------------------------------------------------------------------------------


@dataclass
class Mixed:
    """A partition with archived, merged and plain segments, or a compacted one; opened as a whole log."""

    home: Path
    clock: ManualClock

    def open(self, disk: RealDisk | None = None) -> Log:
        return Log(EmbeddedLog(self.home, disk=disk, clock=self.clock))

    def folder(self, topic: str) -> Path:
        return self.home / "topics" / topic / "0"

    def everything(self, *, restarted: bool = False) -> dict[str, list[tuple[int, Any]]]:
        with self.open(Rebooted() if restarted else None) as log:
            return {name: [(e.offset, e.value) for e in log.topic(name).events()] for name in log.topics()}


def maintain(log: Log, topic: str, **how: bool) -> None:
    port = log.port
    assert isinstance(port, EmbeddedLog)
    part = port.partition(topic, 0)
    maintenance.run(part, port.settings(topic), port.groups_store(), **how)


def seal(log: Log, topic: str) -> None:
    port = log.port
    assert isinstance(port, EmbeddedLog)
    part = port.partition(topic, 0)
    with part.locked() as head:
        part.roll(head, port.settings(topic))


@pytest.fixture
def mixed(tmp_path: Path) -> Mixed:
    made = Mixed(tmp_path / "mixed", ManualClock())
    with made.open() as log:
        topic = log.create_topic("plain", "id BIGINT NOT NULL, text STRING")
        for part in range(4):
            for n in range(3):
                made.clock.advance(1)
                topic.append(rows(part * 6 + n * 2, 2))
            seal(log, "plain")
            if part == 0:
                maintain(log, "plain", archive_now=True)
            elif part == 1:
                maintain(log, "plain")
        topic.append(rows(24, 2))
        keyed = log.create_topic("keyed", "id BIGINT NOT NULL, text STRING", key="id", cleanup="compact")
        for n in range(6):
            keyed.append([{"id": n % 3, "text": f"{n}"}, {"id": 7, "text": f"{n}"}])
        keyed.delete({"id": 1})
        seal(log, "keyed")
        maintain(log, "keyed", force=True)
        keyed.append({"id": 2, "text": "last"})
    names = sorted(path.name for path in made.folder("plain").glob("0*-*"))
    assert [name.split("-")[1] for name in names if not name.endswith("index")] == [
        "0002.parquet", "0001.arrows", "0000.arrows", "0000.arrows", "0000.arrows"
    ]  # fmt: skip
    return made


class OneFile(RealDisk):
    """A disk that has one file, whatever it is asked for."""

    content = b""

    def read(self, path: Path) -> bytes:
        return self.content


def test_a_manifest_with_any_flipped_bit_is_not_believed(mixed: Mixed) -> None:
    disk = OneFile()
    for topic in ("plain", "keyed"):
        content = (mixed.folder(topic) / manifests.NAME).read_bytes()
        right = manifests.load(RealDisk(), mixed.folder(topic))
        for at, bit in itertools.product(range(len(content)), range(8)):
            flipped = bytearray(content)
            flipped[at] ^= 1 << bit
            disk.content = bytes(flipped)
            assert manifests.load(disk, mixed.folder(topic)) in {None, right}, f"byte {at} bit {bit}"


def test_a_flipped_bit_in_a_manifest_changes_nothing(mixed: Mixed) -> None:
    right = mixed.everything()
    for topic in right:
        path = mixed.folder(topic) / manifests.NAME
        flips = Flips(path)
        for at in flips:
            if at % 40 < 2:
                assert mixed.everything(restarted=at % 40 == 0) == right, f"byte {at} of {topic}"
            path.write_bytes(flips.content)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("content", [None, b"", b"\0" * 400, b"{}", b"[]", b'{"segments": 7, "sum": ""}'])
def test_a_lost_manifest_is_rebuilt_from_the_segments(
    mixed: Mixed, content: bytes | None, restarted: bool
) -> None:
    right = mixed.everything()
    for topic in ("plain", "keyed"):
        path = mixed.folder(topic) / manifests.NAME
        path.unlink()
        if content is not None:
            path.write_bytes(content)
    assert mixed.everything(restarted=restarted) == right
    with mixed.open() as log:
        assert log.topic("plain").append(rows(26, 1)).offset == 26
        assert log.topic("keyed").append({"id": 9, "text": "new"}).offset == 14


def test_a_damaged_first_segment_is_not_forgotten_when_the_manifest_is_lost_too(mixed: Mixed) -> None:
    for topic in ("plain", "keyed"):
        path = segments_of(mixed, topic)[0]
        path.write_bytes(b"not a segment")
        (mixed.folder(topic) / manifests.NAME).unlink()
        with mixed.open() as log, pytest.raises(Damaged) as caught:
            list(log.topic(topic).events())
        assert (caught.value.segment, caught.value.first) == (path.name, 0)


def test_an_old_manifest_is_refused(mixed: Mixed) -> None:
    """Restored from a backup, say: going on with it would overwrite later records."""
    path = mixed.folder("plain") / manifests.NAME
    old = path.read_bytes()
    with mixed.open() as log:
        seal(log, "plain")
        log.topic("plain").append(rows(26, 2))
    path.write_bytes(old)
    (mixed.folder("plain") / "head").unlink()
    files = segments_of(mixed, "plain")
    with mixed.open(Rebooted()) as log, pytest.raises(Damaged, match="older than this file"):
        log.topic("plain")
    assert segments_of(mixed, "plain") == files


def test_a_manifest_is_rebuilt_while_files_of_a_rewriting_that_died_are_there(mixed: Mixed) -> None:
    """Both the rewritten file and those it replaces: the crash came before they were removed."""
    right = mixed.everything()
    folder = mixed.folder("plain")
    before = {path.name: path.read_bytes() for path in folder.glob("0*-*")}
    with mixed.open() as log:
        maintain(log, "plain")
        maintain(log, "plain", archive_now=True)
    for name, content in before.items():
        (folder / name).write_bytes(content)
    (folder / manifests.NAME).unlink()
    assert mixed.everything() == right
    assert mixed.everything(restarted=True) == right


def test_a_roll_that_died_leaves_nothing_that_a_rebuilt_manifest_stumbles_over(
    mixed: Mixed, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = mixed.everything()
    monkeypatch.setattr(manifests, "store", _die)
    with mixed.open() as log, pytest.raises(_Died):
        seal(log, "plain")
    monkeypatch.undo()
    with mixed.open() as log:
        log.topic("plain").append(rows(26, 2))
        seal(log, "plain")
        log.topic("plain").append(rows(28, 2))
    (mixed.folder("plain") / manifests.NAME).unlink()
    expected = right["plain"] + [(n, row) for n, row in enumerate(rows(26, 4), 26)]
    assert mixed.everything()["plain"] == expected


class _Died(Exception):
    """As if the process had been killed here."""


def _die(*args: object, **options: object) -> None:
    raise _Died


# ---- missing segments ----------------------------------------------------------------------------


def segments_of(mixed: Mixed, topic: str) -> list[Path]:
    folder = mixed.folder(topic)
    return sorted(path for path in folder.glob("0*-*") if path.suffix in {".arrows", ".parquet"})


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("manifest_too", [False, True])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_missing_segment_is_named_and_never_skipped(
    mixed: Mixed, number: int, manifest_too: bool, restarted: bool
) -> None:
    right = mixed.everything()["plain"]
    missing = segments_of(mixed, "plain")[number]
    missing.unlink()
    if manifest_too:
        (mixed.folder("plain") / manifests.NAME).unlink()
    with mixed.open(Rebooted() if restarted else None) as log:
        topic, served = log.topic("plain"), []
        with pytest.raises(SegmentMissing) as caught:
            for event in topic.events():
                served.append((event.offset, event.value))
        assert served == right[: number * 6]
        assert (caught.value.topic, caught.value.partition) == ("plain", 0)
        assert (caught.value.first, caught.value.last) == (number * 6, number * 6 + 5)
        after = (number + 1) * 6
        assert [(e.offset, e.value) for e in topic.events(start=after)] == right[after:]
        assert topic.append(rows(26, 1)).offset == 26


def test_a_missing_first_segment_is_named_as_long_as_the_manifest_knows_of_it(mixed: Mixed) -> None:
    segments_of(mixed, "plain")[0].unlink()
    with mixed.open() as log, pytest.raises(SegmentMissing) as caught:
        list(log.topic("plain").events())
    assert (caught.value.first, caught.value.last) == (0, 5)


@pytest.mark.parametrize("manifest_too", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_missing_last_segment_is_refused(mixed: Mixed, restarted: bool, manifest_too: bool) -> None:
    segments_of(mixed, "plain")[-1].unlink()
    if manifest_too:
        (mixed.folder("plain") / manifests.NAME).unlink()
    with mixed.open(Rebooted() if restarted else None) as log:
        with pytest.raises(SegmentMissing) as caught:
            list(log.topic("plain").events())
        assert caught.value.first == 24
        with pytest.raises(SegmentMissing):
            log.topic("plain").append(rows(0, 1))


def test_a_damaged_rewritten_segment_is_not_skipped_when_the_manifest_is_lost_too(mixed: Mixed) -> None:
    for topic, wrong in (("plain", 1), ("keyed", 0)):
        path = segments_of(mixed, topic)[wrong]
        content = bytearray(path.read_bytes())
        content[-20] ^= 1
        path.write_bytes(bytes(content))
        (mixed.folder(topic) / manifests.NAME).unlink()
        with mixed.open() as log, pytest.raises(Damaged):
            list(log.topic(topic).events())


# ---- archives ------------------------------------------------------------------------------------


def test_a_flipped_bit_in_an_archive_is_refused(mixed: Mixed) -> None:
    right = mixed.everything()["plain"]
    path = segments_of(mixed, "plain")[0]
    assert path.suffix == ".parquet"
    with mixed.open() as log:
        port = log.port
        assert isinstance(port, EmbeddedLog)
        partition, settings = port.partition("plain", 0), port.settings("plain")
        for at in Flips(path):
            with pytest.raises(Damaged) as caught:
                list(read_from(partition, settings, 0))
            assert caught.value.segment == path.name, f"byte {at}"
            assert (caught.value.first, caught.value.last) == (0, 5)
            if at % 16 == 0:
                found = list(read_from(partition, settings, 6))
                assert [offset for offset, _ in found] == [offset for offset, _ in right[6:]]


def test_a_flipped_bit_in_an_archive_is_not_served_when_the_manifest_is_lost_too(mixed: Mixed) -> None:
    right = mixed.everything()["plain"]
    path, manifest = segments_of(mixed, "plain")[0], mixed.folder("plain") / manifests.NAME
    stored = manifest.read_bytes()
    for at in Flips(path):
        if at % 20:
            continue
        manifest.unlink()
        with contextlib.suppress(Damaged):
            assert mixed.everything()["plain"] == right, f"byte {at}: a wrong value was served"
        manifest.write_bytes(stored)


# ---- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"{", b"{}", b"[]", b"null", b'{"name": "plain"}'])
def test_settings_that_cannot_be_read_are_a_clear_error(mixed: Mixed, content: bytes) -> None:
    path = mixed.folder("plain").parent / "topic.json"
    path.write_bytes(content)
    with mixed.open() as log:
        with pytest.raises(StorageError, match=r"topic\.json") as caught:
            log.topic("plain")
        assert "backup" in caught.value.hint
        assert len(list(log.topic("keyed").events())) > 0, "other topics are not concerned"


def test_a_flipped_bit_in_the_settings_is_a_clear_error_or_changes_nothing(mixed: Mixed) -> None:
    """A retention that lost a digit would cost records."""
    folder, disk = mixed.folder("plain").parent, OneFile()
    right, content = settings.load(RealDisk(), folder), (folder / settings.NAME).read_bytes()
    for at, bit in itertools.product(range(len(content)), range(8)):
        flipped = bytearray(content)
        flipped[at] ^= 1 << bit
        disk.content = bytes(flipped)
        try:
            assert settings.load(disk, folder) == right, f"byte {at} bit {bit}"
        except StorageError as error:
            assert settings.NAME in error.message


# ---- the ledger ----------------------------------------------------------------------------------


@dataclass
class Ledgered:
    """A log with a few atomic appends, to be copied for each damage."""

    home: Path
    copies: Path

    def copy(self, name: str) -> Path:
        return Path(shutil.copytree(self.home, self.copies / name))


@pytest.fixture
def ledgered(tmp_path: Path) -> Ledgered:
    with Log(EmbeddedLog(tmp_path / "home", clock=ManualClock())) as log:
        for name in ("a", "b"):
            log.create_topic(name, "id BIGINT NOT NULL")
        producer = log.producer("p")
        for n in range(3):
            producer.append({"a": {"id": n}, "b": {"id": n}}, position=str(n).encode())
    return Ledgered(tmp_path / "home", tmp_path)


def state_of(home: Path, disk: RealDisk | None) -> tuple[bytes | None, dict[str, list[int]]]:
    with Log(EmbeddedLog(home, disk=disk, clock=ManualClock())) as log:
        position = log.port.producer_position("p").position
        return position, {name: [row["id"] for row in log.topic(name).rows()] for name in ("a", "b")}


EXPECTED = (b"2", {"a": [0, 1, 2], "b": [0, 1, 2]})


@pytest.mark.parametrize("how", ["running", "restarted"])
def test_a_flipped_bit_in_the_ledger_is_refused(ledgered: Ledgered, how: str) -> None:
    """With its head, also with the one of an earlier boot, every byte of it is known to have been synced."""
    home = ledgered.copy(how)
    path = home / "ledger" / "commits.log"
    heads = {head: head.read_bytes() for head in home.rglob("head")}
    flips = Flips(path)
    for at in flips:
        with pytest.raises(Damaged, match=r"commits\.log"):
            state_of(home, Rebooted() if how == "restarted" else None)
        assert path.stat().st_size == len(flips.content), f"byte {at}: the file was changed"
    for head, content in heads.items():
        head.write_bytes(content)
    assert state_of(home, None) == EXPECTED


def test_a_ledger_rewritten_in_one_piece_cannot_be_torn(ledgered: Ledgered) -> None:
    """So a flipped bit in it is refused even where no head is left to tell what was synced."""
    home = ledgered.copy("rewritten")
    for head in home.rglob("head"):
        head.unlink()
    assert state_of(home, Rebooted()) == EXPECTED  # every restart rewrites it
    path = home / "ledger" / "commits.log"
    flips = Flips(path)
    for _ in flips:
        for head in home.rglob("head"):
            head.unlink()
        with pytest.raises(Damaged, match=r"commits\.log"):
            state_of(home, Rebooted())
        assert path.stat().st_size == len(flips.content)


@pytest.mark.parametrize("how", ["running", "restarted", "restarted without a head"])
def test_a_missing_ledger_is_refused(ledgered: Ledgered, how: str) -> None:
    home = ledgered.copy("missing")
    (home / "ledger" / "commits.log").unlink()
    if how == "restarted without a head":
        (home / "ledger" / "head").unlink()
    for _ in range(2):
        with pytest.raises(Damaged, match=r"commits\.log"):
            state_of(home, None if how == "running" else Rebooted())


def test_a_log_of_another_format_is_refused(ledgered: Ledgered) -> None:
    for content in (b"", b"\0\0", b"{}", b'{"format": 99}', json.dumps({"format": "1"}).encode()):
        (ledgered.home / "log.json").write_bytes(content)
        with pytest.raises(PenstockError, match="no log this version can read"):
            EmbeddedLog(ledgered.home)
