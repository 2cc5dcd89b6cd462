"""The commit point of a query: one atomic append of changelog, late pairs, history and position.

Spark calls `foreachBatch` again with the same batch after a crash. The position in the log says which batch
was stored last, and of which checkpoint; a batch that is stored already is computed (Spark's state needs
that) and not stored again. A batch that does not follow on what is stored means that the checkpoint is not
the one this log was written by: `Diverged`, and the state is built anew from the log.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.flow import history
from penstock.flow import offset as offsets
from penstock.flow import output as outputs
from penstock.flow.offset import Offset
from penstock.flow.output import Output
from penstock.log.log import AtomicProducer, Log
from penstock.log.topic import Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Diverged(Exception):
    """The checkpoint is not where the log says it should be."""


@dataclass(frozen=True, slots=True)
class Position:
    """The last batch a query has stored."""

    identity: str  # of the plan
    checkpoint: str
    spark_batch: int
    number: int
    batch: Offset
    evicted_ms: int  # Spark has closed windows up to here
    version: int = 0  # grows with every rebuild
    late_from: int = 0  # where the late pairs of this version begin in their topic
    late: int = 0  # how many there are

    def encode(self) -> bytes:
        return json.dumps(
            {
                "identity": self.identity,
                "checkpoint": self.checkpoint,
                "spark_batch": self.spark_batch,
                "number": self.number,
                "batch": self.batch.to_json(),
                "evicted_ms": self.evicted_ms,
                "version": self.version,
                "late_from": self.late_from,
                "late": self.late,
            }
        ).encode()

    @classmethod
    def decode(cls, stored: bytes) -> Position:
        plain = json.loads(stored)
        return cls(**{**plain, "batch": Offset.from_json(plain["batch"])})


def producer_of(app: str, query: str) -> str:
    """The name under which a query writes."""
    return f"flow.{app}.{query}"


def position_of(log: Log, producer: str) -> Position | None:
    """What a query has stored, without taking it over."""
    stored = log.port.producer_position(producer).position
    return Position.decode(stored) if stored else None


@dataclass(frozen=True, slots=True)
class Planned:
    """A batch as Spark has planned it: its offset, and the watermark by which it closes windows."""

    batch: Offset
    evicted_ms: int


LateTable = Callable[[Offset], Mapping[str, pa.Table]]
"""The late pairs of a batch, by view."""


class Committer:
    """Stores the batches of one query. Used by Spark's callback thread alone."""

    def __init__(
        self,
        producer: AtomicProducer,
        *,
        query: str,
        identity: str,
        checkpoint: str,
        outputs: Mapping[str, Output],
        drops_unusable: bool = False,
        dropped: int = 0,
        lateness_us: int,
        late_table: LateTable,
    ) -> None:
        self._producer = producer
        self._query = query
        self._identity = identity
        self._checkpoint = checkpoint
        self._outputs = outputs
        self._drops_unusable = drops_unusable
        self.dropped = dropped  # rows that are nowhere, since the query was made
        self._lateness_us = lateness_us
        self._late_table = late_table
        stored = producer.position()
        self.position = Position.decode(stored) if stored else None
        self.replaying = self.position is not None and self.position.checkpoint != checkpoint

    def commit(
        self,
        spark_batch: int,
        planned: Planned,
        tables: Callable[[], Mapping[str, pa.Table]],
        run: Callable[[], None],
    ) -> None:
        """Store a batch, or only `run` it if it is stored already."""
        began = time.monotonic()
        if self._is_stored(spark_batch, planned.batch):
            run()
            return
        split = {name: outputs.diverted(self._new(name, table)) for name, table in tables().items()}
        found = {name: table for name, (table, _) in split.items()}
        diverted = {name: late for name, (_, late) in split.items() if late is not None}
        known = self.position.batch if self.position else None
        has_input = known is None or planned.batch.end != known.end
        if not has_input and not any(table.num_rows for table in (*found.values(), *diverted.values())):
            return  # Spark only closed what had come out before
        late = dict(self._late_table(planned.batch)) if has_input else {}
        for name, rows in diverted.items():
            late[name] = (
                pa.concat_tables([late[name], rows.cast(late[name].schema)]) if name in late else rows
            )
        self._store(
            spark_batch, planned, found, late, rows=planned.batch.rows if has_input else 0, began=began
        )

    def _new(self, name: str, table: pa.Table) -> pa.Table:
        if self.position is None:
            return table
        return outputs.not_before(self._outputs[name], table, self.position.evicted_ms)

    def _is_stored(self, spark_batch: int, batch: Offset) -> bool:
        known = self.position
        if known is None:
            return False
        if self.replaying:
            return self._is_replayed(known, spark_batch, batch)
        if spark_batch <= known.spark_batch:
            if spark_batch == known.spark_batch and batch == known.batch:
                return True
            raise Diverged(f"batch {spark_batch} is not the one that was stored")
        if known.batch.end not in (batch.start, batch.end):
            raise Diverged(f"batch {spark_batch} does not begin where the last stored one ended")
        return False

    def _is_replayed(self, known: Position, spark_batch: int, batch: Offset) -> bool:
        """While state is built anew: everything up to the stored position came out before."""
        if batch.start == known.batch.end != batch.end:
            self.replaying = False  # nothing had been read
            return False
        if batch.end == known.batch.end:
            # What this checkpoint does next follows on what another one has stored.
            self.position = replace(known, checkpoint=self._checkpoint, spark_batch=spark_batch, batch=batch)
            self.replaying = False
        elif not offsets.within(batch.end.ends, known.batch.end.ends):
            raise Diverged("the replay went past the stored position")
        return True

    def _store(
        self,
        spark_batch: int,
        planned: Planned,
        found: Mapping[str, pa.Table],
        late: Mapping[str, pa.Table],
        *,
        rows: int,
        began: float,
    ) -> None:
        number = self.position.number + 1 if self.position else 0
        closed_us = planned.batch.end.watermark_us(self._lateness_us)
        records: dict[Topic | str, Any] = {}
        for name, table in found.items():
            output = self._outputs[name]
            if output.kind == "view":
                records[name] = outputs.changes(output, table, number=number, closed_us=closed_us)
            elif table.num_rows:
                records[name] = table
        records |= {f"{name}{outputs.LATE}": table for name, table in late.items() if table.num_rows}
        version, late_from, late_before = (
            (self.position.version, self.position.late_from, self.position.late)
            if self.position
            else (0, 0, 0)
        )
        # A state built anew closes its windows again, from the first: what was closed stays so.
        evicted_ms = max(planned.evicted_ms, self.position.evicted_ms if self.position else 0)
        note = history.note(
            self._query, number, planned.batch, rows=rows, version=version, closed_us=closed_us,
            took_ms=round((time.monotonic() - began) * 1_000),
        )  # fmt: skip
        dropped = planned.batch.unusable if rows and self._drops_unusable else 0
        for name, table in found.items():
            left_out = late[name].num_rows if name in late else dropped
            own = {**note, "changes": table.num_rows, "late": left_out}
            records[f"{name}{outputs.BATCHES}"] = own
        position = Position(
            self._identity,
            self._checkpoint,
            spark_batch,
            number,
            planned.batch,
            evicted_ms,
            version,
            late_from,
            late_before + sum(table.num_rows for table in late.values()),
        )
        self._producer.append(records, position=position.encode())
        self.position = position
        self.dropped += dropped


def run_only(df: DataFrame) -> None:
    """Compute a batch for the sake of Spark's state."""
    df.write.format("noop").mode("overwrite").save()
