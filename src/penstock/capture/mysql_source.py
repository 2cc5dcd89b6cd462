"""MySQL and MariaDB as a source, by their binlog, in the rights of a replica.

A snapshot is of one moment, whose place in the binlog is known; from there on every transaction is told
whole, in the order of the commits. A table that is altered is read again, since what that does to its rows
is not in the binlog: what comes before a snapshot's place is told first, then the rows, then what follows.
Nothing is made in the database.
"""

from __future__ import annotations

import random
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import pyarrow as pa

from penstock.capture import mysql_checks, mysql_types
from penstock.capture.mysql_binlog import Binlog
from penstock.capture.mysql_checks import Described, quoted
from penstock.capture.mysql_server import Address, At, Server, lost
from penstock.capture.mysql_steps import Gathered, emptied, read_rows
from penstock.capture.mysql_transactions import Transactions
from penstock.capture.pieces import BYTES_MAX
from penstock.capture.source import EVERY_TABLE, Position, Step, Table
from penstock.errors import BadInput, BadOption
from penstock.schema import RecordSchema

_STEP_ROWS = 20_000
_DELETE_ROWS = 1_000
_WAIT_S = 0.1  # how often to say that there is nothing new
_MOVE_S = 5.0  # how often to note that others write, so that no binlog is needed that is long gone
_SERVER_IDS = (1_000_000_000, 4_000_000_000)


class MySQLSource:
    """`url`: "mysql://user:password@host:port/database", or "mariadb://…"; `tables`: all with a key.

    `server_id` is the one that no replica of the server has; by chance where none is given.
    """

    kind = "mysql"

    def __init__(
        self,
        url: str,
        *,
        name: str,
        tables: Sequence[str] | None = None,
        server_id: int | None = None,
        step_rows: int = _STEP_ROWS,
    ) -> None:
        self._at = Address.of(url)
        self._zero_dates = self._at.options.get("zero_dates")
        if self._zero_dates not in (None, "error", "null"):
            raise BadOption(f"zero_dates={self._zero_dates} is unknown.", hint='say "error" or "null"')
        self.address, self._name, self._wanted = str(self._at), name, tables
        self._server_id = server_id or random.SystemRandom().randrange(*_SERVER_IDS)
        self._step_rows = step_rows
        self._told: At | None = None  # how far the steps have told everything

    # ---- the port -----------------------------------------------------------------------------

    def tables(self) -> list[Table]:
        with closing(Server(self._at)) as server:
            return [each.table for each in mysql_checks.checked(server, self._wanted).values()]

    def steps(self, position: Position | None, again: Sequence[str] = ()) -> Iterator[Step | None]:
        self._told = None
        anew = position is None
        if position is not None:
            position, anew = self._begin(position, again)
        while True:
            if position is None or anew or position.get("snapshot"):
                steps = self._snapshot(position, anew)
            else:
                steps = self._follow(position)
            anew = False
            for step in steps:
                position = step.position if step else position
                yield step

    def stored(self, position: Position) -> None:
        """The server keeps its binlog for a time of its own choice, not for us."""

    def altered(self, old: Table, new: Table) -> bool:
        return False  # a table that is altered is read again anyway

    def remove(self, table: str, ids: Sequence[int]) -> None:
        with closing(Server(self._at)) as server:
            for start in range(0, len(ids), _DELETE_ROWS):  # each is a transaction, which may cost a sync
                some = ids[start : start + _DELETE_ROWS]
                marks = ", ".join(["%s"] * len(some))
                server.rows(f"DELETE FROM {quoted(table)} WHERE id IN ({marks})", *some)

    def mark(self) -> At:
        with closing(Server(self._at)) as server:
            return server.end()

    def passed(self, mark: Any) -> bool:
        return self._told is not None and self._told >= mark

    def status(self, position: Position | None) -> Mapping[str, Any]:
        with closing(Server(self._at)) as server:
            end, files = server.end(), server.files()
            left_out = {"left_out": mysql_checks.keyless(server)} if self._wanted is None else {}
        found: dict[str, Any] = {"binlog": f"{end.file}:{end.pos}", "kept_bytes": sum(files.values())}
        found |= left_out
        if position is not None:
            at = At.of(position)
            found["behind_bytes"] = _distance(at, files)
            found["binlog_is_there"] = at.file in files
        return found

    def drop(self) -> None:
        """Nothing was made in the database, so nothing is to be removed."""

    def close(self) -> None:
        """Each connection ends with what it was for."""

    # ---- where to begin -----------------------------------------------------------------------

    def _begin(self, position: Position, again: Sequence[str]) -> tuple[Position, bool]:
        """The position with the tables to read again, and whether all of them are, without the binlog."""
        with closing(Server(self._at)) as server:
            there = list(mysql_checks.described(server, self._wanted))
            missing = _missing(server, position)
        wanted = there if EVERY_TABLE in again else [name for name in there if name in again]
        pending = dict.fromkeys([*position.get("snapshot", ()), *wanted])
        if missing is not None and not pending.keys() >= set(there):
            raise lost(self._at, missing)
        return _with(position, snapshot=list(pending)), missing is not None

    # ---- following ----------------------------------------------------------------------------

    def _follow(self, position: Position, until: At | None = None) -> Iterator[Step | None]:
        """Whole transactions as they come, up to `until`, or to where a table has to be read again."""
        if until is not None and At.of(position) >= until:
            return
        with closing(Server(self._at)) as server:
            there = mysql_checks.described(server, self._wanted)
        tables = _tables(position)
        transactions = Transactions(
            self._at,
            At.of(position),
            tables={name: there[name].table if name in there else tables[name] for name in tables},
            wanted=self._wanted,
            special={name: each.special for name, each in there.items()},
            look=self._special_of,
        )
        binlog = Binlog(self._at, At.of(position), server_id=self._server_id, tables=self._wanted)
        with closing(binlog):
            yield from self._stream(_Following(position, transactions, binlog, until))

    def _stream(self, following: _Following) -> Iterator[Step | None]:
        position, transactions, until = following.position, following.transactions, following.until
        gathered, moved_at = Gathered(self._zero_dates), time.monotonic()
        altered: list[str] = []
        size_bytes = 0
        while True:
            # What is there already goes into one step; then nobody waits for more.
            event = following.binlog.get(_WAIT_S if transactions.is_open or not gathered.count else 0)
            done = transactions.add(event) if event is not None else None
            size_bytes += event.event_size if event is not None else 0
            if done is not None:
                gathered.add(done)
                altered += done.altered
                position = _with(position, gtid=done.gtid or position.get("gtid"))
            if transactions.is_open:
                if event is None:
                    yield None
                continue
            ends = bool(until is not None and transactions.at >= until) or bool(altered and until is None)
            moved = transactions.at > At.of(position) and (
                time.monotonic() - moved_at > _MOVE_S or transactions.at.file != position["file"]
            )
            is_large = gathered.count >= self._step_rows or size_bytes >= BYTES_MAX
            is_full = gathered.count and (event is None or is_large)
            if is_full or ends or moved:
                pending = dict.fromkeys([*position.get("snapshot", ()), *altered])
                position = _with(
                    position, at=transactions.at, snapshot=list(pending), tables=transactions.tables
                )
                self._tell(position)
                yield Step(position, gathered.changes())
                gathered, moved_at, size_bytes = Gathered(self._zero_dates), time.monotonic(), 0
            elif event is None:
                self._tell(_with(position, at=transactions.at))
                yield None
            if ends:
                return

    def _special_of(self, table: str) -> Mapping[str, str]:
        with closing(Server(self._at)) as server:
            found = mysql_checks.described_new(server, table)
        return found.special if found else {}

    def _tell(self, position: Position) -> None:
        if not position.get("snapshot"):
            self._told = At.of(position)

    # ---- snapshots ----------------------------------------------------------------------------

    def _snapshot(self, position: Position | None, anew: bool) -> Iterator[Step | None]:
        """Of one moment: what the binlog has up to it, unless `anew`, and then the tables, whole."""
        with closing(Server(self._at)) as server:
            at, moment = _moment(server), datetime.now(UTC)
            if position is not None and not anew:
                position, anew = yield from self._up_to(position, at)
            there = mysql_checks.described(server, self._wanted)
            before = {} if position is None else _tables(position)
            gone = [table for name, table in before.items() if anew and name not in there]
            names = list(there) if position is None or anew else list(position["snapshot"])
            fresh = [there[name] for name in names if name in there]
            known = {name: each.table for name, each in there.items()} | ({} if anew else before)
            known |= {each.table.name: each.table for each in fresh}
            position = _with(position or {}, at=at, gtid=server.gtids(at), snapshot=names, tables=known)
            tables = [each.table for each in fresh]
            yield Step(position, [emptied(table, moment) for table in gone], begins=tables)
            for each in fresh:
                yield from self._rows(server, each, position, moment)
            position = _with(position, snapshot=[])
            self._tell(position)
            yield Step(position, ends=tables)

    def _up_to(self, position: Position, at: At) -> Generator[Step | None, None, tuple[Position, bool]]:
        """What the binlog has up to a moment. True where it has something that cannot be told.

        That is no reason to stop where every table is read again: so there is a way on.
        """
        try:
            for step in self._follow(position, until=at):
                position = step.position if step else position
                yield step
        except BadInput:
            with closing(Server(self._at)) as server:
                there = mysql_checks.described(server, self._wanted)
            if not set(there) <= set(position["snapshot"]):
                raise
            return position, True
        return position, False

    def _rows(self, server: Server, of: Described, position: Position, moment: datetime) -> Iterator[Step]:
        columns = ", ".join(mysql_types.selected(column, quoted(column.name)) for column in of.columns)
        statement = f"SELECT {columns} FROM {quoted(of.table.name)}"
        for rows in server.pieces(statement, self._step_rows):
            told = read_rows(of.table, of.columns, rows, moment, zero_dates=self._zero_dates)
            yield Step(position, [told])


@dataclass(frozen=True, slots=True)
class _Following:
    position: Position
    transactions: Transactions
    binlog: Binlog
    until: At | None


def _moment(server: Server) -> At:
    """Begin a transaction that sees one moment; where in the binlog that is.

    MariaDB knows that of a transaction. MySQL is asked while nobody writes, for some milliseconds.
    """
    server.run("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    if server.is_mariadb:
        server.run("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        told = {
            str(name).lower(): value for name, value in server.rows("SHOW STATUS LIKE 'binlog_snapshot_%'")
        }
        return At(str(told["binlog_snapshot_file"]), int(told["binlog_snapshot_position"]))
    server.run("FLUSH TABLES WITH READ LOCK")
    try:
        server.run("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        return server.end()
    finally:
        server.run("UNLOCK TABLES")


def _missing(server: Server, position: Position) -> str | None:
    """Why the server cannot go on from there; None where it can."""
    at, files = At.of(position), server.files()
    if at.file not in files:
        return f"{at.file} is needed, and it has {', '.join(list(files)[:1] + list(files)[-1:])}"
    if at.pos > files[at.file]:
        return f"{at.file} is needed from {at.pos} on, and it ends at {files[at.file]}"
    there, known = server.gtids(at), position.get("gtid")
    if known and there is not None and not set(known.split(",")) <= set(there.split(",")):
        return f"at {at.file}:{at.pos} it has transaction {there or 'none'}, and it was {known}"
    return None


def _with(
    position: Position,
    *,
    at: At | None = None,
    gtid: str | None = None,
    snapshot: Sequence[str] | None = None,
    tables: Mapping[str, Table] | None = None,
) -> dict[str, Any]:
    made = dict(position)
    if at is not None:
        made |= {"file": at.file, "pos": at.pos}
    if gtid is not None:
        made["gtid"] = gtid
    if snapshot is not None:
        made["snapshot"] = list(snapshot)
    if tables is not None:
        made["tables"] = {name: _key_ddl(table) for name, table in tables.items()}
    return made


def _tables(position: Position) -> dict[str, Table]:
    """Those there were, with their keys alone: enough to tell that one is gone."""
    keys = {name: RecordSchema.of(told).arrow for name, told in position.get("tables", {}).items()}
    return {name: Table(name, key, tuple(key.names)) for name, key in keys.items()}


@lru_cache(maxsize=4_096)
def _key_ddl(table: Table) -> str:
    return RecordSchema(pa.schema([table.columns.field(name) for name in table.key])).ddl


def _distance(at: At, files: Mapping[str, int]) -> int:
    """How many bytes of the binlog come after a place."""
    after = sum(size for file, size in files.items() if At(file, 0) > At(at.file, 0))
    return after + max(0, files.get(at.file, 0) - at.pos)
