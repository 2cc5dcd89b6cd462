"""Which atomic appends happened, and how far each producer is: one append-only file.

An atomic append counts from the moment its record here is synced: **this is the commit
point** for everything that spans partitions or carries a position. The last record of
each producer is its state (epoch, sequence, position), so it survives retention and
compaction of the topics it wrote to.

    ledger/commits.log   records: 4 bytes length, 8 bytes checksum, JSON
    ledger/head          shared memory: the end of that file
    ledger/lock

When the file has grown it is rewritten with one record per producer. That is safe
because every transaction up to the `settled` mark has been published or cut, durably,
in all its partitions before the mark is written.
"""

from __future__ import annotations

import base64
import json
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from pathlib import Path

import xxhash

from penstock.errors import Damaged, Fenced, StorageError, SyncFailed
from penstock.log import disk as disks
from penstock.log.disk import Disk, File
from penstock.log.head import FAILED, Head, SharedHead
from penstock.log.partition import LOCK_TIMEOUT_S, Committed

_PREFIX = struct.Struct("<IQ")
_numbers = attrgetter(*(field.name for field in fields(Committed)))
_REWRITE_BYTES = 8 << 20
_REWRITING = b"rewrite"


@dataclass(frozen=True, slots=True)
class Share:
    """One partition's part of an atomic append."""

    topic: str
    partition: int
    first: int
    committed: Committed


@dataclass(frozen=True, slots=True)
class ProducerState:
    """What is known of a producer: its epoch, and its last committed append."""

    epoch: int = 0
    sequence: int = -1
    position: bytes | None = None
    transaction: str = ""
    shares: tuple[Share, ...] = ()


@dataclass(slots=True)
class _Known:
    """What this process has read of the file."""

    generation: int = -1
    position: int = 0
    producers: dict[str, ProducerState] = field(default_factory=dict)
    committed: dict[str, tuple[Share, ...]] = field(default_factory=dict)
    settled: tuple[int, int] = (0, 0)
    session: int = 0
    stored_generation: int = -1


class Ledger:
    """Thread-safe; one object per process and log."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk, self._folder = disk, folder
        self._path = folder / "commits.log"
        self._lock = disk.lock(folder / "lock", "the ledger of atomic appends")
        self._head = SharedHead(disk, folder / "head")
        self._mutex = threading.RLock()  # always taken before the lock between processes
        self._file: tuple[int, File] | None = None
        self._known = _Known()

    # ---- what readers ask -----------------------------------------------------------------

    def state(self, producer: str) -> ProducerState:
        with self._mutex:
            self._refresh()
            return self._known.producers.get(producer, ProducerState())

    def producers(self) -> list[str]:
        """Everybody who has ever taken part."""
        with self._mutex:
            self._refresh()
            return sorted(self._known.producers)

    def outcome(self, transaction: str, topic: str, partition: int) -> Committed | None:
        """That partition's share of a committed transaction; None if it was not committed.

        Only for one that may still be open: settled ones are not remembered in detail.
        """
        with self._mutex:
            self._refresh()
            # The lock cuts a record that was written but never counted, so that "no" stays "no".
            with self._locked():
                shares = self._known.committed.get(transaction, ())
            found = (s.committed for s in shares if (s.topic, s.partition) == (topic, partition))
            return next(found, None)

    def was_committed(self, transaction: str) -> bool:
        with self._mutex:
            self._refresh()
            return transaction in self._known.committed or order_of(transaction) <= self._known.settled

    # ---- what writers do ---------------------------------------------------------------------

    def new_epoch(self, producer: str) -> int:
        """Take over `producer`: from now on older instances are fenced."""
        with self._mutex:
            with self._locked() as head:
                epoch = self._known.producers.get(producer, ProducerState()).epoch + 1
                appended = self._append(head, {"kind": "epoch", "producer": producer, "epoch": epoch})
            self._make_durable(appended)
            return epoch

    def new_transaction(self) -> str:
        """An id that no transaction of this log had or will have."""
        with self._locked() as head:
            number = head.next_offset + 1
            self._head.write(replace(head, next_offset=number))
            return f"{self._known.session}-{number}"

    def may_begin(self, transaction: str) -> bool:
        """False when everything up to this id is being settled: what it wrote now would pass for committed.

        Asked while holding the locks of all partitions concerned.
        """
        head = self._head.read()
        return head is not None and order_of(transaction)[1] > head.visible_offset

    def check(self, producer: str, epoch: int) -> ProducerState:
        """The producer's state. Raises Fenced if a newer instance has taken over."""
        state = self.state(producer)
        if state.epoch != epoch:
            raise Fenced(producer, epoch=epoch, current=state.epoch)
        return state

    def commit(self, producer: str, state: ProducerState) -> None:
        """Record an atomic append. When this returns it has happened; when it raises it has not.

        The caller holds the locks of all partitions concerned. A crash or LockTimeout inside
        leaves it to whoever comes next to find out which of the two it was.
        """
        with self._mutex:
            with self._locked() as head:
                current = self._known.producers.get(producer, ProducerState())
                if current.epoch != state.epoch:
                    raise Fenced(producer, epoch=state.epoch, current=current.epoch)
                appended = self._append(head, _commit_record(producer, state))
            self._make_durable(appended)

    def in_doubt(self) -> bool:
        """A sync failed and the file could not be put right yet: nobody knows what is committed."""
        head = self._head.read()
        return head is None or head.has(FAILED)

    def rewrite_if_due(self, settle: Callable[[], None]) -> None:
        """Shorten the file once it has grown. `settle` publishes or cuts what is open in every partition."""
        head = self._head.read()
        if head is None or head.written_bytes < max(_REWRITE_BYTES, 2 * head.visible_bytes):
            return
        with self._locked() as head:
            mark = (self._known.session, head.next_offset)
            self._head.write(replace(head, visible_offset=head.next_offset))  # see may_begin
        settle()
        with self._locked() as head:
            self._known.settled = max(self._known.settled, mark)
            later = {txn: s for txn, s in self._known.committed.items() if order_of(txn) > mark}
            self._rewrite_marked(head, later)

    # ---- the file ------------------------------------------------------------------------------

    @contextmanager
    def _locked(self) -> Iterator[Head]:
        with self._mutex:
            self._lock.acquire(LOCK_TIMEOUT_S)
            try:
                head = self._settle_head()
                self._read_to(head)
                yield head
            finally:
                self._lock.release()

    def _settle_head(self) -> Head:
        head = self._head.read()
        if head is None:
            head = self._recover()
        if head.transaction:
            head = self._after_broken_rewrite(head)
        if head.has(FAILED):
            self._read_to(replace(head, written_bytes=head.synced_bytes))
            head = self._rewrite_marked(head, self._known.committed)
        self._cut_leftovers(head)
        return head

    def _cut_leftovers(self, head: Head) -> None:
        file = self._open(head)
        if file.size() <= head.written_bytes:
            return
        file.truncate(head.written_bytes)
        try:
            # Else it could be back after power loss, as a commit whose records were cut long since.
            file.sync()
        except SyncFailed:
            self._head.write(replace(head, flags=head.flags | FAILED))
            raise

    def _append(self, head: Head, record: dict[str, object]) -> Head:
        data = _pack(record)
        file = self._open(head)
        try:
            file.write_at(head.written_bytes, data)
        except StorageError:
            file.truncate(head.written_bytes)
            raise
        appended = replace(head, written_bytes=head.written_bytes + len(data))
        self._head.write(appended)
        return appended

    def _make_durable(self, appended: Head | None = None) -> None:
        """Sync what is written, whoever wrote it. Raises SyncFailed if `appended` was given up meanwhile."""
        seen = self._head.read()
        if appended and seen and (seen.cuts != appended.cuts or seen.has(FAILED)):
            raise SyncFailed(self._path, "another append found the disk failing")
        if seen is None or seen.has(FAILED) or seen.synced_bytes >= seen.written_bytes:
            return
        try:
            self._open(seen).sync()
        except SyncFailed:
            self._give_up(seen)
            raise
        self._show(seen)

    def _show(self, seen: Head) -> None:
        self._lock.acquire(LOCK_TIMEOUT_S)
        try:
            head = self._head.read()
            if head and (head.cuts != seen.cuts or head.has(FAILED)):
                raise SyncFailed(self._path, "another append found the disk failing")
            if head and head.generation == seen.generation and head.synced_bytes < seen.written_bytes:
                self._head.write(replace(head, synced_bytes=seen.written_bytes))
        finally:
            self._lock.release()

    def _give_up(self, seen: Head) -> None:
        """A sync failed: nobody may believe the unsynced records, now or after a crash.

        If the file cannot be rewritten either, the mark stays and the next one tries again.
        """
        self._lock.acquire(LOCK_TIMEOUT_S)
        try:
            head = self._head.read()
            if head and (head.generation, head.cuts) == (seen.generation, seen.cuts):
                self._head.write(replace(head, flags=head.flags | FAILED))
                self._settle_head()
        finally:
            self._lock.release()

    def _refresh(self) -> None:
        """Know every committed record; sync what a dead process may have left unsynced."""
        head = self._head.read()
        if head and head.generation == self._known.generation and not (head.transaction or head.has(FAILED)):
            if head.written_bytes > head.synced_bytes:
                self._make_durable()
            self._read_to(head)
            return
        self._make_durable()
        with self._locked():  # under the lock the head and the file belong together
            return

    def _read_to(self, head: Head) -> None:
        if self._known.generation != head.generation or self._known.position > head.written_bytes:
            self._known = _Known(generation=head.generation)
        known = self._known
        if known.position == head.written_bytes:
            return
        data = self._open(head).read_at(known.position, head.written_bytes - known.position)
        for record, size in _unpack(data.to_pybytes()):
            self._apply(record)
            known.position += size
        if known.position != head.written_bytes:
            raise self._damaged("a record of an atomic append does not match its checksum")

    def _apply(self, record: dict[str, object]) -> None:
        producer = str(record.get("producer", ""))
        known = self._known.producers.get(producer, ProducerState())
        match record["kind"]:
            case "epoch":
                self._known.producers[producer] = replace(known, epoch=int(str(record["epoch"])))
            case "commit":
                state = _state_of(record)
                self._known.producers[producer] = replace(state, epoch=max(state.epoch, known.epoch))
                if state.transaction:
                    self._known.committed[state.transaction] = state.shares
            case "session":
                self._known.session = int(str(record["session"]))
                self._known.stored_generation = int(str(record["generation"]))
                self._known.settled = max(self._known.settled, order_of(str(record["settled"])))

    def _recover(self) -> Head:
        """After power loss: keep the whole records, cut the rest, begin a new session."""
        hint = self._head.before_restart() or Head()
        self._known = _Known()
        due = 1
        for number, (record, size) in enumerate(_unpack(self._stored())):
            due = int(str(record.get("records", 1))) if number == 0 else due
            self._apply(record)
            self._known.position += size
            due -= 1
        if due > 0:
            raise self._damaged("a record of an atomic append does not match its checksum")
        if hint.generation == self._known.stored_generation and self._known.position < hint.synced_bytes:
            raise self._damaged("a synced record of an atomic append is damaged")
        self._known.session += 1
        generation = max(hint.generation, self._known.stored_generation)
        return self._rewrite(Head(generation=generation, cuts=hint.cuts), self._known.committed)

    def _rewrite(self, head: Head, committed: dict[str, tuple[Share, ...]]) -> Head:
        """Replace the file by what is known now: the session, every producer, and what is not settled."""
        session, number = self._known.settled
        generation = head.generation + 1
        records: list[dict[str, object]] = [
            {
                "kind": "session",
                "session": self._known.session,
                "settled": f"{session}-{number}",
                "generation": generation,
            }
        ]
        for producer, state in self._known.producers.items():
            records.append(_commit_record(producer, state))
        last = {state.transaction for state in self._known.producers.values()}
        for transaction, shares in committed.items():
            if transaction and transaction not in last:
                records.append(_commit_record("", ProducerState(transaction=transaction, shares=shares)))
        records[0]["records"] = len(records)  # these are synced as a whole: none of them can be torn
        data = b"".join(map(_pack, records))
        disks.replace(self._disk, self._path, data)
        return self._take_over(head, generation, len(data))

    def _take_over(self, head: Head, generation: int, size_bytes: int) -> Head:
        """Go on in a file that was just written in one piece."""
        fresh = replace(
            head, transaction=b"", generation=generation,
            written_bytes=size_bytes, synced_bytes=size_bytes, visible_bytes=size_bytes,
            flags=0, cuts=head.cuts + 1 if head.has(FAILED) else head.cuts,
        )  # fmt: skip
        self._head.write(fresh)
        self._read_to(fresh)
        return fresh

    def _rewrite_marked(self, head: Head, committed: dict[str, tuple[Share, ...]]) -> Head:
        """The same where the head counts: marked, since a crash may leave the new file with the old head."""
        self._head.write(replace(head, transaction=_REWRITING))
        return self._rewrite(head, committed)

    def _after_broken_rewrite(self, head: Head) -> Head:
        stored = self._stored()
        session = next((record for record, _ in _unpack(stored)), {"generation": -1})
        generation = int(str(session["generation"]))
        if generation == head.generation + 1:
            self._disk.sync_folder(self._folder)  # it was renamed, but perhaps not for good yet
            return self._take_over(head, generation, len(stored))
        settled = replace(head, transaction=b"")
        self._head.write(settled)
        return settled

    def _damaged(self, reason: str) -> Damaged:
        return Damaged(
            "(all)", 0, self._path.name, first=self._known.position, last=None, reason=reason,
            hint="restore the ledger folder from a backup; topics stay readable",
        )  # fmt: skip

    def _stored(self) -> bytes:
        try:
            return self._disk.read(self._path)
        except FileNotFoundError as error:
            raise self._damaged("the file is missing") from error

    def _open(self, head: Head) -> File:
        if self._file is None or self._file[0] != head.generation:
            try:
                opened = self._disk.open(self._path)
            except FileNotFoundError as error:
                raise self._damaged("the file is missing") from error
            if self._file:
                self._file[1].close()
            self._file = (head.generation, opened)
        return self._file[1]

    def close(self) -> None:
        if self._file:
            self._file[1].close()
            self._file = None
        self._lock.close()
        self._head.close()


def create(disk: Disk, folder: Path) -> None:
    """An empty ledger. A log whose ledger is missing is damaged, so this comes before the log exists."""
    disk.make_folder(folder)
    session: dict[str, object] = {"kind": "session", "session": 0, "settled": "0-0", "generation": 0}
    disks.replace(disk, folder / "commits.log", _pack(session))


def order_of(transaction: str) -> tuple[int, int]:
    """Transactions in the order their ids were given out."""
    session, _, number = transaction.partition("-")
    return int(session), int(number)


def _commit_record(producer: str, state: ProducerState) -> dict[str, object]:
    position = None if state.position is None else base64.b64encode(state.position).decode()
    shares = [[s.topic, s.partition, s.first, *_numbers(s.committed)] for s in state.shares]
    return {
        "kind": "commit", "producer": producer, "epoch": state.epoch, "sequence": state.sequence,
        "position": position, "transaction": state.transaction, "shares": shares,
    }  # fmt: skip


def _state_of(record: dict[str, object]) -> ProducerState:
    position, shares = record["position"], record["shares"]
    assert isinstance(shares, list)
    return ProducerState(
        int(str(record["epoch"])),
        int(str(record["sequence"])),
        None if position is None else base64.b64decode(str(position)),
        str(record["transaction"]),
        tuple(Share(s[0], s[1], s[2], Committed(*s[3:])) for s in shares),
    )


def _pack(record: dict[str, object]) -> bytes:
    body = json.dumps(record, separators=(",", ":")).encode()
    return _PREFIX.pack(len(body), xxhash.xxh3_64_intdigest(body)) + body


def _unpack(data: bytes) -> Iterator[tuple[dict[str, object], int]]:
    """Whole records from the start, up to the first that is not."""
    at = 0
    while at + _PREFIX.size <= len(data):
        length, checksum = _PREFIX.unpack_from(data, at)
        body = data[at + _PREFIX.size : at + _PREFIX.size + length]
        if len(body) < length or length == 0 or xxhash.xxh3_64_intdigest(body) != checksum:
            return
        yield json.loads(body), _PREFIX.size + length
        at += _PREFIX.size + length
