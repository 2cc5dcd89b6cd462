"""PostgreSQL as a source: its own logical decoding, read from a replication slot.

A slot is a promise of PostgreSQL to keep the WAL that we have not stored. So everything is confirmed as soon
as it is stored, also the WAL of others: then a step has no changes, only a position. What is confirmed is
always a stored position; hence a slot that is ahead of ours was read by somebody else, or the log is an older
one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psycopg
from psycopg import Connection
from psycopg.sql import SQL, Identifier

from penstock.capture import postgres_publication, postgres_slot
from penstock.capture.pgoutput import Relation
from penstock.capture.postgres_again import Again
from penstock.capture.postgres_captured import Captured, captured_in, marks_of
from penstock.capture.postgres_catalog import Catalog, CatalogTable, Form, table_name
from penstock.capture.postgres_checks import Found, Problem, checked, left_out, raise_if_any
from penstock.capture.postgres_connection import (
    Stream,
    address_of,
    beat,
    connect,
    lsn_number,
    lsn_text,
    one_moment,
    speaking_to,
)
from penstock.capture.postgres_slot import check_name
from penstock.capture.postgres_snapshot import InitialSnapshot, rows_by_key
from penstock.capture.postgres_transactions import Transactions
from penstock.capture.postgres_watch import OtherTables, TableWatch
from penstock.capture.source import EVERY_TABLE, Changes, Key, Position, Step, Table, check_columns
from penstock.errors import ChangesLost, Contended, Unreachable

SNAPSHOT, STREAM = "snapshot", "stream"
_TURN_S = 0.2
_AGAIN_S = 0.02  # between looks whether the next chunk of a snapshot can be had
_AT_ONCE = 1_000  # messages
_MANY = 500  # changes: where there are so many, more will come
_GATHER_S, _PAUSE_S = 0.05, 0.005
_BUSY_S = 15.0  # a connection that was cut may hold the slot a little longer


class PostgresSource:
    """The tables of one database, as one capture."""

    kind = "postgres"

    def __init__(
        self,
        url: str,
        *,
        name: str,
        tables: Sequence[str] | None = None,
        slot: str | None = None,
        publication: str | None = None,
        heartbeat_s: float = 10.0,
        chunk_rows: int = 10_000,
        step_rows: int = 20_000,
        as_text: Sequence[str] = (),
    ) -> None:
        """`tables`: None is every table that has a key when we start. `as_text`: columns ("orders.due")
        to capture as PostgreSQL prints them, for values that our type of it cannot hold, such as infinity."""
        self.address = address_of(url)
        self._url, self._name = url, name
        self._wanted = None if tables is None else list(tables)
        plain = f"penstock_{re.sub(r'[^a-z0-9_]', '_', name.lower())}"
        self._slot = check_name("slot", slot or plain)
        self._publication = check_name("publication", publication or plain)
        self._heartbeat_s, self._chunk_rows, self._step_rows = heartbeat_s, chunk_rows, step_rows
        self._catalog = Catalog(as_text)
        self._db: Connection[Any] | None = None
        self._stream: Stream | None = None
        self._stored_lsn = 0
        self._reached_lsn = 0  # what was committed before it is told
        self._published: dict[str, list[int]] = {}  # rows of an outbox that can go

    def __repr__(self) -> str:
        return f"<PostgresSource {self._name}, {self.address}>"

    def problems(self) -> list[Problem]:
        """Everything that keeps the database from being captured; none where it can be."""
        with speaking_to(self.address):
            return self._checked({}).problems

    def tables(self) -> list[Table]:
        with speaking_to(self.address):
            return [self._catalog.form_of(table).table for table in self._capturable()]

    def steps(self, position: Position | None, again: Sequence[str] = ()) -> Iterator[Step | None]:
        with speaking_to(self.address):
            self.close()
            known = captured_in(position)
            found = self._checked(known)
            raise_if_any(self.address, found.problems)
            names = self._names_of(again, found.tables)
            if position is not None and position["phase"] == STREAM:
                reason = postgres_slot.lost_because(self._asking(), self._slot, self._publication, position)
                if reason is None:
                    yield from self._followed(position, names)
                    return
                if EVERY_TABLE not in again:
                    raise ChangesLost(self._name, self.address, reason)
            elif position is None:
                postgres_slot.check_free(self._asking(), self._slot)
            begun = yield from self._snapshot(found, known)
            yield from self._followed(begun, [])

    def stored(self, position: Position) -> None:
        if position["phase"] != STREAM:
            return
        self._stored_lsn = lsn_number(position["lsn"])
        if self._stream is not None:
            with suppress(psycopg.Error):  # a stream that is broken says so when it is read
                self._stream.confirm(self._stored_lsn)

    def altered(self, old: Table, new: Table) -> bool:
        """A column that was added or renamed has values in rows that nobody touched; a new type converts.

        One that has moved behind others was made anew, or has changed names with them.
        """
        kept = [name for name in old.columns.names if name in new.columns.names]
        return [name for name in new.columns.names if name in kept] != kept or any(
            column.name not in kept or old.columns.field(column.name).type != column.type
            for column in new.columns
        )

    def remove(self, table: str, ids: Sequence[int]) -> None:
        self._published.setdefault(table, []).extend(ids)

    def mark(self) -> int:
        """A message of our own, which comes behind everything that is committed now."""
        with speaking_to(self.address), connect(self._url) as db:
            return beat(db)

    def passed(self, mark: Any) -> bool:
        return self._reached_lsn >= int(mark)

    def status(self, position: Position | None) -> Mapping[str, Any]:
        with speaking_to(self.address), connect(self._url) as db:
            found = postgres_slot.status(db, self._slot, self._publication, position)
            # With a catalogue of its own: this may be asked while another thread reads the stream.
            return found if self._wanted is not None else {**found, "left_out": left_out(db, Catalog(()))}

    def drop(self) -> None:
        """A slot that is in use stays, and says so. A publication that we did not make stays."""
        self.close()
        with speaking_to(self.address), connect(self._url) as db:
            self._until_free(db)
            postgres_slot.drop_slot(db, self._slot)
            postgres_publication.drop_publication(db, self._publication)

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
        db, self._db = self._db, None
        if db is not None:
            with suppress(Exception):
                db.close()

    # ---- what is there ----------------------------------------------------------------------------

    def _asking(self) -> Connection[Any]:
        if self._db is None or self._db.closed:
            self._db = connect(self._url)
        return self._db

    def _checked(self, known: Mapping[str, Captured]) -> Found:
        names = {"slot": self._slot, "publication": self._publication}
        with one_moment(self._asking()) as db:
            return checked(db, self._catalog, self._wanted, known, **names)

    def _capturable(self) -> list[CatalogTable]:
        found = self._checked({})
        raise_if_any(self.address, found.problems)
        return found.tables

    def _names_of(self, again: Sequence[str], tables: Sequence[CatalogTable]) -> list[str]:
        """Without those that went since somebody asked for them."""
        return [table.name for table in tables if table.name in again or EVERY_TABLE in again]

    def _until_free(self, db: Connection[Any]) -> None:
        """Waits a little for the slot to be nobody's."""
        until = time.monotonic() + _BUSY_S
        while (pid := postgres_slot.user_of(db, self._slot)) is not None:
            if time.monotonic() > until:
                raise Contended(
                    f'slot "{self._slot}" of {self.address} is in use by another process there ({pid}).',
                    hint=f"stop the other run of capture {self._name}, or give this one another name",
                )
            time.sleep(_TURN_S / 4)

    # ---- the first snapshot -----------------------------------------------------------------------

    def _snapshot(
        self, found: Found, known: Mapping[str, Captured]
    ) -> Generator[Step | None, None, Position]:
        """Whatever an interrupted one has left is dropped; returns the position at its end."""
        tables, captured = found.tables, found.captured(found.tables)
        position = {"phase": SNAPSHOT, "slot": self._slot, "tables": marks_of(captured)}
        forms = [self._catalog.form_of(table).table for table in tables]
        if not known:
            check_columns("as_text", self._catalog.as_text, forms)
        gone = [name for name in known if name not in found.names.values()]
        # Stored before there is a slot: so a slot without a position is never one of ours.
        yield Step(position, begins=forms, gone=gone)
        db = self._asking()
        self._until_free(db)
        postgres_slot.drop_slot(db, self._slot)
        postgres_publication.publish(db, tables, self._publication)
        snapshot = InitialSnapshot(self._url, self._slot, chunk_rows=self._chunk_rows)
        for changes in snapshot.changes(db, self._catalog, tables):
            yield None if changes is None else Step(position, [changes])
        begun = self._position(snapshot.lsn, None, captured)
        yield Step(begun, ends=forms)
        return begun

    # ---- the stream -------------------------------------------------------------------------------

    def _followed(self, position: Position, names: Sequence[str]) -> Iterator[Step | None]:
        """The stream, begun anew whenever other tables are there. `names`: those to read again."""
        while True:
            position = yield from self._streamed(position, names)
            names = ()

    def _streamed(self, position: Position, names: Sequence[str]) -> Generator[Step | None, None, Position]:
        """Until other tables are there; returns the position at which those are captured."""
        lsn = self._stored_lsn = lsn_number(position["lsn"])
        known = captured_in(position)
        again = Again(self._catalog, position.get("again"), known, chunk_rows=self._chunk_rows)
        self._reached_lsn = 0
        if names:
            again.add(names, beat(self._asking()))
            yield Step(self._position(lsn, again, known))  # stored: who asked for it asks once
        self._until_free(self._asking())
        stream = self._stream = Stream(self._url)
        stream.start(self._slot, self._publication, lsn)
        watch = TableWatch(self.address, self._catalog, self._publication, known, self._checked)
        transactions = Transactions(
            lambda relation: self._form_of(relation, watch), after_lsn=lsn, covers=again.covers
        )
        try:
            return (yield from self._read(stream, transactions, again, watch))
        except GeneratorExit:
            with suppress(psycopg.Error):  # or else with the next start
                self._remove_published()
            raise
        except psycopg.errors.UndefinedObject as error:
            # The publication was dropped: also one that was made anew is not there for older changes.
            raise ChangesLost(self._name, self.address, str(error).splitlines()[0]) from error

    def _read(
        self, stream: Stream, transactions: Transactions, again: Again, watch: TableWatch
    ) -> Generator[Step | None, None, Position]:
        beat_at = time.monotonic()
        while True:
            _fill(stream, transactions, self._step_rows)
            if self._stream is not stream:
                raise Unreachable(self.address, "the source was closed")
            other = watch.other_tables(self._asking(), transactions.lsn)
            self._reached_lsn = 0 if again or other or watch.is_open else transactions.lsn
            if transactions.count:
                changes, aside = transactions.take()
                again.notice(changes)
                told = [self._findable(each) for each in changes]
                yield Step(self._position(transactions.lsn, again, watch.known), told, aside=aside)
            if other is not None:
                return (yield from self._taken_on(other, again, transactions.lsn))
            piece = again.work(self._asking(), transactions.lsn, transactions.form) if again else None
            if piece is not None:
                position = self._position(transactions.lsn, again, watch.known)
                yield Step(position, piece.changes, piece.begins, piece.ends)
            is_due = time.monotonic() - beat_at >= self._heartbeat_s
            # A server that shuts down waits until we have confirmed everything.
            if (is_due or stream.is_asked) and transactions.lsn > self._stored_lsn:
                yield Step(self._position(transactions.lsn, again, watch.known))
            stream.is_asked = False
            if is_due:
                beat_at = time.monotonic()
                beat(self._asking())
                watch.look_soon()
            if self._published:
                self._remove_published()
            if not stream.is_ready(0 if piece else _AGAIN_S if again else _TURN_S):
                yield None

    def _taken_on(self, other: OtherTables, again: Again, lsn: int) -> Generator[Step | None, None, Position]:
        """What is gone is emptied, what is new is published, and read."""
        again.add(other.fresh, beat(self._asking()))
        position = self._position(lsn, again, other.captured)
        yield Step(position, gone=other.gone)  # stored before a table can begin to come
        self.close()
        postgres_publication.publish(self._asking(), other.tables, self._publication)
        return position

    def _findable(self, changes: Changes) -> Changes:
        """Where a value may be missing, rows can be looked up."""
        if not changes.unchanged:
            return changes

        def find(keys: Sequence[Key]) -> Mapping[Key, Mapping[str, Any]]:
            with speaking_to(self.address):
                names = list(changes.unchanged)
                return rows_by_key(self._asking(), self._catalog, changes.table, names, keys)

        return replace(changes, find=find)

    def _remove_published(self) -> None:
        for table, ids in self._published.items():
            place = Identifier(*table.split("."))
            self._asking().execute(SQL("DELETE FROM {} WHERE id = ANY(%s)").format(place), (ids,))
        self._published = {}

    def _form_of(self, relation: Relation, watch: TableWatch) -> Form | None:
        """Of what is known; a table that was renamed goes on under its new name. Others are read soon."""
        name = table_name(relation.schema, relation.name)
        if not watch.is_called(relation.oid, name):
            is_free = name not in watch.known and (self._wanted is None or self._wants(name))
            goes_on = is_free and watch.has(relation.oid)
            watch.strayed(relation.oid, name if goes_on else None)
            if not goes_on:
                return None
        return self._catalog.form_in_stream(self._asking(), relation)

    def _wants(self, name: str) -> bool:
        return any(wanted.removeprefix("public.") == name for wanted in self._wanted or ())

    def _position(self, lsn: int, again: Again | None, known: Mapping[str, Captured]) -> Position:
        position: dict[str, Any] = {"phase": STREAM, "lsn": lsn_text(lsn), "tables": marks_of(known)}
        return {**position, "again": again.state} if again else position


def _fill(stream: Stream, transactions: Transactions, step_rows: int) -> None:
    """Reads what is here already; but what comes may be nothing of ours, for long.

    While much comes it waits for more: larger steps are less work for us, and a server that need not wake
    anybody for each of its messages sends more of them.
    """
    began, has_waited = time.monotonic(), False
    while transactions.count < step_rows and (took_s := time.monotonic() - began) < _TURN_S:
        frames = stream.read(_AT_ONCE)
        transactions.feed(frames)
        transactions.passed(stream.passed)
        if frames:
            has_waited = False
        elif has_waited or transactions.count < _MANY or took_s > _GATHER_S:
            return
        else:
            time.sleep(_PAUSE_S)
            has_waited = True
