"""Virtual time for tests of an app: events in a chosen order, at chosen times, and no waiting.

A `Run` is a declared app in a log of its own. Its clock stands still unless the test moves it: records get
their append times from it, topics go idle by it, and `clock="processing"` counts by it. So one test gives
the same rows every time. Spark is real, and so are the log, the changelogs and the store.

Each `process` starts every query, runs it to the end and stops it: going on from where the last one stopped
is part of every test.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.app import reading
from penstock.app.app import App, AppTopic
from penstock.app.derived import Stream, View
from penstock.app.graph import Graph
from penstock.app.runner import Runner
from penstock.app.verify import Verified
from penstock.app.verify import verify as verify_one
from penstock.clock import ManualClock, duration_ms
from penstock.errors import BadInput, BadOption, UnknownView
from penstock.flow.session import start_session
from penstock.log.embedded import EmbeddedLog
from penstock.log.log import Log
from penstock.log.port import from_us, to_us
from penstock.log.topic import WATERMARKS, Topic

DAY = date(2026, 1, 1)
_BETWEEN_US = 1_000  # records that are fed one after the other arrive so far apart
_CLOCK_TIME = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d{1,6})?)?")

Moment = str | datetime
"""A datetime, an ISO date and time, or a time of the run's day as "10:00", "10:00:05" or "10:00:05.250"."""


@contextmanager
def running(
    app: App, *, home: Path | None = None, day: str | date = DAY, rows_max: int | None = None
) -> Iterator[Run]:
    """Run `app` in virtual time, in a log under `home` (default: a folder that is removed afterwards).

    The clock begins at midnight, UTC, of `day`. `rows_max`: about how many records a batch may have; few make
    many batches, and the views must not depend on it.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        place = home or Path(folder)
        clock = ManualClock(to_us(_midnight(day)))
        with app.relocated(Log(EmbeddedLog(place, clock=clock)), place):
            yield Run(app, clock, _midnight(day), rows_max=rows_max)


class Run:
    """An app under test. Not thread-safe."""

    def __init__(self, app: App, clock: ManualClock, midnight: datetime, *, rows_max: int | None) -> None:
        self.app = app
        self._clock = clock
        self._midnight = midnight
        self._rows_max = rows_max
        self._graph: Graph | None = None
        self._done: dict[str, dict[int, tuple[int, int]]] | None = None

    # ---- time -------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        return from_us(self._clock.now_us())

    def time(self, text: Moment) -> datetime:
        """`run.time("10:00")`: that time of the run's day, in UTC."""
        if isinstance(text, datetime):
            return text if text.tzinfo else text.replace(tzinfo=UTC)
        try:
            if not _CLOCK_TIME.fullmatch(text):
                return self.time(datetime.fromisoformat(text))
            whole = datetime.fromisoformat(f"{self._midnight:%Y-%m-%d} {'0' * (text[1] == ':')}{text}")
        except ValueError:
            raise BadOption(
                f"{text!r} is no time.", hint='write "10:00:05" or "2026-11-01 10:00:05"'
            ) from None
        return whole.replace(tzinfo=UTC)

    def wait_until(self, moment: Moment) -> None:
        """Let time pass without the app running. Time does not go back."""
        self._move(to_us(self.time(moment)))

    def advance(self, duration: str | float) -> None:
        """Let time pass while the app runs and nothing arrives: topics go idle, and windows close."""
        self._settle()
        self._move(self._clock.now_us() + duration_ms(duration) * 1_000)
        self.process()

    # ---- events -----------------------------------------------------------------------------------

    def feed(self, topic: AppTopic, *records: Any, arriving: Moment | None = None) -> None:
        """Append records one by one, in this order. Nothing is processed yet.

        Each arrives when it occurred, or right after the one before it if that is later; with `arriving`
        the first arrives then, and each further one right after. Times may be written as "10:00:05".
        """
        if arriving is not None:
            self._move(to_us(self.time(arriving)))
        for record in records:
            timed = self._timed(topic, record)
            self._move(self._clock.now_us() + _BETWEEN_US)
            if arriving is None and (occurred := _occurred(topic, timed)) is not None:
                self._move(max(self._clock.now_us(), to_us(occurred)))
            topic.append(timed)

    def process(self) -> None:
        """Bring everything up to date with what has arrived by now."""
        now_us = self._clock.now_us()
        # A busy machine is forgiven (Spark gives a Python worker ten seconds to start), but not for long.
        Runner(self.app, self.graph, rows_max=self._rows_max, now_us=now_us, failures_max=3).once()
        self._done = self._arrived()

    # ---- results: each first processes what has arrived and was not processed yet --------------------

    def view(self, view: str | View, *, where: Mapping[str, object] | None = None) -> list[dict[str, Any]]:
        """The rows of a view in the order of its key; `revision` only if a window was corrected."""
        return list(self.app.read(self._settled(view, "view"), where=where))

    def values(self, view: str | View | Stream, *columns: str) -> list[tuple[Any, ...]]:
        """The same as tuples of some columns, for short comparisons; of a stream, its rows as they came."""
        kind = self.app.definition(_name(view)).kind
        rows = self.view(_name(view)) if kind == "view" else self.stream(_name(view))
        for column in columns:
            if rows and column not in rows[0]:
                raise BadInput(f'there is no column "{column}".', hint="there are " + ", ".join(rows[0]))
        return [tuple(row[column] for column in columns) for row in rows]

    def stream(self, stream: str | Stream) -> list[dict[str, Any]]:
        """The rows of a derived stream, as they came out."""
        return list(self.app.log.topic(self._settled(stream, "stream")).rows())

    def late(self, definition: str | View | Stream) -> list[dict[str, Any]]:
        """What was left out: `row`, `window_start`, `window_end`, `watermark`, `reason` and its place."""
        return list(reading.late(self.app, self._settled(definition)))

    def changes(self, view: str | View) -> list[dict[str, Any]]:
        """Every change of a view so far: its row, `op` ("u" upsert, "d" delete) and `revision`."""
        topic = self.app.log.topic(self._settled(view, "view"))
        own = [name for name in topic.schema.names if not name.startswith("_")]
        records = pa.Table.from_batches(topic.read(), schema=topic.settings.read_schema).to_pylist()
        return [
            {**{name: record[name] for name in own}, "op": record["_op"], "revision": record["_revision"]}
            for record in records
            if record["_op"] != "w"
        ]

    def verify(self, *names: str) -> None:
        """Assert that definitions (default: all) equal a recomputation from the log.

        What cannot be verified, as anything that counts processing time, does not pass: name the others.
        """
        for name in [self._settled(name) for name in names or self.app.definitions]:
            found = verify_one(self.app, self.graph, name)
            assert found.verdict == "equal", _told(found)

    # ---- underneath -------------------------------------------------------------------------------

    @property
    def graph(self) -> Graph:
        """The app's definitions, analysed; raises BadDefinition if one is wrong."""
        if self._graph is None:
            self._graph = Graph(self.app, start_session("penstock-tests")).analyse()
        return self._graph

    def _settle(self) -> None:
        if self._done != self._arrived():
            self.process()

    def _arrived(self) -> dict[str, dict[int, tuple[int, int]]]:
        self._publish()
        there = self.app.log.topics()
        inputs = [part for name in self.app.topics for part in (name, f"{name}{WATERMARKS}") if part in there]
        return {name: self.app.log.topic(name).bounds() for name in inputs}

    def _publish(self) -> None:
        """What aggregates have recorded arrives when it happened, as it does where somebody publishes."""
        for aggregates in self.app.sourced.values():
            state = aggregates.publisher().status()
            if state.recorded > state.published:
                aggregates.publish()

    def _move(self, now_us: int) -> None:
        self._publish()
        seconds = (now_us - self._clock.now_us()) / 1_000_000
        if seconds < 0:
            wanted = from_us(now_us)
            raise BadOption(
                f"it is {self.now:%Y-%m-%d %H:%M:%S.%f} already, and time does not go back to {wanted}.",
                hint="feed records in the order in which they arrive",
            )
        self._clock.advance(seconds)

    def _timed(self, topic: AppTopic, record: Any) -> Any:
        if not isinstance(record, Mapping):
            return record
        times = {field.name for field in topic.declared.schema.arrow if pa.types.is_timestamp(field.type)}
        return {
            name: self.time(value) if name in times and isinstance(value, str) else value
            for name, value in record.items()
        }

    def _settled(self, definition: str | View | Stream, kind: str | None = None) -> str:
        """The name of a definition, once it has processed what has arrived."""
        found = self.app.definition(_name(definition))
        if kind is not None and found.kind != kind:
            known = [name for name, other in self.app.definitions.items() if other.kind == kind]
            raise UnknownView(found.name, known=known)
        self._settle()
        return found.name


def _name(definition: str | View | Stream | Topic) -> str:
    return definition if isinstance(definition, str) else definition.name


def _occurred(topic: AppTopic, record: Any) -> datetime | None:
    """When a record says that it happened, unless the topic knows better than to believe its clock."""
    column = topic.declared.event_time
    if column is None or topic.declared.sent_time is not None:
        return None
    if is_dataclass(record) and column in {field.name for field in fields(record)}:
        found = getattr(record, column)
    else:
        found = record.get(column) if isinstance(record, Mapping) else None
    if not isinstance(found, datetime):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _midnight(day: str | date) -> datetime:
    found = date.fromisoformat(day) if isinstance(day, str) else day
    return datetime(found.year, found.month, found.day, tzinfo=UTC)


def _told(found: Verified) -> str:
    lines = [f'"{found.name}" is {found.verdict}{f": {found.reason}" if found.reason else ""}']
    lines += [f"  {d.where}: live {d.live}, recomputed {d.recomputed}" for d in found.differences]
    return "\n".join(lines)
