"""Events of the binlog to whole transactions.

A transaction counts with the event that commits it. One that is not committed, since the server was killed
while it wrote it, is followed by the next one's begin, and is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pymysqlreplication.event import (
    ExecuteLoadQueryEvent,
    GtidEvent,
    MariadbGtidEvent,
    NotImplementedEvent,
    QueryEvent,
    RotateEvent,
    XAPrepareEvent,
    XidEvent,
)
from pymysqlreplication.row_event import (
    PartialUpdateRowsEvent,
    RowsEvent,
    TableMapEvent,
    UpdateRowsEvent,
    WriteRowsEvent,
)

from penstock.capture import envelope, mysql_statements
from penstock.capture.mysql_rows import Reader, reader_of
from penstock.capture.mysql_server import RESNAPSHOT, Address, At
from penstock.capture.mysql_statements import ALL, ALTERED, GONE
from penstock.capture.source import Table
from penstock.errors import BadInput, NotSupported

_STANDALONE = 1  # a flag of MariaDB's: one statement, and nothing commits it
_COMPRESSED = {40, *range(165, 172)}  # MySQL's whole transactions, MariaDB's events

Row = tuple[Any, ...] | None
Change = tuple[str, Row, Row]


@dataclass(slots=True)
class Form:
    """A table as the binlog has it from some place on, and how its rows are read."""

    table: Table
    reader: Reader


@dataclass(slots=True)
class Piece:
    """Changes of one table next to each other: op, before, after."""

    form: Form | Table  # of a table that was emptied no rows are read
    changes: list[Change]


@dataclass(slots=True)
class Transaction:
    """`end` is behind its commit: a place to go on from."""

    end: At
    id: str
    gtid: str | None
    committed_at: int  # seconds
    pieces: list[Piece] = field(default_factory=list)
    altered: Sequence[str] = ()

    @property
    def count(self) -> int:
        return sum(len(piece.changes) for piece in self.pieces)


class Transactions:
    """`tables`: those there are at `at`. `special`: of each, its columns that are UUID or INET.

    `look` tells them of a table that is new, and raises where it cannot be followed.
    """

    def __init__(
        self,
        address: Address,
        at: At,
        *,
        tables: Mapping[str, Table],
        wanted: Sequence[str] | None,
        special: Mapping[str, Mapping[str, str]],
        look: Callable[[str], Mapping[str, str]] = lambda _name: {},
    ) -> None:
        self.at = at  # outside of a transaction: how far the binlog is read
        self.is_open = False
        self._address, self._file = address, at.file
        self._tables, self._wanted, self._special = dict(tables), wanted, dict(special)
        self._look = look
        self._forms: dict[int, Form | None] = {}
        self._cached: dict[Any, Form] = {}
        self._pieces: list[Piece] = []
        self._gtid: str | None = None
        self._standalone = False

    @property
    def tables(self) -> Mapping[str, Table]:
        """As they are at the end of the last transaction."""
        return self._tables

    def add(self, event: Any) -> Transaction | None:
        """One more event; the transaction that ends with it."""
        if isinstance(event, RotateEvent):
            self._rotate(event)
            return None
        done = self._told(event)
        pos = event.packet.log_pos
        if pos > self.at.pos and not self.is_open:  # what the server only makes up has an older one, or 0
            self.at = At(self._file, pos)
        return done

    def _told(self, event: Any) -> Transaction | None:
        if isinstance(event, TableMapEvent):
            self._forms[event.table_id] = self._form(event)
        elif isinstance(event, RowsEvent):
            self._rows(event)
        elif isinstance(event, MariadbGtidEvent):
            self._begin(event.gtid, standalone=bool(event.flags & _STANDALONE))
        elif isinstance(event, GtidEvent):
            self._begin(event.gtid, standalone=True)  # MySQL says BEGIN after it
        elif isinstance(event, XidEvent):
            return self._commit(event)
        elif isinstance(event, QueryEvent):
            return self._query(event)
        elif isinstance(event, XAPrepareEvent):
            return self._prepared(event)
        elif isinstance(event, ExecuteLoadQueryEvent):
            self._refuse_statement("LOAD DATA", list(self._tables)[:1])
        elif isinstance(event, NotImplementedEvent) and event.event_type in _COMPRESSED:
            raise NotSupported(
                f"{self._address}: the binlog is compressed, which cannot be read.",
                hint="SET GLOBAL log_bin_compress = OFF (MySQL: binlog_transaction_compression = OFF), then: "
                f"{RESNAPSHOT}",
            )
        return None

    # ---- begin and end ------------------------------------------------------------------------

    def _rotate(self, event: RotateEvent) -> None:
        self._forms, self._pieces, self.is_open = {}, [], False
        file = event.next_binlog
        self._file = file.decode() if isinstance(file, bytes) else str(file)
        self.at = At(self._file, int(event.position))

    def _check_order(self, pos: int) -> None:
        if pos < self.at.pos:
            raise NotSupported(
                f"{self._address}: the binlog file {self._file} is longer than 4 GB, which cannot be read.",
                hint=f"lower max_binlog_size, and split transactions that are larger; then: {RESNAPSHOT}",
            )

    def _begin(self, gtid: str | None, *, standalone: bool) -> None:
        self._pieces, self._gtid = [], gtid
        self._standalone, self.is_open = standalone, True

    def _commit(self, event: Any, altered: Sequence[str] = ()) -> Transaction:
        self._check_order(event.packet.log_pos)
        end = At(self._file, event.packet.log_pos)
        pieces, gtid = self._pieces, self._gtid
        self._pieces, self._gtid, self.is_open = [], None, False
        return Transaction(end, gtid or str(end), gtid, event.timestamp, pieces, altered)

    def _prepared(self, event: XAPrepareEvent) -> Transaction | None:
        if event.one_phase or not self._pieces:
            return self._commit(event)
        table = _table(self._pieces[0].form).name
        raise NotSupported(
            f'{self._address}: a transaction in two phases (XA PREPARE) has changed "{table}"; whether it is '
            "committed is not known when its changes come.",
            hint=f"use plain transactions for captured tables; to go on: {RESNAPSHOT}",
        )

    def _query(self, event: QueryEvent) -> Transaction | None:
        statement = mysql_statements.plain(event.query)
        word = statement[:12].upper()
        if word == "BEGIN":
            self._begin(self._gtid, standalone=False)
            return None
        if word == "COMMIT":
            return self._commit(event)
        if word == "ROLLBACK":
            self._pieces = []
            return self._commit(event)
        if word.startswith(("SAVEPOINT", "RELEASE", "XA ")):
            return None if self.is_open and not self._standalone else self._commit(event)
        if word.startswith("ROLLBACK TO"):
            raise NotSupported(
                f"{self._address}: ROLLBACK TO in a transaction that writes to a table without transactions.",
                hint=f"keep such tables out of it; to go on: {RESNAPSHOT}",
            )
        altered = self._statement(statement, event.schema.decode())
        inside = self.is_open and not self._standalone
        return None if inside else self._commit(event, altered)

    def _statement(self, statement: str, default: str) -> list[str]:
        """Tables that it alters, so that they have to be read again."""
        if mysql_statements.changes_rows(statement):
            ours = self._address.database
            if default == ours or mysql_statements.mentions(statement, ours):
                named = [name for name in self._tables if mysql_statements.mentions(statement, name)]
                self._refuse_statement(statement, named)
            return []
        altered = []
        for each in mysql_statements.touched(statement, default, self._address.database):
            names = list(self._tables) if each.table == ALL else [each.table]
            for name in names:
                if each.what == ALTERED and self._is_wanted(name):
                    altered.append(name)
                elif name in self._tables:
                    self._pieces.append(Piece(self._tables[name], [(envelope.TRUNCATE, None, None)]))
                    if each.what == GONE:
                        del self._tables[name]
        return altered

    def _refuse_statement(self, statement: str, named: Sequence[str]) -> None:
        if named:
            raise BadInput(
                f'{self._address}: the binlog has a statement instead of rows for "{named[0]}": '
                f"{statement[:80]}",
                hint="nobody may SET binlog_format = STATEMENT or MIXED for a captured table; to go on: "
                f"{RESNAPSHOT}",
            )

    # ---- rows ---------------------------------------------------------------------------------

    def _is_wanted(self, table: str) -> bool:
        return self._wanted is None or table in self._wanted

    def _rows(self, event: Any) -> None:
        form = self._forms.get(event.table_id)
        if form is None:
            return
        body = self._body(event, form)
        try:
            changes = _changes(event, form.reader.rows(body))
        except UnicodeDecodeError as error:
            raise BadInput(
                f'a text of "{form.table.name}" has bytes that its character set has not ({error}).',
                hint=f"mend that row, and to go on: {RESNAPSHOT}; or have the column as VARBINARY",
            ) from error
        if self._pieces and self._pieces[-1].form is form:
            self._pieces[-1].changes += changes
        else:
            self._pieces.append(Piece(form, changes))

    def _body(self, event: Any, form: Form) -> bytes:
        count = len(form.reader.columns)
        told = [event.columns_present_bitmap]
        if isinstance(event, UpdateRowsEvent):
            told.append(event.columns_present_bitmap2)
        whole = all(int.from_bytes(each, "little") & ((1 << count) - 1) == (1 << count) - 1 for each in told)
        if not whole or isinstance(event, PartialUpdateRowsEvent):
            raise BadInput(
                f'{self._address}: the binlog has only parts of rows of "{form.table.name}".',
                hint="SET GLOBAL binlog_row_image = 'FULL' (MySQL: and binlog_row_value_options = ''), and "
                f"in no session otherwise; to go on: {RESNAPSHOT}",
            )
        return bytes(event.packet.read(event.event_size - event.packet.read_bytes))

    def _form(self, event: TableMapEvent) -> Form | None:
        if not self._is_wanted(event.table):
            return None
        told = event.optional_metadata
        key = [*told.simple_primary_key_list, *told.primary_keys_with_prefix]
        signature = (event.table, tuple(key), tuple(_signature(each) for each in event.columns))
        if signature not in self._cached:
            made = self._made(event, key)
            if made is None:
                return None
            self._cached[signature] = made
        form = self._cached[signature]
        self._tables[event.table] = form.table
        return form

    def _made(self, event: TableMapEvent, key: list[int]) -> Form | None:
        name, columns = event.table, event.columns
        known = name in self._tables or self._wanted is not None
        if not all(each.name for each in columns):
            raise BadInput(
                f'{self._address}: the binlog does not tell the columns of "{name}".',
                hint=f"SET GLOBAL binlog_row_metadata = 'FULL'; to go on: {RESNAPSHOT}",
            )
        if not key:
            if known:
                raise BadInput(
                    f'{self._address}: table "{name}" has no primary key any more.',
                    hint=f"give it one: ALTER TABLE `{name}` ADD PRIMARY KEY (…); then: {RESNAPSHOT}",
                )
            return None
        if name not in self._tables:
            self._special[name] = self._look(name)
        reader = reader_of(columns, self._special.get(name, {}))
        if isinstance(reader, str):
            raise NotSupported(
                f'{self._address}: column "{reader}" of "{name}" has a type that the log has not.',
                hint="leave the table out (tables=[…]), or change the column",
            )
        schema = pa.schema([pa.field(each.name, each.dtype) for each in reader.columns])
        return Form(Table(name, schema, tuple(columns[number].name for number in key)), reader)


def _changes(event: Any, rows: Iterator[tuple[Any, ...]]) -> list[Change]:
    if isinstance(event, UpdateRowsEvent):
        return [(envelope.UPDATE, before, after) for before, after in zip(rows, rows, strict=True)]
    if isinstance(event, WriteRowsEvent):
        return [(envelope.INSERT, None, row) for row in rows]
    return [(envelope.DELETE, row, None) for row in rows]


def _table(form: Form | Table) -> Table:
    return form if isinstance(form, Table) else form.table


def _signature(column: Any) -> tuple[Any, ...]:
    return tuple(
        tuple(value) if isinstance(value, list) else value for _, value in sorted(column.__dict__.items())
    )
