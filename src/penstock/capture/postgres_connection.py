"""The two ways to talk to PostgreSQL: one that asks, one over which changes come.

Both print values in the same way, so that a snapshot and the stream read by the same rules. The stream is
spoken on libpq itself: a driver that acknowledges keepalives by itself may confirm what is not stored yet.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.sql import SQL, Literal

from penstock.errors import BadOption, Contended, NotAllowed, PenstockError, StorageError, Unreachable
from penstock.opening import check_secret

_CONNECT_S = 10
_UNANSWERED_MS = 60_000
_EPOCH_S = 946_684_800
_PINNED = {
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "statement_timeout": "0",  # the defaults of a role are for its application
    "idle_in_transaction_session_timeout": "0",
    "default_transaction_read_only": "off",
    "lock_timeout": "10s",
    "row_security": "off",  # rather an error than rows that a policy hides
    "synchronous_commit": "local",  # our heartbeat need not be on any standby
}
_IDLE_SESSIONS_FROM = 140_000
_REFUSED_CODES = ("28000", "28P01", "42501")
_REFUSED_WORDS = (
    "authentication failed",
    "no password supplied",
    "pg_hba.conf",
    "permission denied",
    "does not exist",  # the role, or the database
)
_WAL, _KEEPALIVE = b"w"[0], b"k"[0]
HEADER_BYTES = 25  # before every message of the stream: its kind, two LSNs and a time


def lsn_text(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def address_of(url: str) -> str:
    """The database to be shown: without a password."""
    try:
        said = conninfo_to_dict(check_secret(url))
    except psycopg.Error:
        # Its message may repeat the address, and with it the password.
        hint = "write it as postgresql://user:password@host:port/database"
        raise BadOption("the address of the database cannot be read.", hint=hint) from None
    user = f"{quote(str(said['user']))}@" if said.get("user") else ""
    host = str(said.get("host") or said.get("hostaddr") or "localhost")
    shown = host if host.startswith("/") else f"{host}:{said.get('port') or 5432}"
    return f"postgresql://{user}{shown}/{said.get('dbname') or said.get('user') or ''}"


@contextmanager
def speaking_to(address: str) -> Iterator[None]:
    """Within it, what the driver raises comes out as an error of ours."""
    try:
        yield
    except psycopg.Error as error:
        raise _translated(address, error) from error


def _translated(address: str, error: psycopg.Error) -> PenstockError:
    line = _line(str(error))
    code = error.sqlstate or ""
    if code in _REFUSED_CODES or (not code and any(word in line for word in _REFUSED_WORDS)):
        return NotAllowed(address, line)
    if code in ("55006", "55P03"):
        return Contended(f"{address}: {line}.", hint="another process has it; stop that one, or wait")
    if not code or code.startswith(("08", "57P")) or isinstance(error, psycopg.OperationalError):
        return Unreachable(address, line, hint="check that PostgreSQL runs, and its address")
    return StorageError(f"{address}: {line}.", hint="see also the log of PostgreSQL")


def _line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return (lines or ["no reason given"])[0].rstrip(".")


def connect(url: str, *, replication: bool = False) -> Connection[Any]:
    """Raises what psycopg raises."""
    asked = conninfo_to_dict(url)
    pinned = " ".join(f"-c {name}={value}" for name, value in _PINNED.items())
    extra: dict[str, Any] = {"options": f"{asked.get('options') or ''} {pinned}".strip()}
    if replication:
        extra["replication"] = "database"
    db = psycopg.connect(
        url,
        autocommit=True,
        connect_timeout=_CONNECT_S,
        tcp_user_timeout=_UNANSWERED_MS,
        keepalives_idle=30,
        application_name=asked.get("application_name") or "penstock capture",
        **extra,
    )
    if not replication and db.info.server_version >= _IDLE_SESSIONS_FROM:
        db.execute("SET idle_session_timeout = 0")  # nobody asks anything between two heartbeats
    return db


@contextmanager
def one_moment(db: Connection[Any]) -> Iterator[Connection[Any]]:
    """What is asked within is as of one moment: a table dropped meanwhile is there whole, or not at all."""
    if db.info.transaction_status != TransactionStatus.IDLE:  # it is in one already
        yield db
        return
    with db.transaction():
        db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield db


def beat(db: Connection[Any]) -> int:
    """Moves the slot on also where nobody writes; returns where. All that was seen before is before it."""
    (lsn,) = db.execute("SELECT pg_logical_emit_message(false, 'penstock', '')::text").fetchone()  # type: ignore[misc]
    return lsn_number(lsn)


def create_slot(db: Connection[Any], slot: str) -> tuple[str, str]:
    """Where the stream of a new slot begins, and a snapshot of the same moment.

    Waits for transactions that are writing now. The snapshot can be taken as long as `db` does nothing else.
    """
    command = SQL("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput EXPORT_SNAPSHOT").format(_name(slot))
    answer = _replicate(db, command.as_string(None), ExecStatus.TUPLES_OK)
    point, snapshot = answer.get_value(0, 1), answer.get_value(0, 2)
    assert point is not None
    assert snapshot is not None
    return point.decode(), snapshot.decode()


def _name(slot: str) -> SQL:
    return SQL(f'"{slot}"')  # names of slots are a-z, 0-9 and _: checked when the source was made


def _replicate(db: Connection[Any], command: str, expected: ExecStatus) -> Any:
    answer = db.pgconn.exec_(command.encode())
    if answer.status != expected:
        raise psycopg.errors.error_from_result(answer)
    return answer


class Stream:
    """Changes as they come; used by one thread. Raises what psycopg raises."""

    def __init__(self, url: str) -> None:
        self._db = connect(url, replication=True)
        self._db.pgconn.nonblocking = 0
        self._arrivals = select.poll()  # select.select knows no descriptor from 1024 on
        self._arrivals.register(self._db.pgconn.socket, select.POLLIN)
        self._confirmed = 0
        self._ended: psycopg.Error | None = None  # why
        self.passed = 0  # what was committed before this LSN has been read
        self.is_asked = False  # the server waits to hear from us

    def start(self, slot: str, publication: str, lsn: int) -> None:
        options = SQL("(proto_version '1', publication_names {}, messages 'true')").format(
            Literal(f'"{publication}"')
        )
        command = SQL("START_REPLICATION SLOT {} LOGICAL {} {}").format(
            _name(slot), SQL(lsn_text(lsn)), options
        )
        _replicate(self._db, command.as_string(None), ExecStatus.COPY_BOTH)
        self._confirmed = self.passed = lsn

    def read(self, count: int) -> list[bytes]:
        """The next messages, each behind HEADER_BYTES: those that are here, and at most `count`."""
        get, frames = self._db.pgconn.get_copy_data, list[bytes]()
        if self._ended is not None:
            raise self._ended
        while len(frames) < count:
            size, frame = get(1)
            if size > 0 and frame[0] == _WAL:
                frames.append(bytes(frame))  # which the garbage collector need not look at
            elif size > 0 and frame[0] == _KEEPALIVE:
                self._heard(frame)
            elif size < 0:
                self._ended = _ended(self._db.pgconn)
                if not frames:
                    raise self._ended
                break  # what came before it counts
            elif not self._more():
                break
        return frames

    def _more(self) -> bool:
        ready = self.is_ready(0)
        if ready:
            self._db.pgconn.consume_input()
        return ready

    def _heard(self, keepalive: memoryview) -> None:
        end, _, asked = struct.unpack_from("!QqB", keepalive, 1)
        self.passed = max(self.passed, end)
        if asked:
            self.is_asked = True
            self._tell()

    def is_ready(self, timeout_s: float) -> bool:
        """Waits until something comes, and says whether it did."""
        return bool(self._arrivals.poll(timeout_s * 1000))

    def confirm(self, lsn: int) -> None:
        """All that was committed before `lsn` is stored."""
        if lsn > self._confirmed:
            self._confirmed = lsn
            self._tell()

    def _tell(self) -> None:
        now_us = int((time.time() - _EPOCH_S) * 1_000_000)
        lsn = self._confirmed
        self._db.pgconn.put_copy_data(struct.pack("!cQQQqB", b"r", lsn, lsn, lsn, now_us, 0))
        self._db.pgconn.flush()

    def close(self) -> None:
        with suppress(Exception):
            self._db.close()


def _ended(connection: Any) -> psycopg.Error:
    """Why the server ended the stream."""
    answer = connection.get_result()
    if answer is not None and answer.status == ExecStatus.FATAL_ERROR:
        return psycopg.errors.error_from_result(answer)
    return psycopg.OperationalError("the stream has ended")
