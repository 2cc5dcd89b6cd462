"""rebuild: a view computed anew beside the one that serves, then put in its place in one append.

The new version is a streaming replay of the recorded batches, with the late decisions of then (or, with
`include_late`, without any), by the definition as it is now. It writes to topics of its own. The swap
appends the *difference* to the view's changelog together with the new position: followers and subscribers
see ordinary changes, reads as of a past time keep their history, and a crash leaves the one version or the
other.

Where the key is another one, or columns are gone or of another type, the old changelog cannot take the new
rows: it is replaced by a new one, and its past with it. The position says so before, so that after a crash
neither definition goes on with half of it; another rebuild does.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.app import reading
from penstock.app.graph import Graph
from penstock.app.verify import Difference, Verified, compare
from penstock.errors import BadOption, QueryFailed, UnknownTopic, UnknownView
from penstock.flow import failure, history
from penstock.flow import output as outputs
from penstock.flow.commit import Position, position_of
from penstock.flow.definition import Analysed
from penstock.flow.offset import NEVER_US, Offset
from penstock.flow.query import Place, Query, create_output, identity_of, place_of, unfit
from penstock.follow import changes
from penstock.log.log import AtomicProducer

if TYPE_CHECKING:
    from penstock.app.app import App

SUFFIX = ".rebuild"
_UNDER_WAY = "being-rebuilt"  # the identity of no definition
_SHOWN_MAX = 10


@dataclass(slots=True)
class Rebuilt:
    """A new version that waits to be swapped in."""

    app: App
    analysed: Analysed
    before: Position
    after: Position
    old: pa.Table
    new: pa.Table
    difference: Verified
    include_late: bool
    place: Place
    scratch: Place
    replaced: tuple[str, ...]  # endings of the topics that cannot take what is made now

    def swap(self) -> None:
        """The new version serves from now on. A run of the old definition is fenced."""
        with self.app.log.producer(self.place.producer) as producer:
            now = position_of(self.app.log, self.place.producer)
            if now != self.before:
                raise BadOption(
                    f'"{self.analysed.output.name}" went on while it was rebuilt.',
                    hint="stop `penstock run`, and rebuild again",
                )
            number, version = self.before.number + 1, self.before.version + 1
            name = self.analysed.output.name
            closed_us = self._closed_us()
            if self.replaced:
                self._make_room(producer)
            create_output(self.app.log, self.analysed, evolve=True)
            records: dict[Any, Any] = {
                name: self._changes(number, closed_us),
                f"{name}{outputs.BATCHES}": self._history(version),
            }
            late_from, late = 0, 0
            if self.analysed.late_columns is not None:
                late_from = self.app.log.port.bounds(f"{name}{outputs.LATE}", 0)[1]
                pairs = self._late()
                late = sum(table.num_rows for table in pairs.values())
                records |= pairs
            position = replace(
                self.after,
                identity=identity_of([self.analysed]),
                number=number,
                version=version,
                batch=replace(self.before.batch, lenient=False),
                late_from=late_from,
                late=late,
            )
            self._move_checkpoint(position.checkpoint)
            producer.append(records, position=position.encode())
        self.discard()

    def _closed_us(self) -> int:
        name = self.analysed.output.name
        own = outputs.closed_us(self.app.log, name)
        # After a rebuild that died the own changelog is empty.
        return own if own != NEVER_US else outputs.closed_us(self.app.log, f"{name}{SUFFIX}")

    def _make_room(self, producer: AtomicProducer) -> None:
        producer.append({}, position=replace(self.before, identity=_UNDER_WAY).encode())
        for ending in self.replaced:
            with suppress(UnknownTopic):
                self.app.log.delete_topic(f"{self.analysed.output.name}{ending}")

    def discard(self) -> None:
        """Forget the new version."""
        name = f"{self.analysed.output.name}{SUFFIX}"
        for topic in (name, f"{name}{outputs.LATE}", f"{name}{outputs.BATCHES}"):
            if topic in self.app.log.topics():
                self.app.log.delete_topic(topic)
        self.scratch.clear()

    def _changes(self, number: int, closed_us: int) -> pa.Table:
        """What turns the old rows into the new ones."""
        output = self.analysed.output
        old = self.new.slice(0, 0) if "" in self.replaced else self.old
        gone, fresh = _difference(old, self.new, output.key)
        deleted = {
            field.name: gone.column(field.name)
            if field.name in output.key
            else pa.nulls(gone.num_rows, field.type)
            for field in output.columns
        }
        marked = pa.concat_tables(
            [
                pa.table({**deleted, "_op": pa.repeat(pa.scalar("d"), gone.num_rows)}),
                fresh.select(output.columns.names).append_column(
                    "_op", pa.repeat(pa.scalar("u"), fresh.num_rows)
                ),
            ],
            promote_options="permissive",
        )
        return outputs.changes(output, marked, number=number, closed_us=closed_us)

    def _late(self) -> dict[Any, Any]:
        """What the new version has left out."""
        name = self.analysed.output.name
        found = reading.late(self.app, f"{name}{SUFFIX}").table
        if not found.num_rows or self.analysed.late_columns is None:
            return {}
        return {f"{name}{outputs.LATE}": found.select(self.analysed.late_columns.names)}

    def _history(self, version: int) -> list[dict[str, Any]]:
        topic = f"{self.analysed.output.name}{outputs.BATCHES}"
        kept = [
            {name: record[name] for name in outputs.HISTORY.names}
            for record in history.records(self.app.log, topic)
        ]
        for record in kept:
            record["version"] = version
            if self.include_late:
                lenient = replace(Offset.from_json(json.loads(record["batch"])), lenient=True)
                record["batch"] = json.dumps(lenient.to_json())
        return kept

    def _move_checkpoint(self, name: str) -> None:
        """Before the position names it: if we die in between, the next start finds none and replays."""
        self.place.clear()
        self.place.folder.mkdir(parents=True)
        shutil.move(self.scratch.folder / name, self.place.folder / name)


def prepare(app: App, graph: Graph, name: str, *, include_late: bool = False) -> Rebuilt:
    """Build a view anew up to where the serving one is, and compare the two."""
    if name not in graph.analysed:
        raise UnknownView(name, known=graph.analysed)
    analysed = graph.analysed[name]
    if analysed.output.kind == "stream":
        raise BadOption(
            f'"{name}" is a stream: what it has said cannot be taken back.',
            hint="define a new stream under another name, and let readers move there",
        )
    place, scratch = _places(app, name)
    before = position_of(app.log, place.producer)
    if before is None:
        raise BadOption(f'"{name}" has not run yet: there is nothing to rebuild.', hint="penstock run APP")
    beside = _beside(analysed)
    _forget(app, scratch, beside)
    after = _replay(graph, beside, scratch, analysed.output.name, include_late=include_late)
    replaced = unfit(app.log, analysed)
    old = _as_they_are(app, name) if "" in replaced else _rows(app, analysed, name)
    new = _rows(app, analysed, f"{name}{SUFFIX}")
    if "" in replaced:
        difference = _all_different(name, old, new)
    else:
        due = (_due(old, analysed, before), _due(new, analysed, before))
        difference = compare(name, *due, analysed.output.key)
    return Rebuilt(app, analysed, before, after, old, new, difference, include_late, place, scratch, replaced)


def _as_they_are(app: App, name: str) -> pa.Table:
    """The serving rows, by the key and with the columns that they have."""
    try:
        spec = reading.spec(app, name)
    except UnknownView:  # a rebuild died when it was gone
        return pa.table({})
    return changes.fold(app.log.topic(name).read(), spec.key, columns=spec.columns)


def _all_different(name: str, old: pa.Table, new: pa.Table) -> Verified:
    found = Verified(name, "different", "its key or its columns are others", rows=old.num_rows)
    gone, fresh = (table.drop_columns(["_revision"]) if table.num_columns else table for table in (old, new))
    found.differing = gone.num_rows + fresh.num_rows
    found.differences = [
        *(Difference("only live", row, None) for row in gone.slice(0, _SHOWN_MAX).to_pylist()),
        *(Difference("only recomputed", None, row) for row in fresh.slice(0, _SHOWN_MAX).to_pylist()),
    ]
    return found


def _places(app: App, name: str) -> tuple[Place, Place]:
    own, beside = (
        place_of(app.address, app.checkpoints, app.name, each) for each in (name, f"{name}{SUFFIX}")
    )
    return own, beside


def _beside(analysed: Analysed) -> Analysed:
    definition = replace(analysed.definition, name=f"{analysed.definition.name}{SUFFIX}")
    return replace(analysed, definition=definition, output=replace(analysed.output, name=definition.name))


def _forget(app: App, scratch: Place, beside: Analysed) -> None:
    """What an earlier rebuild left behind."""
    scratch.clear()
    for ending in ("", outputs.LATE, outputs.BATCHES):
        if f"{beside.output.name}{ending}" in app.log.topics():
            app.log.delete_topic(f"{beside.output.name}{ending}")
    with app.log.producer(scratch.producer) as producer:
        producer.append({}, position=b"")


def _replay(graph: Graph, beside: Analysed, scratch: Place, name: str, *, include_late: bool) -> Position:
    further = {"history": f"{name}{outputs.BATCHES}", "only_history": "true"}
    if include_late:
        further["lenient"] = "true"
    query = Query(graph.session, graph.app.log, scratch, [beside], further=further)
    # With late rows in, all in one batch: Spark would drop what is behind its watermark of a batch before.
    query.start(every=None, once=True, rows_max=1 << 62 if include_late else None)
    assert query.running is not None
    while query.running.isActive:
        time.sleep(0.05)
    error = query.running.exception()
    position = position_of(graph.app.log, scratch.producer)
    if error is not None or position is None:
        raise QueryFailed(beside.output.name, failure.gist(str(error)))
    return position


def _rows(app: App, analysed: Analysed, topic: str) -> pa.Table:
    found = app.log.topic(topic)
    folded = changes.fold(found.read(), analysed.output.key, columns=analysed.output.columns)
    missing = [field for field in analysed.output.columns if field.name not in folded.column_names]
    for field in missing:  # a column that the definition has now and had not then
        folded = folded.append_column(field, pa.nulls(folded.num_rows, field.type))
    return folded


def _due(rows: pa.Table, analysed: Analysed, position: Position) -> pa.Table:
    """Final rows up to where the serving version had closed windows: the new one may be a step further."""
    column = analysed.output.final_by
    if column is None:
        return rows
    return rows.filter(pc.less_equal(rows.column(column).cast(pa.int64()), position.evicted_ms * 1_000))


def _difference(old: pa.Table, new: pa.Table, key: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """Rows that are gone, and rows that are new or not what they were."""
    columns = new.column_names
    known = {_identity(row, key): row for row in old.to_pylist()}
    fresh = {_identity(row, key): row for row in new.to_pylist()}
    gone = [row for identity, row in known.items() if identity not in fresh]
    changed = [
        row
        for identity, row in fresh.items()
        if identity not in known or any(known[identity].get(c) != row[c] for c in columns)
    ]
    return pa.Table.from_pylist(gone, schema=old.schema), pa.Table.from_pylist(changed, schema=new.schema)


def _identity(row: dict[str, Any], key: Sequence[str]) -> str:
    return repr([row[column] for column in key])
