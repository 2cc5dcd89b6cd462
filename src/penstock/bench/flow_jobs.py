"""The jobs that `bench flow` runs, on Penstock and on plain Spark reading the same events as JSON files."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import penstock as ps
from penstock.app.graph import Graph
from penstock.app.runner import Runner
from penstock.app.status import Watch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DDL = "page BIGINT NOT NULL, user BIGINT NOT NULL, ms DOUBLE NOT NULL, at TIMESTAMP NOT NULL"
_PLAIN_DDL = DDL.replace(" NOT NULL", "")
_START_US = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp() * 1_000_000)
_PER_SECOND = 100_000  # events in a second of event time
_DISORDER_US = 2_000_000
_BATCH_ROWS = 50_000
_PLAIN_ROWS_MAX = 4_000_000  # in a batch of the peer; ours never have more
_LOOK_S = 0.02


def events(number: int, *, keys: int, seed: int = 7) -> list[pa.RecordBatch]:
    """Events a little out of order, in batches as a producer would send them."""
    random = np.random.default_rng(seed)
    times = _START_US + np.arange(number) * (1_000_000 // _PER_SECOND)
    times -= random.integers(0, _DISORDER_US, number)
    columns = {
        "page": random.integers(0, keys, number),
        "user": random.integers(0, 1_000_000, number),
        "ms": random.random(number) * 100,
        "at": pa.array(times).cast(pa.timestamp("us", tz="UTC")),
    }
    whole: pa.Table = pa.table(columns)
    return list(whole.to_batches(max_chunksize=_BATCH_ROWS))


@dataclass(frozen=True, slots=True)
class Job:
    """One definition and the same thing in plain Spark."""

    name: str
    define: Callable[[ps.App, Any], None]
    plain: Callable[[DataFrame], tuple[DataFrame, str]]
    keys: int = 1_000
    native: bool = True  # computed by Spark's own operators


def _copy(app: ps.App, topic: Any) -> None:
    @app.stream()
    def copied() -> DataFrame:
        return topic.stream()  # type: ignore[no-any-return]


def _plain_copy(stream: DataFrame) -> tuple[DataFrame, str]:
    return stream, "append"


def _count(late: Any) -> Callable[[ps.App, Any], None]:
    def define(app: ps.App, topic: Any) -> None:
        @app.view(key=["page", "window"])
        def counted() -> DataFrame:
            window = ps.tumbling("1 minute")
            return ps.aggregate(topic.stream(), by="page", window=window, late=late, n=ps.count())

    return define


def _plain_count(size: str, hop: str | None = None) -> Callable[[DataFrame], tuple[DataFrame, str]]:
    def plain(stream: DataFrame) -> tuple[DataFrame, str]:
        from pyspark.sql import functions as F

        window = F.window("at", size, hop) if hop else F.window("at", size)
        return stream.groupBy(window, "page").count(), "update"

    return plain


def newest_count(stream: DataFrame) -> DataFrame:
    """By key and minute, with the newest event time; for real-time mode."""
    from pyspark.sql import functions as F

    counted = stream.groupBy(F.window("at", "1 minute"), "page")
    return counted.agg(F.count("*").alias("n"), F.max("at").alias("at"))


def _windowed(window: Any) -> Callable[[ps.App, Any], None]:
    def define(app: ps.App, topic: Any) -> None:
        @app.view(key=["event"] if isinstance(window, type(ps.sliding("1 s"))) else ["page", "window"])
        def counted() -> DataFrame:
            return ps.aggregate(topic.stream(), by="page", window=window, n=ps.count())

    return define


def _plain_session(stream: DataFrame) -> tuple[DataFrame, str]:
    from pyspark.sql import functions as F

    return stream.groupBy(F.session_window("at", "100 milliseconds"), "page").count(), "append"


def _plain_sliding(stream: DataFrame) -> tuple[DataFrame, str]:
    """What Spark offers for a window per event: a join of the stream with itself."""
    from pyspark.sql import functions as F

    own = stream.select("page", "user", "at")
    others = stream.select(F.col("page").alias("its_page"), F.col("at").alias("its_at"))
    near = F.expr("page = its_page AND its_at > at - INTERVAL 100 MILLISECONDS AND its_at <= at")
    return own.join(others, near).groupBy("page", "user", "at").count(), "append"


COUNT = Job("tumbling count, divert", _count("divert"), _plain_count("1 minute"))
JOBS = (
    Job("stateless copy", _copy, _plain_copy),
    Job("tumbling count, drop", _count("drop"), _plain_count("1 minute")),
    COUNT,
    Job("tumbling count, drop, 100 k keys", _count("drop"), _plain_count("1 minute"), keys=100_000),
    Job("tumbling count, divert, 100 k keys", _count("divert"), _plain_count("1 minute"), keys=100_000),
    Job(
        "hopping count",
        _windowed(ps.hopping("1 minute", "30 seconds")),
        _plain_count("1 minute", "30 seconds"),
    ),
    Job("session count", _windowed(ps.session("100 ms")), _plain_session),
    Job("sliding count", _windowed(ps.sliding("100 ms")), _plain_sliding, native=False),
)


class FlowBench:
    """One session, one folder; each measurement has an app of its own."""

    def __init__(self, session: SparkSession, folder: Path) -> None:
        self.session = session
        self.folder = folder

    def ours(self, job: Job, batches: list[pa.RecordBatch], *, every: str | None = None) -> float:
        """Seconds from the start of the query until everything is in the store.

        `every`: with a batch this often, instead of one after the other until the end.
        """
        home = Path(tempfile.mkdtemp(dir=self.folder))
        app = ps.App("bench", home=home)
        topic = app.topic("events", DDL, event_time="at", lateness="5 seconds", partitions=2, durability="os")
        for number, batch in enumerate(batches):
            topic.append(batch, partition=number % 2)
        job.define(app, topic)
        runner = Runner(app, Graph(app, self.session).analyse(), every=every)
        began = time.perf_counter()
        if every is None:
            runner.once()
        else:
            runner.start()
            _wait_for_all(runner)
        took = time.perf_counter() - began
        runner.stop()
        app.close()
        shutil.rmtree(home)
        return took

    def plain(self, job: Job, batches: list[pa.RecordBatch]) -> float:
        """The same job by Spark alone, over JSON files of the same events."""
        source = self._json_files(job, batches)
        files = _PLAIN_ROWS_MAX // _BATCH_ROWS
        reader = self.session.readStream.schema(_PLAIN_DDL).option("maxFilesPerTrigger", files)
        return self._plainly(job, reader.json(str(source)))

    def from_kafka(self, job: Job, url: str, topic: str) -> float:
        """The same job by Spark alone, over JSON messages of the same events."""
        from pyspark.sql import functions as F

        from penstock.flow import connector

        raw = connector.source(self.session, url, (topic,), starting="earliest")
        read = raw.select(F.from_json(F.col("value").cast("string"), _PLAIN_DDL).alias("read"))
        return self._plainly(job, read.select("read.*"))

    def _plainly(self, job: Job, stream: DataFrame) -> float:
        checkpoint = self.folder / "plain"
        shutil.rmtree(checkpoint, ignore_errors=True)
        df, mode = job.plain(stream.withWatermark("at", "5 seconds"))
        began = time.perf_counter()
        writer = df.writeStream.outputMode(mode).option("checkpointLocation", str(checkpoint / "checkpoint"))
        query = writer.foreachBatch(_stored(checkpoint / "out")).trigger(availableNow=True).start()
        query.awaitTermination()
        return time.perf_counter() - began

    def _json_files(self, job: Job, batches: list[pa.RecordBatch]) -> Path:
        folder = self.folder / f"json-{job.keys}-{len(batches)}"
        if folder.exists():
            return folder
        folder.mkdir(parents=True)
        for number, batch in enumerate(batches):
            (folder / f"{number:06}.json").write_text("\n".join(json_lines(batch)))
        return folder


def json_lines(batch: pa.RecordBatch) -> Iterator[str]:
    whole = batch.set_column(3, "at", pc.strftime(batch.column("at"), "%Y-%m-%dT%H:%M:%SZ"))
    columns = (column.to_pylist() for column in whole.columns)
    for page, user, ms, at in zip(*columns, strict=True):
        yield f'{{"page":{page},"user":{user},"ms":{ms!r},"at":"{at}"}}'


def _wait_for_all(runner: Runner) -> None:
    """Until everything that was appended is in the store."""
    watch = Watch(runner)
    while True:
        found = watch.look()
        copied = bool(found.followers) and all(not each.behind for each in found.followers)
        if copied and all(not query.lag_records for query in found.queries):
            return
        runner.look()
        time.sleep(_LOOK_S)


def _stored(folder: Path) -> Callable[[DataFrame, int], None]:
    def store(df: DataFrame, number: int) -> None:
        df.write.mode("overwrite").parquet(str(folder / str(number)))

    return store
