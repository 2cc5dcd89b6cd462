"""A buffered producer: `send` returns at once, a thread appends in batches, memory is bounded."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from penstock import fork
from penstock.clock import duration_ms
from penstock.errors import BadOption, BadRecord, BufferFull, Contended, StorageError
from penstock.fork import Forking
from penstock.log.port import LogPort, Position

if TYPE_CHECKING:
    from penstock.log.log import AtomicProducer
    from penstock.log.topic import Topic

Overflow = Literal["block", "drop_newest", "drop_oldest", "error"]

_RECORD_BYTES = 64  # what a record costs in memory besides its text and bytes
_MAPPING = (dict, Mapping)  # in this order: an abstract class takes long to answer
_TEXT = (str, bytes)
_RETRY_FOR_S = 30.0
_RETRY_PAUSE_S_MAX = 1.0


class Producer(Forking):
    """Thread-safe. Leave the `with` block, or call `flush`, to be sure everything is stored.

    When the buffer is full, `overflow` decides: "block" (wait), "drop_newest" (the record
    being sent), "drop_oldest" (the longest buffered one), or "error" (BufferFull). Dropped
    records are counted in `dropped`.

    With an `id` the producer is idempotent: each batch is stored together with the
    `position` of its last record, and after a crash `position()` tells where to go on.
    """

    def __init__(
        self,
        topic: Topic,
        port: LogPort,
        *,
        id: str | None,
        linger: str | float,
        batch_rows: int,
        buffer_bytes: int,
        overflow: Overflow,
    ) -> None:
        if overflow not in get_args(Overflow):
            raise BadOption(f"overflow={overflow!r}.", hint=f"choose one of {', '.join(get_args(Overflow))}")
        if batch_rows < 1 or buffer_bytes < 1:
            raise BadOption(
                "a producer needs room for at least one record.", hint="raise batch_rows or buffer_bytes"
            )
        self.dropped = 0
        self.stored = 0
        self._topic = topic
        self._atomic = _open_atomic(port, id)
        self._linger_s = duration_ms(linger) / 1_000
        self._batch_rows, self._buffer_bytes_max, self._overflow = batch_rows, buffer_bytes, overflow
        self._wake_at = (1, batch_rows)  # the thread sleeps until there is something, or enough
        self._buffer: deque[tuple[Any, int, bytes | None]] = deque()
        self._buffer_bytes = 0
        self._in_flight = 0
        self._flushing = False
        self._crowded = False  # somebody waits for room: lingering would only keep them waiting
        self._closed = False
        self._rejected: list[BadRecord] = []
        self._failure: Exception | None = None
        self._again = 0  # so many of the oldest were tried together before
        self._last: Position | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"penstock-producer-{topic.name}", daemon=True)
        self._thread.start()
        fork.tell(self)

    # ---- what programs call ---------------------------------------------------------------------

    def send(self, record: Any, *, position: bytes | None = None) -> bool:
        """Buffer one record; False if it was dropped.

        Raises what the background appends ran into: BadRecord for an earlier record that
        does not fit (the others are stored), or the storage error that outlasted all retries.
        """
        size = _size_of(record)
        with self._changed:
            if self._failure is not None or self._rejected:
                self._raise_pending()
            if self._closed:
                raise BadOption("this producer is closed.", hint="open a new one")
            if self._buffer_bytes + size > self._buffer_bytes_max and not self._make_room(size):
                self.dropped += 1
                return False
            self._buffer.append((record, size, position))
            self._buffer_bytes += size
            if len(self._buffer) in self._wake_at:
                self._changed.notify_all()
        return True

    def flush(self) -> Position | None:
        """Wait until everything sent is stored; returns where the last batch ended."""
        with self._changed:
            self._flushing = True
            self._changed.notify_all()
            while (self._buffer or self._in_flight) and self._failure is None:
                self._changed.wait()
            self._flushing = False
            self._raise_pending()
            return self._last

    def position(self) -> bytes | None:
        """The position of the last stored record, also of an earlier run with the same id."""
        if self._atomic is None:
            raise BadOption("this producer has no id.", hint='open it with producer(id="...")')
        return self._atomic.position()

    def close(self) -> None:
        """Store what is buffered and stop. Raises if something could not be stored."""
        try:
            self.flush()
        finally:
            with self._changed:
                self._closed = True
                self._changed.notify_all()
            self._thread.join()
            if self._atomic is not None:
                self._atomic.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def after_fork_in_child(self) -> None:
        # The thread stays with the parent, and so does what is buffered.
        self._changed = threading.Condition()
        self._buffer.clear()
        self._buffer_bytes = self._in_flight = 0
        self._closed = True

    # ---- room ---------------------------------------------------------------------------------------

    def _make_room(self, size: int) -> bool:
        """False when the record being sent is to be dropped."""
        while self._buffer_bytes + size > self._buffer_bytes_max and (self._buffer or self._in_flight):
            if self._overflow == "drop_newest":
                return False
            if self._overflow == "error":
                raise BufferFull(
                    self._topic.name,
                    buffered_bytes=self._buffer_bytes,
                    buffered_bytes_max=self._buffer_bytes_max,
                )
            if self._overflow == "drop_oldest" and self._buffer:
                self._buffer_bytes -= self._buffer.popleft()[1]
                self._again = max(self._again - 1, 0)
                self.dropped += 1
                continue
            self._crowded = True
            self._changed.notify_all()
            self._changed.wait()
            self._raise_pending()
        return True

    def _raise_pending(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self._rejected:
            raise self._rejected.pop(0)

    # ---- the thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        while (batch := self._take_batch()) is not None:
            failure = self._store(batch)
            with self._changed:
                self._settle(batch, failure)
                self._changed.notify_all()

    def _take_batch(self) -> list[tuple[Any, int, bytes | None]] | None:
        with self._changed:
            while not self._buffer or self._failure is not None:
                if self._closed:
                    return None
                self._changed.wait()
            until = time.monotonic() + self._linger_s
            while not self._is_due() and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            count = min(len(self._buffer), self._again or self._batch_rows)
            batch = [self._buffer.popleft() for _ in range(count)]
            self._in_flight = count
            self._crowded = False
            return batch

    def _is_due(self) -> bool:
        return self._flushing or self._closed or self._crowded or len(self._buffer) >= self._batch_rows

    def _store(self, batch: list[tuple[Any, int, bytes | None]]) -> Exception | None:
        """Append the batch, without the records that do not fit; retries what may pass."""
        position = next((p for _, _, p in reversed(batch) if p is not None), None)
        deadline, pause_s = time.monotonic() + _RETRY_FOR_S, 0.01
        while batch:
            try:
                self._append([record for record, _, _ in batch], position)
                return None
            except BadRecord as error:
                if error.row is None or not 0 <= error.row < len(batch):
                    return error
                with self._changed:
                    self._buffer_bytes -= batch.pop(error.row)[1]
                    self._rejected.append(error)
            except (StorageError, Contended) as error:
                if time.monotonic() + pause_s > deadline or self._closed:
                    return error
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, _RETRY_PAUSE_S_MAX)
            except Exception as error:  # for whoever flushes: nobody hears what a thread raises
                return error
        return None

    def _append(self, records: list[Any], position: bytes | None) -> None:
        if self._atomic is None:
            self._last = self._topic.append(records)
        else:
            result = self._atomic.append({self._topic: records}, position=position)
            self._last = result.positions[0] if result.positions else self._last
        self.stored += len(records)

    def _settle(self, batch: list[tuple[Any, int, bytes | None]], failure: Exception | None) -> None:
        self._in_flight = 0
        # A try that failed in doubt may be stored: only the very same records count as its repetition.
        self._again = len(batch) if failure else 0
        if failure is None:
            self._buffer_bytes -= sum(size for _, size, _ in batch)
            return
        # Not stored: back to the front, in order, so that the next flush tries again.
        self._buffer.extendleft(reversed(batch))
        self._failure = failure


def _open_atomic(port: LogPort, id: str | None) -> AtomicProducer | None:
    if id is None:
        return None
    from penstock.log.log import AtomicProducer  # it builds on topics, as this does

    return AtomicProducer(port, id)


def _size_of(record: Any) -> int:
    """About what a record takes in memory."""
    if isinstance(record, _MAPPING):
        values: Iterable[Any] = record.values()
    else:
        values = [getattr(record, name) for name in getattr(record, "__dataclass_fields__", ())]
    size = _RECORD_BYTES
    for value in values:
        if isinstance(value, _TEXT):
            size += len(value)
    return size
