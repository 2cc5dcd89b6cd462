"""`ps.aggregate`: windows of event time over a stream, with every (row, window) pair accounted for.

A pair is late when its window ends at or before the watermark that the row met (see times.py). Pairs in
time are counted, late ones are diverted, dropped or correct the window; exactly one of these. Spark's own
watermark trails ours, so Spark itself never drops a row that we have counted on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from penstock.clock import duration_ms
from penstock.errors import BadDefinition, BadOption
from penstock.flow import build as builds
from penstock.flow import gather as gathering
from penstock.flow.aggregates import ARRIVAL, Aggregate
from penstock.flow.build import AnotherClock, Build, Clock, Emit, Late, Operator
from penstock.flow.gather import Gather
from penstock.flow.windows import Hopping, Session, Sliding, Tumbling, Window
from penstock.schema import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

REVISION = "_revision"


def aggregate(
    stream: DataFrame,
    *,
    by: str | Sequence[str] = (),
    window: Window | None = None,
    clock: Clock | None = None,
    late: Late = "divert",
    correct_for: str | float | None = None,
    emit: Emit | None = None,
    **aggregates: Aggregate | Column,
) -> DataFrame:
    """Group a stream by columns and windows of time.

    `ps.aggregate(stream, by="page", window=ps.tumbling("1 minute"), views=ps.count())` has the columns of
    `by`, a `window` (start, end) and the aggregates. It is kept current while a window is open; with
    `emit="final"` a window comes out once, when it is closed. `clock` says whose time counts: the events'
    own, the log's ("append") or this machine's at the moment of processing.
    """
    build, stream = builds.current(), builds.frame(stream)
    if clock is not None and clock != build.clock:
        raise AnotherClock(_one_of("clock", clock, Clock))
    keys = [by] if isinstance(by, str) else list(by)
    _check(stream, keys, window, late, correct_for, aggregates)
    operator = Operator(
        _name(window),
        late=late,
        emit=_emitted(window, emit, late)
        if emit
        else ("final" if isinstance(window, Session | Sliding) else "live"),
        span_us=window.span_us if window else 0,
        correct_us=duration_ms(correct_for) * 1_000 if correct_for is not None else 0,
        windowed=window is not None,
        not_verifiable="it counts processing time" if build.clock == "processing" else None,
        means=repr(
            (keys, window, sorted((n, repr(a)) for n, a in aggregates.items() if isinstance(a, Aggregate)))
        ),
        approximate={name: a.error for name, a in aggregates.items() if isinstance(a, Aggregate) and a.error},
    )
    build.add(operator)
    time = time_of(stream)
    if isinstance(window, Sliding):
        return _sliding(build, operator, stream, keys, time, window, aggregates)
    if isinstance(window, Session):
        return _session(build, operator, stream, keys, time, window, aggregates)
    return _windowed(build, operator, stream, keys, time, window, aggregates)


def _emitted(window: Window | None, emit: Emit, late: Late) -> Emit:
    _one_of("emit", emit, Emit)
    if emit == "live" and isinstance(window, Sliding):
        raise BadDefinition(
            "a sliding window comes out once, when it is final.", hint='leave emit="live" out'
        )
    if emit == "final" and (window is None or late == "correct"):
        raise BadDefinition(
            'emit="final" is for windows that close for good.', hint='use emit="live", or late="divert"'
        )
    return emit


def time_of(stream: DataFrame) -> str:
    """The column that is the stream's event time, under whatever name it has now."""
    for field in stream.schema.fields:
        if field.metadata.get(builds.TIME_MARK):
            return str(field.name)
    raise BadDefinition(
        f'the stream has lost its event time "{builds.current().time}".', hint="keep that column in select()"
    )


def _windowed(
    build: Build, operator: Operator, stream: DataFrame, keys: list[str], time: str,
    window: Tumbling | Hopping | None, aggregates: Mapping[str, Aggregate | Column],
) -> DataFrame:  # fmt: skip
    from pyspark.sql import functions as F

    if operator.emit == "final" and window:
        operator.output, operator.final_by = "append", "window_end"
    length_us = window.size_us if window else None
    gather = _gather(build, stream, keys, time, window, aggregates)
    if gather is not None:
        stream = builds.gathered(stream, gather)
        columns = [gathering.column_of(a, length_us).alias(name) for name, a in _typed(aggregates).items()]
    else:
        columns = _columns(aggregates, time, length_us)
    if window is None:
        late_rows(build, operator, stream, None)
        return stream.groupBy(*keys).agg(*columns)
    rows = stream if gather is not None else with_system(stream)
    pairs = rows.withColumn("window", spark_window(window, time))
    oldest = F.col("_watermark") - _interval(operator.correct_us)
    late_rows(build, operator, rows, F.col("window.end") <= oldest, pairs=pairs)
    if operator.late == "correct":
        corrects = F.when(F.col("window.end") <= F.col("_watermark"), 1).otherwise(0)
        columns.append(F.sum(corrects).cast("int").alias(REVISION))
    # A window ends after its events: the first test decides for nearly all, without computing the window.
    in_time = pairs.filter((F.col(f"`{time}`") > oldest) | (F.col("window.end") > oldest))
    return in_time.groupBy(*keys, "window").agg(*columns)


def _gather(
    build: Build, stream: DataFrame, keys: list[str], time: str, window: Tumbling | Hopping | None,
    aggregates: Mapping[str, Aggregate | Column],
) -> Gather | None:  # fmt: skip
    """How events may be added up before Spark sees them, where nothing lies between the topic and this."""
    if build.mode != "stream" or not builds.is_source(stream):
        return None
    from pyspark.sql.pandas.types import to_arrow_schema

    return gathering.gather_for(
        to_arrow_schema(stream.schema, timezone="UTC"), keys, time, window, aggregates
    )


def _session(
    build: Build, operator: Operator, stream: DataFrame, keys: list[str], time: str, window: Session,
    aggregates: Mapping[str, Aggregate | Column],
) -> DataFrame:  # fmt: skip
    from pyspark.sql import functions as F

    from penstock.flow import sessions

    rows = with_system(stream)
    oldest = F.col("_watermark") - _interval(operator.correct_us)
    late_rows(build, operator, rows, F.col(time) <= oldest)
    in_time = rows.filter(F.col(time) > oldest)
    live = operator.emit == "live" or operator.late == "correct"
    if live and build.mode == "stream":
        operator.output = "changes"
        found = sessions.sessions(
            in_time, by=keys, time=time, gap_us=window.gap_us, aggregates=_typed(aggregates),
            correct_us=operator.correct_us,
        )  # fmt: skip
        return found.drop("_final").withColumn(REVISION, F.col(REVISION).cast("int"))
    operator.output, operator.final_by = ("changes", None) if live else ("append", "window_end")
    session = F.session_window(F.col(time), _micros(window.gap_us)).alias("window")
    if keys:
        grouped = in_time.groupBy(*keys, session)
    else:  # Spark has no sessions of a stream as a whole: a group of everything, that it cannot see through
        everything = F.pmod(F.hash("_timestamp"), F.lit(1)).alias("_everything")
        grouped = in_time.groupBy(everything, session)
    length = F.unix_micros("window.end") - F.unix_micros("window.start")
    return grouped.agg(*_columns(aggregates, time, length)).drop("_everything")


def _sliding(
    build: Build, operator: Operator, stream: DataFrame, keys: list[str], time: str, window: Sliding,
    aggregates: Mapping[str, Aggregate | Column],
) -> DataFrame:  # fmt: skip
    from pyspark.sql import functions as F

    from penstock.flow import sliding

    if len(build.topics) > 1:
        raise BadDefinition(
            "a sliding window is that of one topic's events.", hint="make them one stream first"
        )
    operator.output, operator.final_by = "append", time
    rows = with_system(stream)
    late_rows(build, operator, rows, F.col(time) <= F.col("_watermark"))
    in_time = rows.filter(F.col(time) > F.col("_watermark"))
    if build.mode == "stream":
        found = sliding.sliding(
            in_time, by=keys, time=time, size_us=window.size_us, aggregates=_typed(aggregates)
        )
    else:
        found = sliding.sliding_batch(
            in_time, by=keys, time=time, size_us=window.size_us, aggregates=_typed(aggregates),
            watermark_us=build.closed_us,
        )  # fmt: skip
    places = {"_partition": "event_partition", "_offset": "event_offset"}
    return builds.timed(found, time).withColumnsRenamed(places)


def _typed(aggregates: Mapping[str, Aggregate | Column]) -> dict[str, Aggregate]:
    return {name: a for name, a in aggregates.items() if isinstance(a, Aggregate)}


def _micros(length_us: int) -> str:
    return f"{length_us} microseconds"


def spark_window(window: Tumbling | Hopping, time: str) -> Column:
    from pyspark.sql import functions as F

    if isinstance(window, Tumbling):
        return F.window(time, _micros(window.size_us))
    return F.window(time, _micros(window.size_us), _micros(window.hop_us))


def with_system(stream: DataFrame) -> DataFrame:
    """The stream with the columns in sight that say where and when a row came."""
    from penstock.flow.hidden import carries

    build = builds.current()
    wanted = (*builds.PLACE, "_time_usable") if build.mode == "odd" else builds.PLACE
    there = build.columns or wanted  # the source may have been opened without what is not needed
    missing = [name for name in wanted if name not in stream.columns and name in there]
    if not all(carries(stream, name) for name in missing):
        raise BadDefinition(
            "the rows no longer say where they came from: something before this grouped or united them.",
            hint="read several topics with ps.stream(one, other), put stateful steps into @app.stream, and "
            'join tables by a condition (one["id"] == other["id"]), not by a name',
        )
    return stream.select("*", *missing)


def late_rows(
    build: Build,
    operator: Operator,
    rows: DataFrame,
    is_late: Column | None,
    *,
    pairs: DataFrame | None = None,
) -> None:
    """In the second look at a batch, tell the build what was left out: rows, or pairs with a window."""
    if build.mode != "odd":
        return
    from pyspark.sql import functions as F

    whole = rows if "_watermark" in rows.columns else with_system(rows)
    left_out = _left_out(whole.filter(~F.col("_time_usable")), "no usable event time")
    if is_late is not None:
        behind = (whole if pairs is None else pairs).filter(F.col("_time_usable") & is_late)
        left_out = left_out.union(_left_out(behind, "late"))
    operator.late_rows = left_out


def _left_out(rows: DataFrame, reason: str) -> DataFrame:
    return rows.select(*late_pair(rows, reason))


def late_pair(rows: DataFrame, reason: str) -> list[Column]:
    """What is said of a row that is left out."""
    from pyspark.sql import functions as F

    windowed = "window" in rows.columns
    own = [F.col(f"`{name}`") for name in rows.columns if not name.startswith("_") and name != "window"]
    return [
        F.struct(*own).alias("row"),
        *(
            (F.col(f"window.{side}") if windowed else F.lit(None).cast("timestamp")).alias(f"window_{side}")
            for side in ("start", "end")
        ),
        F.col("_watermark").alias("watermark"),
        F.lit(reason).alias("reason"),
        F.col("_topic").alias("topic"),
        F.col("_partition").alias("partition"),
        F.col("_offset").alias("offset"),
    ]


def _columns(
    aggregates: Mapping[str, Aggregate | Column], time: str, length_us: int | Column | None
) -> list[Column]:
    return [
        (a.to_column(time, length_us=length_us) if isinstance(a, Aggregate) else a).alias(name)
        for name, a in aggregates.items()
    ]


def _interval(length_us: int) -> Column:
    from pyspark.sql import functions as F

    return F.expr(f"INTERVAL '{length_us / 1_000_000:.6f}' SECOND")


def _check(
    stream: DataFrame, keys: list[str], window: Window | None, late: Late, correct_for: object,
    aggregates: Mapping[str, Aggregate | Column],
) -> None:  # fmt: skip
    for key in keys:
        if key not in stream.columns:
            raise BadDefinition(
                f'there is no column "{key}" to group by.', hint=did_you_mean(key, stream.columns)
            )
    if not aggregates:
        raise BadDefinition("nothing to aggregate.", hint="name at least one, as views=ps.count()")
    _one_of("late", late, Late)
    if window is not None and not isinstance(window, Window):
        raise BadDefinition(f"window={window!r} is none.", hint='say ps.tumbling("1 minute")')
    if isinstance(window, Sliding) and late == "correct":
        raise BadDefinition("a sliding window is final when it comes out.", hint='use late="divert"')
    if window is None and late == "correct":
        raise BadDefinition("without a window nothing is late.", hint="leave late and correct_for out")
    if (late == "correct") != (correct_for is not None):
        raise BadDefinition(
            'late="correct" and correct_for belong together.', hint='late="correct", correct_for="1 hour"'
        )
    for name, a in aggregates.items():
        _check_aggregate(stream, window, name, a)


def _check_aggregate(stream: DataFrame, window: Window | None, name: str, a: Aggregate | Column) -> None:
    if name.startswith("_") or name == "window":
        raise BadDefinition(
            f'an aggregate cannot be named "{name}".', hint="choose a name without _ before it"
        )
    if isinstance(a, Aggregate):
        a.check(stream.select("*", *ARRIVAL).schema if a.needs_arrival else stream.schema)
    elif not isinstance(a, _column_type()):
        raise BadDefinition(
            f'"{name}" is {a!r}, which is no aggregate.',
            hint='call it, as in views=ps.count() or ms=ps.sum("ms")',
        )
    elif isinstance(window, Session | Sliding):
        raise BadDefinition(
            f'"{name}" is a Spark column, which {_name(window)} windows cannot compute.',
            hint="use ps.count(), ps.sum(...) and their like",
        )


def _column_type() -> type:
    from pyspark.sql import Column

    return Column


def _one_of(option: str, value: Any, kinds: Any) -> Any:
    if value not in get_args(kinds):
        raise BadOption(f"{option}={value!r}.", hint="choose one of " + ", ".join(get_args(kinds)))
    return value


def _name(window: Window | None) -> str:
    return type(window).__name__.lower() if window else "unwindowed"
