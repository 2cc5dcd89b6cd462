"""What is known while a definition is being built: how its topics are read, and what its operators said.

A definition is a plain function that returns a DataFrame. It is called several times, in different modes:
once to run it as a stream, and again whenever rows have to be looked at a second time (the late ones of a
batch, all of them for verify). `stream()` of a topic asks the build what kind of DataFrame is wanted;
operators tell it what they did.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from penstock.errors import BadDefinition
from penstock.flow.offset import STEP_US, Offset
from penstock.flow.plan import Scan, column_of
from penstock.log.log import Log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.flow.gather import Gather

Mode = Literal["stream", "batch", "odd"]
Clock = Literal["event", "append", "processing"]
Late = Literal["divert", "drop", "correct"]
Emit = Literal["live", "final"]

HIDDEN = (
    "_topic", "_partition", "_offset", "_timestamp", "_watermark", "_event_time", "_processed",
    "_time_usable", "_heartbeat",
)  # fmt: skip


PLACE = ("_topic", "_partition", "_offset", "_timestamp", "_watermark")
"""What operators need to know of a row beside its own columns."""

_ROWS_MAX = 1_000_000
_ROWS_MAX_GATHERED = 4_000_000  # few of them get into Spark

TIME_MARK = "penstock.time"
"""In the metadata of the column that is a stream's event time: renamed, it is still that column."""


_OF_GROUP = re.compile(r"_topic#\d+ IN \(([^)]*)\)")  # the filter of `_part`, as Spark shows it


class ReadTogether(Exception):
    """The definition reads these groups of topics, and they must come from one source: build it again."""

    def __init__(self, groups: tuple[tuple[str, ...], ...], tables: frozenset[str] = frozenset()) -> None:
        super().__init__(groups)
        self.groups = groups
        self.tables = tables


class AnotherClock(Exception):
    """The definition counts time by another clock than its topics were opened with: build it again."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.clock = clock


@dataclass(frozen=True, slots=True)
class Aside:
    """Records of a topic that an operator can make nothing of: they are put with the late ones."""

    topic: str
    reasons: Callable[[pa.Table], pa.Table]  # of records: those, by `_partition`, `_offset` and `reason`


@dataclass(slots=True)
class Operator:
    """One operator of ours, as it was used."""

    name: str
    inputs: int = 1
    stateful: bool = True
    late: Late = "divert"
    emit: Emit = "live"
    span_us: int = 0  # how long after an event its last window can end
    correct_us: int = 0
    windowed: bool = True
    output: Literal["update", "append", "changes"] = "update"
    final_by: str | None = None  # the column by which a final row was due to come out
    again_by: str | None = None  # the column that tells a row which a state built anew gives once more
    late_rows: DataFrame | None = None  # in mode "odd": the (row, window) pairs it leaves out
    aside: Aside | None = None
    whole: DataFrame | None = None  # what the definition must return as it is: rows in it are not its own
    not_verifiable: str | None = None
    approximate: Mapping[str, float] = field(default_factory=dict)
    means: str = ""  # what it computes, where that is not in Spark's plan


@dataclass(slots=True)
class Build:
    """One call of a definition."""

    session: SparkSession
    log: Log
    home: str = field(repr=False)  # where the log is: a folder, or kafka://…, maybe with a password
    mode: Mode = "stream"
    clock: Clock = "event"
    ticks: bool = False
    rows_max: int | None = None  # about how many a batch may have
    settle_us: int = 0
    extra_delay_us: int = 0  # Spark keeps windows longer where they can be corrected
    undated: bool = False  # without state, event times do not matter: every record counts
    source: dict[tuple[str, ...], DataFrame] = field(default_factory=dict)  # one, shared by all who read it
    groups: tuple[tuple[str, ...], ...] = ()  # of topics, where several are read together
    tables: frozenset[str] = frozenset()  # topics that are read as versions of a table's rows
    together: DataFrame | None = None  # the source of all groups
    columns: frozenset[str] | None = None  # of the source; None for all
    batches: Sequence[Offset] = ()
    closed_us: int | None = None  # in a batch build: how far a stream would have closed windows
    further: Mapping[str, str] = field(default_factory=dict)  # options of the source
    gathers: bool = False  # events were added up at the source
    realtime: bool = False
    topics: list[str] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    time: str | None = None
    before_reading: Callable[[str], None] | None = None

    def clear(self) -> None:
        """For another call of the definition."""
        for left in (self.source, self.topics, self.operators):
            left.clear()
        self.together = None

    def add(self, operator: Operator) -> None:
        if self.realtime:
            raise BadDefinition(
                f"real-time mode has no ps.{operator.name}.",
                hint="use Spark's own: groupBy(F.window(...)), dropDuplicates(...); or leave latency= out",
            )
        self.operators.append(operator)

    def scan(self, topics: Sequence[str]) -> Scan:
        return Scan(tuple(topics), self.clock, self.rows_max or _ROWS_MAX, self.settle_us)


_current: contextvars.ContextVar[Build | None] = contextvars.ContextVar("penstock_build", default=None)


def current() -> Build:
    """The build under way. Operators and `stream()` mean nothing outside of one."""
    build = _current.get()
    if build is None:
        raise BadDefinition(
            "a stream can only be used inside a definition.",
            hint="put it into a function under @app.view or @app.stream",
        )
    return build


@contextlib.contextmanager
def building(build: Build) -> Iterator[Build]:
    token = _current.set(build)
    try:
        yield build
    finally:
        _current.reset(token)


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """While another definition is built in the middle of one."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


def call(function: Callable[[], Any], build: Build) -> DataFrame:
    """Build a definition, again if it counts time by another clock than assumed."""
    try:
        result = _called(function, build)
    except AnotherClock as asked:
        build.clock = asked.clock
        build.clear()
        result = _called(function, build)
    _check_one_source(build, _sources(result))
    return result


def _called(function: Callable[[], Any], build: Build) -> DataFrame:
    """Once more for each further topic that it reads: they are opened together."""
    with building(build):
        while True:
            try:
                result: DataFrame = function()
                _check_whole(build, result)
                return result
            except ReadTogether as asked:
                build.clear()
                build.groups = asked.groups
                build.tables |= asked.tables


def _check_whole(build: Build, result: DataFrame) -> None:
    for operator in build.operators:
        if operator.whole is not None and operator.whole is not result:
            raise BadDefinition(
                f"rows that ps.{operator.name} diverts would be lost in what follows it.",
                hint="return its result as it is, and go on in a definition of its own",
            )


def _check_one_source(build: Build, scans: int) -> None:
    """What is read several times must have come together in an operator of ours, that knows its rows."""
    if scans <= 1 + sum(operator.inputs - 1 for operator in build.operators):
        return
    if build.groups:
        first, second, *_ = (", ".join(group) for group in build.groups)
        raise BadDefinition(
            f"it reads {first} and, apart from that, {second}.",
            hint="relate them with ps.join_within and its like; topics with the same columns can be read as "
            "one: ps.stream(one, other)",
        )
    raise BadDefinition(
        "it reads its stream more than once, and each would be read by itself.",
        hint="make each part a definition of its own",
    )


def _sources(df: Any) -> int:
    if not getattr(df, "isStreaming", False):
        return 0
    leaves: Any = df._jdf.queryExecution().analyzed().collectLeaves()
    return sum(leaves.apply(number).isStreaming() for number in range(leaves.size()))


def stream_of(topics: Sequence[str]) -> DataFrame:
    """Topics as a DataFrame, of the kind the build under way asks for."""
    build = current()
    for topic in topics:
        if build.before_reading is not None:
            build.before_reading(topic)
    wanted = tuple(topics)
    if wanted not in build.source:
        _check_alike(build, wanted)
        if build.source and wanted not in build.groups:
            raise ReadTogether((*(build.groups or build.source), wanted))
        build.source[wanted] = _group(build, wanted) if build.groups else _opened(build, wanted)
    return build.source[wanted]


def table_of(topic: str) -> DataFrame:
    """A table's records, every one of them: its own columns as they are stored, and the system's in sight."""
    build = current()
    wanted = (topic,)
    if wanted not in build.groups or topic not in build.tables:
        groups = build.groups or tuple(build.source)
        raise ReadTogether(groups if wanted in groups else (*groups, wanted), frozenset({topic}))
    stream_of(wanted)
    return _part(build, wanted, _columns_of(build, wanted))


def records(build: Build, topics: Sequence[str], clock: Clock) -> DataFrame:
    """Topics as they are read by several definitions without state: every column, the system's in sight."""
    build.clock, build.undated = clock, True
    build.time = _time_column(build, topics)
    return build.session.readStream.format("penstock").options(**_options(build, topics)).load()


def take(build: Build, topics: tuple[str, ...], clock: Clock, df: DataFrame) -> None:
    """Let a definition find these records where it opens its topics."""
    from penstock.flow.hidden import hide

    build.clock = clock
    build.topics.extend(topics)
    build.time = _time_column(build, topics)
    build.source[topics] = hide(timed(df, build.time), HIDDEN)


def _check_alike(build: Build, topics: tuple[str, ...]) -> None:
    first, *others = (build.log.port.settings(topic) for topic in topics)
    for settings in others:
        alike = (settings.stored, settings.event_time, settings.sent_time)
        if alike != (first.stored, first.event_time, first.sent_time):
            raise BadDefinition(
                f'topics "{first.name}" and "{settings.name}" have other columns or another event time.',
                hint="bring them into one form with a stream for each",
            )


def _opened(build: Build, topics: tuple[str, ...]) -> DataFrame:
    """The source as a DataFrame, its system columns out of sight."""
    from penstock.flow.hidden import hide

    build.topics.extend(topic for topic in topics if topic not in build.topics)
    build.time = _time_column(build, topics)
    if build.realtime:
        from penstock.flow import realtime  # it builds on this module

        return realtime.opened(build, topics)
    options = _options(build, topics)
    hidden = [name for name in HIDDEN if name != build.time or build.undated]
    if build.mode != "stream":
        plain = build.session.read.format("penstock").options(**options).load()
        return hide(timed(plain, build.time), hidden)
    reader = build.session.readStream.format("penstock").options(**options)
    if build.columns is not None:
        reader = reader.schema(_narrowed(build, topics))
    if build.undated:
        return hide(timed(reader.load(), build.time), hidden)
    return hide(_watermarked(build, topics, reader.load()), hidden)


def _group(build: Build, topics: tuple[str, ...]) -> DataFrame:
    """Topics that are read together with others: a query has one source, whose offset is its position.

    Spark scans it once for each group. All have one watermark: that of the log, whoever moved it.
    """
    from penstock.flow.hidden import hide

    if build.realtime:
        raise BadDefinition("real-time mode reads one topic.", hint="leave latency= out")
    build.together = build.together or _opened_together(build)
    time, sources = _time_column(build, topics), _columns_of(build, topics)
    timeless = build.scan(build.topics).is_timeless(build.log, topics[0])
    # In the second look, an event without a usable time shows what it has.
    as_it_is = build.mode == "odd" or timeless
    if not as_it_is:
        assert build.time is not None
        sources[time] = build.time
    mine = _part(build, topics, sources)
    hidden = [name for name in HIDDEN if name in mine.columns and name != time]
    return hide(timed(mine, time) if as_it_is else mine, hidden)


def _columns_of(build: Build, topics: tuple[str, ...]) -> dict[str, str]:
    """By name, what the source of all groups calls each column of these topics."""
    number, names = build.groups.index(topics), build.log.port.settings(topics[0]).stored.names
    return {name: column_of(number, name) for name in names} | {name: name for name in HIDDEN}


def _part(build: Build, topics: tuple[str, ...], sources: Mapping[str, str]) -> DataFrame:
    """The records of these topics in the source of all groups, as far as it has their columns."""
    from pyspark.sql import functions as F

    together = build.together
    assert together is not None
    columns = [
        F.col(f"`{source}`").alias(name) for name, source in sources.items() if source in together.columns
    ]
    return together.filter(F.col("_topic").isin(*topics)).select(*columns)


def _opened_together(build: Build) -> DataFrame:
    for group in build.groups:
        build.topics.extend(topic for topic in group if topic not in build.topics)
    build.time = {"event": "_event_time", "append": "_timestamp"}.get(build.clock, "_processed")
    options = _options(build, build.topics)
    if build.mode != "stream":
        return timed(build.session.read.format("penstock").options(**options).load(), build.time)
    reader = build.session.readStream.format("penstock").options(**options)
    if build.columns is not None:
        reader = reader.schema(_narrowed(build, build.topics))
    return _watermarked(build, build.topics, reader.load())


def gathered(stream: DataFrame, gather: Gather) -> DataFrame:
    """The source that `stream` is, once more, with its events added up."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from penstock.flow.source import source_schema

    build = current()
    (topics,) = (topics for topics, opened in build.source.items() if opened is stream)
    build.gathers = True
    rows = from_arrow_schema(gather.rows(source_schema(build.log, build.scan(topics))))
    rows_max = build.rows_max or _ROWS_MAX_GATHERED
    options = {**_options(build, topics), "gather": gather.to_json(), "rows_max": str(rows_max)}
    reader = build.session.readStream.format("penstock").options(**options).schema(rows)
    return _watermarked(build, topics, reader.load())


def is_source(stream: DataFrame) -> bool:
    """Whether it is a topic as it was opened, alone, with nothing done to it."""
    build = current()
    return not build.groups and any(opened is stream for opened in build.source.values())


def _watermarked(build: Build, topics: Sequence[str], loaded: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    assert build.time is not None
    loaded = timed(loaded, build.time)
    delay_us = build.scan(topics).lateness_us(build.log) + STEP_US + build.extra_delay_us
    marked = loaded.withWatermark(build.time, f"{-(-delay_us // 1000)} milliseconds")
    # No heartbeat must be lost below the watermark, where Spark moves every filter that it can: this one
    # needs the time column, and what is not deterministic lets no filter of the user's or of ours past it.
    heartbeats_out = F.when(F.col("_heartbeat"), None).otherwise(F.col(build.time)).isNotNull()
    return marked.filter(heartbeats_out & (F.spark_partition_id() >= 0))


def _narrowed(build: Build, topics: Sequence[str]) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    from penstock.flow.source import source_schema

    assert build.columns is not None
    wanted = {*build.columns, build.time, *(() if build.undated else ("_heartbeat",))}
    whole = source_schema(build.log, build.scan(topics), build.groups)
    return from_arrow_schema(pa.schema([field for field in whole if field.name in wanted]))


def frame(given: Any) -> DataFrame:
    """The stream that is meant: a DataFrame, or a topic or stream of the app as it is."""
    from pyspark.sql import DataFrame

    if isinstance(given, DataFrame):
        return given
    if callable(opened := getattr(given, "stream", None)):
        found: DataFrame = opened()
        return found
    raise BadDefinition(f"{given!r} is no stream.", hint="give it topic.stream()")


def read_by(df: DataFrame) -> str:
    """Which of the topics that are read together a stream is made of; the same for the same topics."""
    plan: Any = df._jdf.queryExecution().analyzed()
    return str(_OF_GROUP.findall(plan.treeString())[-1:])


def timed(df: DataFrame, time: str) -> DataFrame:
    """With this column as the event time, where it is among them."""
    from pyspark.sql import functions as F

    if time not in df.columns:
        return df
    return df.withColumn(time, F.col(f"`{time}`").alias(time, metadata={TIME_MARK: True}))


def _time_column(build: Build, topics: Sequence[str]) -> str:
    settings = build.log.port.settings(topics[0])
    if build.clock == "processing":
        return "_processed"
    if build.clock == "append" or settings.event_time is None:
        return "_timestamp"
    return "_event_time" if settings.sent_time else settings.event_time


def _options(build: Build, topics: Sequence[str]) -> dict[str, str]:
    options = {
        "home": build.home,
        "topics": ",".join(topics),
        "groups": ";".join(map(",".join, build.groups)),
        "tables": ",".join(sorted(build.tables)),
        "clock": build.clock,
        "time": build.time or "",
        "rows_max": str(build.rows_max or _ROWS_MAX),
        "settle_us": str(build.settle_us),
        "tasks": str(build.session.sparkContext.defaultParallelism),
        "ticks": "true" if build.ticks and not build.undated else "false",
        "undated": "true" if build.undated else "false",
        **build.further,
    }
    if build.mode == "stream":
        return options
    batches = json.dumps([offset.to_json() for offset in build.batches])
    return {**options, "batches": batches, "odd": "true" if build.mode == "odd" else "false"}
