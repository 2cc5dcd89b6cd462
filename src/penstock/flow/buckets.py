"""Stateful operators over hash buckets: one pure function for each, everything about Spark here.

Keys are spread over a few buckets; a bucket's state is one value: Arrow tables as IPC bytes. An operator is a
`Step`: it gets these tables, the new rows of each of its inputs and the watermark, and returns the tables to
keep, the rows to emit and when to be called again. What holds:

- A step sees all new rows of its bucket and batch at once, in no particular order.
- It is called once per batch and bucket at most: with rows, or when the watermark has reached `wake_us`.
- Event time moves with Spark's watermark: rows at or before it are complete. Which rows are late is decided
  before; here none is dropped (the packed rows have no event-time column for Spark to drop them by).

Rows travel as Arrow bytes too, many at a time: Spark hands rows to Python processors one by one, as pandas,
which is slow, and makes a BIGINT with nulls a float.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)

from penstock.errors import BadOption
from penstock.flow.aggregate_columns import named
from penstock.flow.packed import from_bytes, to_bytes
from penstock.flow.stepped import SteppedTables
from penstock.schema import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BUCKETS = 8
# Spark makes named tuples of packed rows on their way, and those rename what begins with an underscore.
_BUCKET, _INPUT, _ROWS = "bucket", "input", "packed"
_PACKED_ROWS = 65_536  # rows that a task holds before it hands on packed ones


Tables: TypeAlias = tuple[pa.Table, ...]
Step: TypeAlias = Callable[[Tables | None, Tables, int], SteppedTables]
"""(state, new rows of each input, watermark in microseconds) to what follows from them. Pure."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """What a step over one input, with one table of state, gives."""

    state: pa.Table
    output: pa.Table
    wake_us: int | None = None


SimpleStep: TypeAlias = Callable[[pa.Table | None, pa.Table, int], Stepped]


@dataclass(frozen=True, slots=True)
class Input:
    """A streaming DataFrame with a watermark, or a part of one.

    Rows with equal `by` meet in one bucket, whichever input they are of; `rows` are the columns that a step
    needs of them.
    """

    df: DataFrame
    by: Sequence[str]
    rows: pa.Schema
    everywhere: bool = False  # every bucket gets all of its rows


def arrow_schema(df: DataFrame, columns: Sequence[str] | None = None) -> pa.Schema:
    """The columns as a step sees them. Raises BadOption for one that is not there."""
    # Without what Spark and we have noted of them: which is the event time may be another one afterwards.
    whole = pa.schema([field.remove_metadata() for field in to_arrow_schema(df.schema, timezone="UTC")])
    for name in columns or ():
        if name not in whole.names:
            raise BadOption(f'there is no column "{name}".', hint=did_you_mean(name, whole.names))
    return whole if columns is None else pa.schema([whole.field(name) for name in dict.fromkeys(columns)])


def in_buckets(
    df: DataFrame,
    *,
    by: Sequence[str],
    rows: pa.Schema,
    step: SimpleStep,
    output: pa.Schema,
    buckets: int = BUCKETS,
) -> DataFrame:
    """Runs `step` over the columns `rows` of one input. Without `by` there is only one bucket."""
    return together_in_buckets([Input(df, by, rows)], step=_Simple(step), output=output, buckets=buckets)


@dataclass(frozen=True, slots=True)
class _Simple:
    step: SimpleStep

    def __call__(self, state: Tables | None, new: Tables, watermark_us: int) -> SteppedTables:
        stepped = self.step(state[0] if state else None, new[0], watermark_us)
        return SteppedTables((stepped.state,), stepped.output, stepped.wake_us)


def together_in_buckets(
    inputs: Sequence[Input], *, step: Step, output: pa.Schema, buckets: int = BUCKETS
) -> DataFrame:
    """Runs `step` over several inputs.

    The number of buckets is part of the state: a query that goes on from a checkpoint needs the same one.
    """
    processor = Bucket(step, tuple(each.rows for each in inputs))
    return processed(inputs, processor, output=output, buckets=buckets)


def processed(
    inputs: Sequence[Input], processor: StatefulProcessor, *, output: pa.Schema, buckets: int = BUCKETS
) -> DataFrame:
    """What a processor of packed rows makes of several inputs."""
    if buckets < 1:
        raise BadOption(f"{buckets} buckets are too few.", hint=f"{BUCKETS} is usual")
    packed = [_packed(number, each, buckets) for number, each in enumerate(inputs)]
    united = reduce(lambda one, other: one.union(other), packed)
    emitted = united.groupBy(_BUCKET).transformWithStateInPandas(
        processor, f"{_ROWS} BINARY", "Append", "EventTime"
    )
    places = pa.schema([field.with_name(_place(number)) for number, field in enumerate(output)])
    return emitted.mapInArrow(_unpacked, from_arrow_schema(places)).toDF(*output.names)


def _packed(number: int, given: Input, buckets: int) -> DataFrame:
    columns = [named(name).alias(_place(place)) for place, name in enumerate(given.rows.names)]
    bucket = F.lit(0)  # an INT, as all of these are
    if given.everywhere:
        bucket = F.explode(F.sequence(F.lit(0), F.lit(buckets - 1)))
    elif given.by:
        bucket = F.pmod(F.hash(*map(named, given.by)), F.lit(buckets))
    return given.df.select(bucket.alias(_BUCKET), *columns).mapInArrow(
        _packing(number, given.rows), f"{_BUCKET} INT, {_INPUT} INT, {_ROWS} BINARY"
    )


def _place(number: int) -> str:
    """What a column is called on its way through mapInArrow, which takes no name with a dot in it."""
    return f"c{number}"


def _packing(
    number: int, schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: list[pa.RecordBatch] = []
        for batch in batches:
            held.append(batch)
            if sum(map(len, held)) >= _PACKED_ROWS:
                yield _by_bucket(held, number, schema)
                held = []
        if held:
            yield _by_bucket(held, number, schema)

    return pack


def _by_bucket(batches: list[pa.RecordBatch], number: int, schema: pa.Schema) -> pa.RecordBatch:
    whole = pa.Table.from_batches(batches)
    numbers = pc.unique(whole[_BUCKET])
    rows = whole.drop_columns([_BUCKET]).rename_columns(schema.names).cast(schema)
    packed = [to_bytes(rows.filter(pc.equal(whole[_BUCKET], number))) for number in numbers]
    columns = [
        numbers.cast(pa.int32()),
        pa.repeat(pa.scalar(number, pa.int32()), len(numbers)),
        pa.array(packed, pa.binary()),
    ]
    return pa.record_batch(columns, names=[_BUCKET, _INPUT, _ROWS])


def _unpacked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for packed in batch.column(0):
            rows = from_bytes(packed.as_buffer())
            yield from rows.rename_columns(
                [_place(number) for number in range(rows.num_columns)]
            ).to_batches()


def _to_one(tables: Tables) -> bytes:
    return to_bytes(pa.table({_ROWS: pa.array([to_bytes(table) for table in tables], pa.binary())}))


def _from_one(packed: Any) -> Tables:
    return tuple(from_bytes(each.as_buffer()) for each in from_bytes(packed)[_ROWS])


class Bucket(StatefulProcessor):
    """One bucket's state: its tables, and the timer that is set for it."""

    def __init__(self, step: Callable[..., SteppedTables], schemas: tuple[pa.Schema, ...]) -> None:
        self._step = step
        self._schemas = schemas

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state: ValueState = handle.getValueState("bucket", "packed BINARY, timer_ms BIGINT")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        found: list[list[pa.Table]] = [[schema.empty_table()] for schema in self._schemas]
        for frame in rows:
            for number, packed in zip(frame[_INPUT], frame[_ROWS], strict=True):
                found[number].append(from_bytes(packed))
        return self._advance(tuple(map(pa.concat_tables, found)), timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        nothing = tuple(schema.empty_table() for schema in self._schemas)
        return self._advance(nothing, timerValues, fired_ms=expiredTimerInfo.getExpiryTimeInMs())

    def close(self) -> None:
        pass

    def _advance(
        self, new: Tables, times: TimerValues, *, fired_ms: int | None = None
    ) -> Iterator[pd.DataFrame]:
        stored = self._state.get() if self._state.exists() else None
        state = _from_one(stored[0]) if stored else None
        # Spark's time is in milliseconds, and so is its rule for what is late: all up to this moment.
        stepped = self._stepped(state, new, times.getCurrentWatermarkInMs() * 1_000)
        self._keep(stepped, set_ms=stored[1] if stored else None, fired_ms=fired_ms)
        if len(stepped.output):
            yield pd.DataFrame({_ROWS: [to_bytes(stepped.output)]})

    def _stepped(self, state: Tables | None, new: Tables, watermark_us: int) -> SteppedTables:
        return self._step(state, new, watermark_us)

    def _keep(self, stepped: SteppedTables, *, set_ms: int | None, fired_ms: int | None) -> None:
        wake_ms = None if stepped.wake_us is None else -(-stepped.wake_us // 1_000)
        if set_ms is not None and set_ms not in {wake_ms, fired_ms}:
            self._handle.deleteTimer(set_ms)
        if wake_ms is not None and wake_ms != set_ms:
            self._handle.registerTimer(wake_ms)
        if any(map(len, stepped.state)):
            self._state.update((_to_one(stepped.state), wake_ms))
        elif set_ms is not None or self._state.exists():
            self._state.clear()
