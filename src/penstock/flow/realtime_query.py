"""A real-time query: Spark's own source and sink do the work, so nothing here sees a row.

Results are written at least once, and late rows are dropped by Spark, which counts them. What a query has
read is noted when one of Spark's long batches ends; after a restart, what came since then is written again.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from penstock.clock import duration_ms
from penstock.errors import NotSupported, QueryFailed
from penstock.flow import connector, history, messages
from penstock.flow.commit import Position
from penstock.flow.failure import gist
from penstock.flow.offset import Ends, Offset, Point, at_rest
from penstock.flow.plan import Scan, begin_of, beginning
from penstock.flow.query import Query, create_output, setting
from penstock.log.log import AtomicProducer

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BATCH = "1 minute"
"""How long one of Spark's batches is: as much is written again after a restart."""

_STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion", "2"
_BATCH_S_MIN = 5.0  # Spark's own
_ASIDE, _ASIDE_EVERY = "aside", "10 seconds"
_ASIDE_AGAIN_S, _ASIDE_FAILURES_MAX = 10.0, 5


class RealtimeQuery(Query):
    """One definition between Kafka and Kafka."""

    ends_batches = False  # they are long, and nothing is whole at their ends
    _producer: AtomicProducer | None = None
    _known: Position | None = None
    _checkpoint_name: str = ""
    _start: str = "earliest"
    _aside: StreamingQuery | None = None
    _aside_failures = 0
    _aside_again_at = 0.0

    @property
    def position(self) -> Position | None:
        return self._known

    def start(
        self, *, every: str | None, once: bool, rows_max: int | None = None, now_us: int | None = None
    ) -> None:
        """`every`: how long Spark's batches are. With `once` they are micro-batches, up to the end."""
        (member,) = self.members
        self.stop()  # what is left of an earlier start
        self.check()
        create_output(self._log, member, evolve=True)
        self._producer = self._log.producer(self._place.producer)
        self._known = self.stored
        checkpoint = self._checkpoint(self._known.checkpoint if self._known else None)
        self._start = self._starting(checkpoint.name)
        df = member.build(self._build(further={"starting": self._start}))
        if not once:
            _check_slots(self._session, self._tasks())
        settings = self._log.port.settings(member.output.name)
        self._checkpoint_name = checkpoint.name
        if self._known is None or self._known.checkpoint != checkpoint.name:
            self._store(at_rest(self._known.batch.end if self._known else self._beginning()), spark_batch=-1)
        self._put_aside(once=once)
        writer: Any = self._sink(messages.messages(df, settings), checkpoint).queryName(self.name)
        trigger: Any = {"availableNow": True} if once else {"realTime": _length(every)}
        with setting(self._session, *_STATE_FORMAT):  # also once: a real-time query must be able to go on
            self.running = writer.outputMode("update").trigger(**trigger).start()

    def look(self, *, last: bool = False) -> None:
        """Note how far it is, when one of Spark's batches has ended."""
        if self.running is None:
            return
        if progress := self.running.lastProgress:
            self._note(progress)
        self._look_at_aside()

    def can_replay(self) -> bool:
        """Values so far, written again from the first, would take the place of newer ones."""
        return not self.stateful

    def _look_at_aside(self) -> None:
        aside = self._aside
        if aside is None or aside.isActive or self.running is None or not self.running.isActive:
            return
        if (failure := aside.exception()) is not None and self._aside_failures == _ASIDE_FAILURES_MAX:
            raise QueryFailed(f"{self.name}.{_ASIDE}", gist(str(failure)))
        if time.monotonic() > self._aside_again_at:
            self._aside_failures += 1
            self._put_aside(once=False)

    def stop(self) -> None:
        super().stop()
        if self._aside is not None:
            self._aside.stop()

    # ---- starting -----------------------------------------------------------------------------

    def _beginning(self) -> Point:
        return beginning(self._log, Scan(self.members[0].topics))

    def _starting(self, checkpoint: str) -> str:
        """Where a new checkpoint begins: state is made of everything before, and what has none goes on."""
        known = self._known
        if known is None or known.checkpoint == checkpoint:
            return "earliest"
        if self.stateful:
            self._check_all_there()
            return "earliest"
        ends = {
            topic: {str(n): begin_of(known.batch.end, topic, n) for n in range(self._partitions(topic))}
            for topic in known.batch.end.ends
        }
        return json.dumps(ends)

    def _partitions(self, topic: str) -> int:
        return self._log.port.settings(topic).partitions

    def _tasks(self) -> int:
        """How many it has, all at once."""
        reading = sum(map(self._partitions, self.members[0].topics))
        shuffled = int(self._session.conf.get("spark.sql.shuffle.partitions") or 0)
        return reading + (shuffled if self.stateful else 0)

    def _check_all_there(self) -> None:
        if gone := history.gone(self._log, history.batches(self._log, self.history)):
            raise NotSupported(
                f'"{self.name}" has lost its state, and {gone}.',
                hint="it cannot count again what is gone: define it under another name",
            )

    def _sink(self, df: DataFrame, checkpoint: Path) -> Any:
        chosen = {**connector.options(self._place.log), "checkpointLocation": str(checkpoint)}
        return df.writeStream.format("kafka").options(**chosen)

    def _put_aside(self, *, once: bool) -> None:
        """What is no record goes to a topic of its own, by a query of its own.

        Real-time mode takes no second branch. With `once`, this returns when that is done.
        """
        from penstock.kafka.log import POISON, KafkaLog

        topics, port = self.members[0].topics, self._log.port
        assert isinstance(port, KafkaLog)
        settings = port.settings(topics[0])
        if messages.is_bytes(settings):  # every message is a record
            return
        for topic in topics:
            port.poison_topic(topic)
        raw = connector.source(self._session, self._place.log, topics, starting=self._start)
        checkpoint = self._place.folder / self._checkpoint_name / _ASIDE
        writer = self._sink(messages.misfits(raw, settings, POISON), checkpoint)
        trigger: Any = {"availableNow": True} if once else {"processingTime": _ASIDE_EVERY}
        self._aside = writer.queryName(f"{self.name}.{_ASIDE}").trigger(**trigger).start()
        self._aside_again_at = time.monotonic() + _ASIDE_AGAIN_S
        if once and self._aside is not None:
            self._aside.awaitTermination()

    # ---- how far it is ------------------------------------------------------------------------

    def _note(self, progress: Any) -> None:
        known, (source, *_) = self._known, progress["sources"]
        number, ends = int(progress["batchId"]), _ends(source["endOffset"])
        if known is None or number <= known.spark_batch or not ends:
            return
        dropped = sum(int(op["numRowsDroppedByWatermark"]) for op in progress["stateOperators"])
        batch = Offset(known.batch.end, Point(ends), rows=int(progress["numInputRows"]), unusable=dropped)
        self._store(batch, spark_batch=number, took_ms=int(progress["batchDuration"]))
        self._hold(batch)

    def _store(self, batch: Offset, *, spark_batch: int, took_ms: int = 0) -> None:
        """In the log, where others find it."""
        assert self._producer is not None
        known = self._known
        number = known.number + 1 if known else 0
        position = Position(self.identity, self._checkpoint_name, spark_batch, number, batch, evicted_ms=0)
        note = history.note(self._place.producer, number, batch, rows=batch.rows, took_ms=took_ms)
        noted = {**note, "changes": 0, "late": batch.unusable}
        self._producer.append({self.history: noted}, position=position.encode())
        self._known = position


def _length(every: str | None) -> str:
    """Of a batch. A shorter interval is meant for micro-batches."""
    return every if every is not None and duration_ms(every) >= _BATCH_S_MIN * 1_000 else BATCH


def _ends(offset: str | None) -> Ends:
    """Spark's offsets of a Kafka source as ours."""
    found = json.loads(offset or "{}")
    return {topic: tuple(of[str(n)] for n in range(len(of))) for topic, of in found.items()}


def _check_slots(session: SparkSession, tasks: int) -> None:
    context: Any = session.sparkContext._jsc.sc()
    slots = int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))
    if slots <= tasks:
        raise NotSupported(
            f"real-time mode runs {tasks} tasks at once, and Spark has room for {slots} in all.",
            hint=f'start Spark with more: spark="local[{tasks + slots}]", or more cores in the cluster',
        )
