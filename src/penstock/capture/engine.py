"""Source to log: the changes of a database and the position they lead to, in one atomic append.

So what is in the log and where the source goes on never disagree, whatever is killed when: nothing is lost,
and nothing is there twice.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.capture import alive, envelope, outbox
from penstock.capture.progress import Known, Progress
from penstock.capture.source import EVERY_TABLE, Aside, Changes, Source, Step, Table
from penstock.capture.topics import Topics
from penstock.capture.unchanged import Memory
from penstock.errors import BadOption, Contended, PenstockError, StorageError
from penstock.log.log import AtomicProducer, Log
from penstock.log.settings import check_name
from penstock.log.topic import Topic
from penstock.schema import RecordSchema, did_you_mean

PRODUCER = "capture."
_PAUSE_S = 0.2
_PAUSE_S_MAX = 10.0
_TRIES_ONCE = 5
_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class _Stored:
    """What one step becomes."""

    records: dict[Topic | str, pa.Table]
    progress: Progress
    published: dict[str, list[int]]  # rows of an outbox, by table


class Capture:
    """One database into one log. `run` belongs to one thread; the rest may be asked by others."""

    def __init__(self, log: Log, name: str, source: Source, *, retention: str | float | None = None) -> None:
        check_name("capture", name)
        self.name, self.source = name, source
        self._log = log
        self._topics = Topics(log, name, retention=retention)
        self._memory = Memory()
        self._looked = 0.0  # when it was last seen whether somebody wants a snapshot
        self.last_error: str | None = None  # what keeps it from going on, None when nothing does
        self.retries = 0  # since it last went on
        self.snapshot: tuple[str, int] | None = None  # while one is taken: the table, and rows so far

    def progress(self) -> Progress:
        """How far it is, as stored."""
        return Progress.of(
            self._log.port.producer_position(f"{PRODUCER}{self.name}").position, self._topics.known_rows()
        )

    def status(self) -> dict[str, Any]:
        """What the log knows of it, without asking the source."""
        progress = self.progress()
        reading = [table for table, known in progress.tables.items() if known.snapshot_from is not None]
        gone = [table for table, known in progress.tables.items() if known.is_gone]
        return {
            "capture": self.name,
            "phase": "not started" if progress.source is None else "snapshot" if reading else "following",
            "changes": progress.changes,
            "tables": {table: known.version for table, known in progress.tables.items() if not known.is_gone},
            "gone": gone,
            "position": dict(progress.source or {}),
            "last_error": self.last_error,
        }

    def left_out(self) -> list[str]:
        """Tables that cannot be captured as they are, and so are nowhere; none if nobody answers."""
        try:
            return list(self.source.status(None).get("left_out", ()))
        except PenstockError:
            return []

    def drop(self) -> None:
        """Remove what it made in the source. Run again, it begins with a snapshot; the topics stay.

        A source that cannot let go, since it is being read, says so; whoever reads it then goes on.
        """
        self.source.drop()
        with self._log.producer(f"{PRODUCER}{self.name}") as producer:  # whoever runs it can store no more
            progress = Progress.of(producer.position(), self._topics.known_rows())
            self._append(producer, {}, progress, replace(progress, source=None, marks={}))

    def prepare(self) -> list[Table]:
        """Check the source, and create the topics: so that definitions can read them before the first row."""
        tables = self.source.tables()
        self._topics.check(tables)
        known, there = self.progress().tables, set(self._log.topics())
        for table in tables:
            if table.name not in known:
                self._check_unused(table)
            topic = self._topics.of(table).rows.name
            if table.name in known and topic not in there:  # somebody deleted it: the rows are told again
                self.request_snapshot([table.name])
        return tables

    def _check_unused(self, table: Table) -> None:
        try:
            self._topics.check_unused(table)
        except BadOption:
            if table.name not in self.progress().tables:  # else another process has begun since we looked
                raise

    def request_snapshot(self, tables: Sequence[str]) -> None:
        """Ask for a new snapshot of these tables, all of them with "*"; it is taken by whoever runs this."""
        known = self.progress().tables
        for table in tables:
            if table not in known and table != EVERY_TABLE:
                raise BadOption(
                    f'capture "{self.name}" has no table "{table}".',
                    hint=did_you_mean(table, [*known] or ["none yet"]),
                )
        self._topics.requests.append({"tables": list(tables)})

    def close(self) -> None:
        self.source.close()

    def run(self, stop: threading.Event, *, once: bool = False) -> None:
        """Until `stop` is set, or with `once` until everything that the source has now is stored.

        A source that is away is tried again and again, with pauses. Raises what another try cannot mend.
        """
        pause_s, in_vain = _PAUSE_S, 0
        while not stop.is_set():
            before = self.progress().changes
            try:
                self._run(stop, once)
            except (StorageError, Contended) as error:
                self.last_error, went_on = str(error), self.progress().changes > before
                self.retries = in_vain = 0 if went_on else in_vain + 1
                if once and in_vain >= _TRIES_ONCE:
                    raise
                pause_s = _PAUSE_S if went_on else min(pause_s * 2, _PAUSE_S_MAX)
                stop.wait(pause_s)
            except PenstockError as error:
                self.last_error = str(error)
                raise
            else:
                return

    def _run(self, stop: threading.Event, once: bool) -> None:
        self.prepare()
        with self._log.producer(f"{PRODUCER}{self.name}") as producer:
            progress = Progress.of(producer.position(), self._topics.known_rows())
            progress = self._without_ghosts(producer, progress)
            self._remove_published(progress)
            mark = self.source.mark() if once else None
            while not stop.is_set():
                progress, wanted = self._requested(progress)
                steps = self.source.steps(progress.position, wanted)
                try:
                    progress = self._follow(producer, progress, steps, stop, mark)
                finally:
                    if isinstance(steps, Generator):  # now, and not when somebody collects it
                        steps.close()
                if once and self.source.passed(mark) and not self._is_asked(progress):
                    return

    def _follow(
        self,
        producer: AtomicProducer,
        progress: Progress,
        steps: Iterator[Step | None],
        stop: threading.Event,
        mark: Any,
    ) -> Progress:
        """Store step after step, until there is something to do between two of them."""
        for step in steps:
            self.last_error, self.retries = None, 0
            if step is not None:
                progress = self._store(producer, progress, step)
                self.source.stored(step.position)
            done = mark is not None and self.source.passed(mark)
            if stop.is_set() or done or self._is_asked_now_and_then(progress):
                return progress
        return progress

    # ---- one step -----------------------------------------------------------------------------

    def _store(self, producer: AtomicProducer, progress: Progress, step: Step) -> Progress:
        stored = self._told(progress, step)
        self._append(producer, stored.records, progress, stored.progress)
        for table, ids in stored.published.items():
            self.source.remove(table, ids)
        return self._without_ghosts(producer, stored.progress)

    def _append(
        self,
        producer: AtomicProducer,
        records: dict[Topic | str, pa.Table],
        before: Progress,
        after: Progress,
    ) -> None:
        news = after.news(before)
        if news is not None:
            records[self._topics.known.name] = news
        producer.append(records, position=after.to_bytes())

    def _told(self, progress: Progress, step: Step) -> _Stored:
        records: dict[str, list[pa.Table]] = {}
        published: dict[str, list[int]] = {}
        for table in step.begins:
            progress = self._seen(progress, table, step, records, is_read=True)
            end = self._topics.of(table).rows.bounds()[0][1]
            progress = progress.with_table(
                table.name, replace(progress.tables[table.name], snapshot_from=end)
            )
            self.snapshot = (table.name, 0)
        for changes in step.changes:
            progress = self._seen(progress, changes.table, step, records)
            kept = changes
            if outbox.is_outbox(changes.table.name):
                published.setdefault(changes.table.name, []).extend(self._publish(records, changes))
                kept = replace(changes, rows=outbox.without_events(changes.rows))
            self._add(records, kept, progress.tables[changes.table.name].version)
        gone = [
            _emptied_table(name, known)
            for name in step.gone
            if (known := progress.tables.get(name)) and not known.is_gone
        ]
        for changes in gone:
            known = progress.tables[changes.table.name]
            self._add(records, changes, known.version)
            progress = progress.with_table(
                changes.table.name, replace(known, is_gone=True, snapshot_from=None)
            )
        if step.aside:
            records.setdefault(self._topics.dead.name, []).append(_put_aside(step.aside))
        ending = (*progress.ending, *(table.name for table in step.ends))
        count = sum(changes.rows.num_rows for changes in (*step.changes, *gone))
        done = replace(progress.at(step.position), ending=ending, changes=progress.changes + count)
        return _Stored({topic: _joined(pieces) for topic, pieces in records.items()}, done, published)

    def _remove_published(self, progress: Progress) -> None:
        """Events of the outbox that were published when it was last run, and whose rows are still there."""
        for name, known in progress.tables.items():
            if outbox.is_outbox(name):
                table = Table(name, RecordSchema.of(known.columns).arrow, known.key)
                self.source.remove(name, alive.keys(self._topics.of(table).rows)["id"].to_pylist())

    def _publish(self, records: dict[str, list[pa.Table]], changes: Changes) -> Sequence[int]:
        """Events of the outbox into their topics."""
        own = self._topics.of(changes.table).rows
        found = outbox.published(self._log, own, changes.rows, fills=self._topics.fills)
        for name, pieces in found.records.items():
            records.setdefault(name, []).extend(pieces)
        if len(found.dead):
            records.setdefault(self._topics.dead.name, []).append(found.dead)
        return found.ids

    def _add(self, records: dict[str, list[pa.Table]], changes: Changes, version: int) -> None:
        table, pair = changes.table, self._topics.of(changes.table)
        rows = changes.rows.set_column(
            changes.rows.schema.names.index("schema_version"),
            pa.field("schema_version", pa.int32()),
            pa.repeat(pa.scalar(version, pa.int32()), changes.rows.num_rows),
        )
        if changes.unchanged:
            rows = self._memory.filled(
                pair.rows, records.get(pair.rows.name, []), replace(changes, rows=rows)
            )
        told = records.setdefault(pair.rows.name, [])
        for piece in _between_truncates(rows):
            if isinstance(piece, pa.RecordBatch):
                told.append(envelope.table_records(piece, table.columns, table.key))
            else:
                told.append(_emptied(pair.rows, told, table))
        records.setdefault(pair.changes.name, []).append(pa.Table.from_batches([rows]))
        if self.snapshot and self.snapshot[0] == table.name:
            self.snapshot = (table.name, self.snapshot[1] + rows.num_rows)

    def _seen(
        self,
        progress: Progress,
        table: Table,
        step: Step,
        records: dict[str, list[pa.Table]],
        *,
        is_read: bool = False,
    ) -> Progress:
        """Note the form of a table; a new one is told. `is_read`: whole, from here on."""
        columns, known = RecordSchema(table.columns).ddl, progress.tables.get(table.name)
        if known is None:
            self._topics.check_unused(table)
        if known and (known.columns, known.key) == (columns, table.key):
            back = replace(known, is_gone=False)
            return progress.with_table(table.name, back) if known.is_gone else progress
        version = known.version + 1 if known else 1
        if (
            known
            and not is_read
            and self.source.altered(Table(table.name, RecordSchema.of(known.columns).arrow, known.key), table)
        ):
            wanted = pa.Table.from_pylist(
                [{"tables": [table.name]}], schema=self._topics.requests.schema.arrow
            )
            records.setdefault(self._topics.requests.name, []).append(wanted)
        told = {
            "table": table.name, "schema_version": version, "columns": columns, "key": list(table.key),
            "position": str(dict(step.position)), "seen_at": datetime.now(UTC),
        }  # fmt: skip
        schemas = self._topics.schemas
        records.setdefault(schemas.name, []).append(pa.Table.from_pylist([told], schema=schemas.schema.arrow))
        return progress.with_table(
            table.name, Known(columns, table.key, version, known.snapshot_from if known else None)
        )

    # ---- snapshots ----------------------------------------------------------------------------

    def _without_ghosts(self, producer: AtomicProducer, progress: Progress) -> Progress:
        """After a snapshot, delete the rows that it did not find: they went while nobody looked."""
        for name in progress.ending:
            known, before = progress.tables[name], progress
            table = Table(name, RecordSchema.of(known.columns).arrow, known.key)
            pair = self._topics.of(table)
            ghosts = alive.keys(pair.rows, before=known.snapshot_from)
            progress = replace(
                progress.with_table(name, replace(known, snapshot_from=None)),
                ending=tuple(other for other in progress.ending if other != name),
                changes=progress.changes + len(ghosts),
            )
            records: dict[Topic | str, pa.Table] = {}
            if len(ghosts):
                rows = _deletes(table, ghosts, known.version)
                records = {
                    pair.rows: envelope.table_records(rows, table.columns, table.key),
                    pair.changes: pa.Table.from_batches([rows]),
                }
            self._append(producer, records, before, progress)
            self.snapshot = None
        return progress

    def _is_asked_now_and_then(self, progress: Progress) -> bool:
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return False
        self._looked = now
        return self._is_asked(progress)

    def _is_asked(self, progress: Progress) -> bool:
        return self._topics.asked > progress.requests

    def _requested(self, progress: Progress) -> tuple[Progress, list[str]]:
        """The tables that somebody wants a new snapshot of; noted as done with the first step of it."""
        if not self._is_asked(progress):
            return progress, []
        wanted: dict[str, None] = {}
        for row in self._topics.requests.rows(start=progress.requests):
            wanted |= dict.fromkeys(row["tables"])
        return replace(progress, requests=self._topics.asked), list(wanted)


def _emptied_table(name: str, known: Known) -> Changes:
    """A table that is gone from the source has no rows any more."""
    table = Table(name, RecordSchema.of(known.columns).arrow, known.key)
    rows = envelope.changes_of(
        table.columns,
        pa.array([envelope.TRUNCATE]),
        None,
        None,
        positions="dropped",
        committed_at=datetime.now(UTC),
    )
    return Changes(table, rows)


def _put_aside(changes: Sequence[Aside]) -> pa.Table:
    rows = [
        {"topic": each.table, "event": json.dumps(each.change, ensure_ascii=False), "reason": each.reason}
        for each in changes
    ]
    return pa.Table.from_pylist(rows, schema=RecordSchema.of(outbox.DEAD_DDL).arrow)


def _joined(pieces: list[pa.Table]) -> pa.Table:
    """Pieces of different forms of a table: what one of them lacks is null there."""
    return pa.concat_tables(pieces, promote_options="permissive")


def stored_progress(log: Log, name: str) -> Progress:
    """Without what is known of tables: at once, however many there are."""
    return Progress.of(log.port.producer_position(f"{PRODUCER}{name}").position)


def _between_truncates(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch | None]:
    """The changes in pieces, and None where the table was emptied."""
    start = 0
    for at in pc.indices_nonzero(pc.equal(rows.column("op"), envelope.TRUNCATE)).to_pylist():
        yield rows.slice(start, at - start)
        yield None
        start = at + 1
    yield rows.slice(start)


def _emptied(topic: Topic, told: list[pa.Table], table: Table) -> pa.Table:
    """Deletes of every row that is there, after what was told in the same step."""
    there = {tuple(row.values()): None for row in alive.keys(topic).to_pylist()}
    for piece in told:
        for row in piece.select([*table.key, "_deleted"]).to_pylist():
            deleted = row.pop("_deleted")
            there.pop(tuple(row.values()), None) if deleted else there.update({tuple(row.values()): None})
    rows = [dict(zip(table.key, key, strict=True)) for key in there]
    keys = pa.Table.from_pylist(rows, schema=pa.schema([table.columns.field(name) for name in table.key]))
    return envelope.table_records(_deletes(table, keys, 0), table.columns, table.key)


def _deletes(table: Table, keys: pa.Table, version: int) -> pa.RecordBatch:
    arrays = [
        keys[column.name].combine_chunks().cast(column.type)
        if column.name in table.key
        else pa.nulls(len(keys), column.type)
        for column in table.columns
    ]
    rows = envelope.changes_of(
        table.columns,
        pa.repeat(pa.scalar(envelope.DELETE), len(keys)),
        envelope.struct_of(table.columns, arrays),
        None,
        positions="snapshot",
        committed_at=datetime.now(UTC),
    )
    versions = pa.repeat(pa.scalar(version, pa.int32()), len(keys))
    return rows.set_column(len(rows.schema) - 1, pa.field("schema_version", pa.int32()), versions)
