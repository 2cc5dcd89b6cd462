"""The binlog as the server sends it, event by event, read by a thread of its own.

By file and position alone: with GTIDs the driver begins anew after a reconnect.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pymysql
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import RotateEvent

from penstock.capture.mysql_server import Address, At, errors, settings
from penstock.errors import NotSupported, Unreachable

_AHEAD_BYTES = 16 << 20  # read before anybody has asked for it
_HEARTBEAT_S = 1.0
_SILENCE_S = 10.0  # without even a heartbeat: the connection is dead
_END_S = 2.0
_LOST = (2006, 2013)
_POS_MAX = 1 << 32


class Binlog:
    """Used by one thread. `close` it: the server keeps a thread for it."""

    def __init__(
        self, address: Address, at: At, *, server_id: int, tables: Sequence[str] | None = None
    ) -> None:
        if at.pos >= _POS_MAX:
            raise NotSupported(
                f"{address}: the binlog file {at.file} is longer than 4 GB, which cannot be read.",
                hint="lower max_binlog_size, and split transactions that are larger",
            )
        self._address, self._queue, self._ended = address, _Bounded(_AHEAD_BYTES), threading.Event()
        self._connections: list[_Connection] = []
        self._stream = BinLogStreamReader(
            {**settings(address), "read_timeout": _SILENCE_S}, server_id,
            log_file=at.file, log_pos=at.pos, resume_stream=True, blocking=True,
            only_schemas=[address.database], only_tables=tables and list(tables),
            filter_non_implemented_events=False, enable_logging=False, slave_heartbeat=_HEARTBEAT_S,
            freeze_schema=True,  # a table map is read once: an altered table has another number
            pymysql_wrapper=self._connect,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._read, name="binlog", daemon=True)
        self._thread.start()

    def get(self, timeout_s: float) -> Any | None:
        """The next event; None where none came in time. Raises what ended the stream."""
        found = self._queue.get(timeout_s)
        if isinstance(found, BaseException):
            self._queue.put(found, 0)
            raise found
        return found

    def close(self) -> None:
        self._ended.set()
        self._queue.close()
        for connection in self._connections:
            connection.wake()
        self._thread.join(_END_S)

    def _connect(self, **options: Any) -> _Connection:
        if "db" in options:
            options["database"] = options.pop("db")  # its name since PyMySQL 1.0
        made = _Connection(**options)
        self._connections.append(made)
        return made

    def _read(self) -> None:
        try:
            with errors(self._address):
                self._fill()
        except BaseException as error:
            self._queue.put(error, 0)
        finally:
            self._stream.close()

    def _fill(self) -> None:
        while not self._ended.is_set():
            event = self._stream.fetchone()
            if event is None:
                raise Unreachable(f"MySQL ({self._address})", "it ended the stream of its binlog")
            if isinstance(event, RotateEvent):
                # A server that was killed begins a new file, and counts its tables anew, without saying so.
                self._stream.table_map = {}
            self._queue.put(event, event.event_size)


class _Connection(pymysql.connections.Connection):  # type: ignore[misc]  # it has no types
    """One that ends the stream when it is lost: the driver would go on, in the middle of a transaction."""

    def _read_packet(self, *args: Any, **options: Any) -> Any:
        try:
            return super()._read_packet(*args, **options)
        except pymysql.err.OperationalError as error:
            if error.args[0] in _LOST:
                raise ConnectionResetError("the connection was lost") from error
            raise

    def wake(self) -> None:
        """Whoever waits for it goes on, with an error."""
        with suppress(OSError, AttributeError):
            self._sock.shutdown(socket.SHUT_RDWR)


class _Bounded:
    """A queue that takes only so many bytes; one larger thing where it is empty."""

    def __init__(self, bytes_max: int) -> None:
        self._max, self._bytes, self._closed = bytes_max, 0, False
        self._waiting: deque[tuple[Any, int]] = deque()
        self._changed = threading.Condition()

    def put(self, thing: Any, size: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not size or self._bytes + size <= self._max
                                   or not self._waiting)  # fmt: skip
            self._waiting.append((thing, size))
            self._bytes += size
            self._changed.notify_all()

    def get(self, timeout_s: float) -> Any | None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting, timeout_s):
                return None
            thing, size = self._waiting.popleft()
            self._bytes -= size
            self._changed.notify_all()
            return thing

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
