"""The log as a Spark data source, batch and streaming: `spark.readStream.format("penstock")`.

Spark runs the stream reader's planning in one long-lived process on the driver, and `read` on pickled
copies in its Python workers; only options travel. For everyone: `home` (a folder, or kafka://host:port),
`topics` (with commas between them) and `rows_max` (about how many a batch of a stream may have); without
others, every record counts.

Definitions say more: `clock`, `time` (name of the time column), `tasks`, `settle_us`, `ticks`, `undated`.
A batch read of theirs is of exactly the offsets in `batches` (a JSON list), or of those recorded in the topic
`history` up to batch `number_max`. With `gather`, rows are events that were added up (see gather.py). With
`groups` ("clicks;views,visits": topics that are read apart), each group has columns of its own, which are
NULL in the records of the others. Of `tables` among the topics, records without a usable time count too.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.clock import SystemClock
from penstock.errors import BadInput
from penstock.flow import history, plan, slices
from penstock.flow.gather import Gather
from penstock.flow.offset import Offset, Point, at_rest
from penstock.flow.plan import Scan, column_of
from penstock.flow.times import Steps
from penstock.log.log import Log, home_of
from penstock.log.pandas_free import hide_pandas
from penstock.opening import is_kafka, open_log

NAME = "penstock"
_WAIT_S = 0.1
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"
_OF_DEFINITIONS = {"_watermark", "_event_time", "_processed", "_time_usable", "_heartbeat"}

_logs: dict[str, tuple[int, Log]] = {}


def log_at(home: str) -> Log:
    """The log under `home`, opened once per process: Spark keeps its workers, and they keep this.

    Another log may have been made there since; it has another marker file.
    """
    known = _logs.get(home)
    if known is None or known[0] != _marker(home):
        log = open_log(home)
        known = _logs[home] = (_marker(home), log)
    return known[1]


def _marker(home: str) -> int:
    if is_kafka(home):
        return 0
    try:
        return (Path(home) / "log.json").stat().st_ino
    except FileNotFoundError:
        return 0


def _plans_alone() -> bool:
    """Whether this is the process that Spark keeps for the planning of one stream, and for nothing else."""
    program = getattr(sys.modules["__main__"], "__spec__", None)
    return program is not None and program.name == _PLANNER


def source_schema(log: Log, scan: Scan, groups: Sequence[Sequence[str]] = ()) -> pa.Schema:
    """The topics' columns, all nullable (a heartbeat has none), and the system's."""
    own: Iterable[pa.Field] = log.port.settings(scan.topics[0]).stored
    if groups:
        own = [
            field.with_name(column_of(number, field.name))
            for number, topics in enumerate(groups)
            for field in log.port.settings(topics[0]).stored
        ]
    system = [
        pa.field("_topic", pa.string()),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
        pa.field("_timestamp", _TIMESTAMP),
        pa.field("_watermark", _TIMESTAMP),
        pa.field("_event_time", _TIMESTAMP),
        pa.field("_processed", _TIMESTAMP),
        pa.field("_time_usable", pa.bool_()),
        pa.field("_heartbeat", pa.bool_()),
    ]
    return pa.schema([*(field.with_nullable(True) for field in own), *system])


def _topics(options: Mapping[str, str]) -> tuple[str, ...]:
    found = tuple(name.strip() for name in options.get("topics", "").split(",") if name.strip())
    if not found:
        raise BadInput("which topics?", hint='name them: .option("topics", "page_views,clicks")')
    return found


def _groups(options: Mapping[str, str]) -> list[list[str]]:
    return [group.split(",") for group in options.get("groups", "").split(";") if group]


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    given = options.get(name, str(default))
    if not given.isdecimal() or not int(given):
        raise BadInput(f"{name}={given} is no number of records.", hint=f'say .option("{name}", 100000)')
    return int(given)


def _home(options: Mapping[str, str]) -> str:
    given = options.get("home")
    if given is not None and is_kafka(given):
        return given
    home = home_of(given).absolute()
    if not (home / "log.json").exists():
        raise BadInput(f"there is no log under {home}.", hint='say where: .option("home", "…/.penstock")')
    return str(home)


class _Range(InputPartition):
    """One slice for a task; `clock_us` where this task also shows Spark the time."""

    def __init__(self, piece: slices.Slice | None, clock_us: int | None = None) -> None:
        super().__init__(piece)
        self.piece = piece
        self.clock_us = clock_us


def _check_alike(log: Log, topics: Sequence[str]) -> None:
    first, *others = (log.port.settings(topic) for topic in topics)
    for settings in others:
        if settings.stored != first.stored:
            raise BadInput(
                f'topics "{first.name}" and "{settings.name}" have other columns.',
                hint="read them apart, and unite them once they look alike",
            )


class _Reading:
    """What batch and stream readers share. Holds options alone: it is pickled to Spark's workers."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.home = _home(options)
        self.scan = Scan(
            _topics(options),
            options.get("clock", "append"),
            _number(options, "rows_max", 1_000_000),
            int(options.get("settle_us", 0)),
        )
        self.time = options.get("time", "_timestamp")
        self.tasks = int(options.get("tasks", os.cpu_count() or 2))
        self.odd = options.get("odd") == "true"
        self.undated = options.get("undated", "true") == "true"
        self.gather = options.get("gather")
        self.groups = _groups(options)
        self.tables = frozenset(options.get("tables", "").split(",")) - {""}
        self.schema = schema

    def ranges(self, past: Sequence[Offset], steps: Steps | None = None) -> list[_Range]:
        found = slices.slices_of(log_at(self.home), self.scan, past, tasks=self.tasks, steps=steps)
        return [_Range(piece) for piece in found]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _Range):  # Spark's own, where there are none
            return
        schema = to_arrow_schema(self.schema, timezone="UTC")
        if partition.clock_us is not None:
            yield slices.heartbeat(schema, self.time, partition.clock_us)
        if partition.piece is not None:
            yield from self._records(log_at(self.home), partition.piece, schema)

    def _records(self, log: Log, piece: slices.Slice, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        if not self.gather:
            names = self._names(log, piece.topic) if self.groups else None
            return slices.read_slice(
                log, piece, schema, names=names, odd=self.odd, undated=self.undated, tables=self.tables
            )
        gather = Gather.from_json(self.gather)
        wanted = gather.reads(source_schema(log, self.scan))
        return gather.gathered(slices.read_slice(log, piece, wanted, odd=False), schema)

    def _names(self, log: Log, topic: str) -> dict[str, str]:
        """By the name that the source gives it, each column of a topic."""
        mine = [number for number, topics in enumerate(self.groups) if topic in topics]
        return {column_of(n, name): name for n in mine for name in log.port.settings(topic).stored.names}


class LogReader(_Reading, DataSourceReader):
    """A batch read: of given batches of a stream, or of all there is."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        self.batches = options.get("batches")
        self.history = options.get("history")
        self.number_max = int(options.get("number_max", -1))

    def partitions(self) -> Sequence[InputPartition]:
        log = log_at(self.home)
        if self.batches is None:
            return self.ranges([plan.everything(log, self.scan)])
        past = [Offset.from_json(plain) for plain in json.loads(self.batches)]
        if self.history:
            past = history.batches(log, self.history, number_max=self.number_max)
        return self.ranges(past) if past else []


class LogStreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An endless read; each offset it gives describes its batch whole.

    With the option `history` it first goes through the batches recorded there, several at a time, with
    `only_history` no further, and with `lenient` finding nothing late there. With `begin` it starts at the
    end of that offset.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        self.ticks = options.get("ticks") == "true"
        self.history = options.get("history")
        self.begin = options.get("begin")
        self.only_history = options.get("only_history") == "true"
        self.lenient = options.get("lenient") == "true"
        # A virtual clock, for tests: it stands still during a run, and idleness is measured by it.
        self.now_us = int(options["now_us"]) if options.get("now_us") else None
        self.until: Mapping[str, tuple[int, ...]] | None = None
        self.planned: tuple[Offset, Steps | None] | None = None  # by us, last

    @cached_property
    def past(self) -> list[Offset]:
        return history.batches(log_at(self.home), self.history) if self.history else []

    def initialOffset(self) -> dict[str, Any]:
        if self.begin:
            return at_rest(Offset.from_json(json.loads(self.begin)).end).to_json()
        start = self.past[0].start if self.past else plan.beginning(log_at(self.home), self.scan)
        return at_rest(start).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self.until = plan.newest(log_at(self.home), self.scan)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        log, known = log_at(self.home), Offset.from_json(start)
        found = self._next(log, known.end)
        if found.start == found.end and self.until is None:
            # Woken by the first append instead of asked again and again.
            topic = self.scan.topics[0]
            log.port.wait(topic, dict(enumerate(known.end.ends[topic])), _WAIT_S)
            found = self._next(log, known.end)
        return start if found.start == found.end else found.to_json()

    def _next(self, log: Log, start: Point) -> Offset:
        recorded = history.chunk(
            self.past,
            start,
            rows_max=self.scan.rows_max,
            apart=self.scan.clock == "processing",
            lenient=self.lenient,
        )
        if recorded or self.only_history:
            return recorded or at_rest(start)
        now_us = self.now_us or SystemClock().now_us()
        ticks = self.ticks and (self.until is None or self.now_us is not None)
        self.planned = plan.next_batch(log, self.scan, start, until=self.until, now_us=now_us, ticks=ticks)
        return self.planned[0]

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        batch = Offset.from_json(end)
        steps = self.planned[1] if self.planned and self.planned[0] == batch else None
        found = self.ranges(history.as_recorded(self.past, batch), steps) or [_Range(None)]
        if not self.undated and batch.end.clock_us != batch.start.clock_us:
            found[0].clock_us = batch.end.clock_us
        return found

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to free: the log keeps what it was told to keep."""


class LogSource(DataSource):
    """The log for `spark.read` and `spark.readStream`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        log, topics = log_at(_home(self.options)), _topics(self.options)
        whole = source_schema(log, Scan(topics), _groups(self.options))
        if "clock" in self.options:  # a definition reads
            return from_arrow_schema(whole)
        _check_alike(log, topics)
        return from_arrow_schema(pa.schema([field for field in whole if field.name not in _OF_DEFINITIONS]))

    def reader(self, schema: StructType) -> DataSourceReader:
        return LogReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if _plans_alone():
            hide_pandas()
        return LogStreamReader(self.options, schema)
