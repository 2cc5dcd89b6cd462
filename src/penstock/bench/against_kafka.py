"""`penstock bench log --against kafka`: the embedded log beside a real Kafka on this machine.

The same events, the same number in each append, the same durability: `os` beside Kafka's default, which
leaves the flush to the operating system, and `fsync` beside `flush.messages=1`. Kafka is spoken with
confluent-kafka: idempotent, `acks=all`, flushed once for each append of ours. Kafka has no columns: events
become JSON with orjson, from the same dicts or Arrow batches; beside that stands what it takes when they are
bytes already. Where ours gives Arrow, it gives bytes that nobody looks into.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.bench.child import Child, Line
from penstock.bench.peers import rows_in
from penstock.bench.report import Result
from penstock.bench.workbench import Workbench, timed_s
from penstock.log.settings import Durability
from penstock.log.topic import Topic

_ARROW_AIM, _DICTS_AIM, _ROWS_AIM, _COUNT_AIM = 20.0, 2.0, 3.0, 5.0
_COUNT_S_MAX = 1_200.0
_MANY = 10_000
_READ_TIMES = 4  # the sample is read: a consumer of Kafka has a rhythm of seconds
# By default librdkafka pauses a second whenever it is 100,000 messages ahead.
_TUNED = {"fetch.queue.backoff.ms": 10}
_ANSWER_S = 120.0

Chunks = Sequence[Any]
Encode = Callable[[Any], Iterator[bytes]]
Decode = Callable[[bytes], Any]


def measure(bench: Workbench) -> Iterator[Result]:
    from penstock.kafka.cluster import Cluster

    cluster = Cluster(bench.folder / "kafka")
    bench.progress("start Kafka")
    peer = Peer(cluster.up(port=0).url, bench)
    try:
        for durability in ("os", "fsync"):
            yield from _appends(bench, peer, durability)
        yield from _reads(bench, peer)
        yield from _window_count(bench, peer)
    finally:
        cluster.down(delete=True)


def _appends(bench: Workbench, peer: Peer, durability: Durability) -> Iterator[Result]:
    sizes, sample = bench.sizes, bench.sample
    name = f"confluent-kafka, {'flush.messages=1' if durability == 'fsync' else 'default flush'}"
    rows = _chunks(sample.dicts[: sizes.row_events], sizes.rows_each)
    bench.progress(f"append dicts, {durability}")
    ours = bench.rate_into(sizes.row_events, lambda topic: _append(topic, rows), durability=durability)
    theirs = peer.append_rate(rows, encode=_from_rows, durability=durability)
    yield from _beside(f"append dicts, {durability}", ours, name, theirs, _DICTS_AIM)
    batches = sample.batches(sizes.batch_rows)
    bench.progress(f"append Arrow, {durability}")
    ours = bench.rate_into(rows_in(batches), lambda topic: _append(topic, batches), durability=durability)
    theirs = peer.append_rate(batches, encode=_from_arrow, durability=durability)
    yield from _beside(f"append Arrow, {durability}", ours, name, theirs, _ARROW_AIM)
    ready = _chunks(list(_from_rows(sample.dicts)), sizes.batch_rows)
    theirs = peer.append_rate(ready, encode=iter, durability=durability)
    yield Result(f"append Arrow, {durability}", ours, "events/s").beside(f"{name}, ready bytes", theirs)


def _reads(bench: Workbench, peer: Peer) -> Iterator[Result]:
    import orjson

    bench.progress("read")
    events = _READ_TIMES * len(bench.sample)
    with bench.topic(durability="os") as topic:
        for batch in bench.sample.batches(bench.sizes.batch_rows) * _READ_TIMES:
            topic.append(batch)
        as_rows = bench.rate(events, lambda: _drain(topic.rows()))
        as_arrow = bench.rate(events, lambda: _drain(topic.read()))
    with peer.filled(bench.sample.dicts * _READ_TIMES) as name:
        for ours, way, decode, aim in (
            (as_rows, "rows", orjson.loads, _ROWS_AIM), (as_arrow, "Arrow", None, _ARROW_AIM)
        ):  # fmt: skip
            what = f"confluent-kafka{' and orjson' if decode else ', bytes'}"
            yield from _beside(f"read as {way}", ours, what, peer.read_rate(name, events, decode), aim)
            tuned = peer.read_rate(name, events, decode, _TUNED)
            yield Result(f"read as {way}", ours, "events/s").beside(f"{what}, tuned", tuned)


def _window_count(bench: Workbench, peer: Peer) -> Iterator[Result]:
    """The whole of a Spark job over the same events: ours from the embedded log, plain Spark from Kafka."""
    from penstock.bench.flow_jobs import COUNT, events, json_lines

    number = bench.sizes.spark_events
    bench.progress(f"window count over {number:,} events")
    with peer.topic("os", partitions=2) as name:
        for at, batch in enumerate(events(number, keys=COUNT.keys)):
            _produce(peer.producer(name), name, [list(json_lines(batch))], _encoded, partition=at % 2)
        # In a process of its own: a session that runs already cannot get the connector.
        with Child(
            _count_both, str(bench.folder / "count"), peer.url, name, number, bench.sizes.attempts
        ) as two:
            ours, theirs = two.hear(_COUNT_S_MAX)
    yield from _beside("window count", number / ours, "plain Spark from Kafka", number / theirs, _COUNT_AIM)


def _count_both(line: Line, folder: str, url: str, topic: str, number: int, attempts: int) -> None:
    from penstock.bench.flow_jobs import COUNT, FlowBench, events
    from penstock.flow import connector
    from penstock.flow.session import start_session

    Path(folder).mkdir()
    bench = FlowBench(start_session("bench", settings=connector.with_connector({})), Path(folder))
    batches = events(number, keys=COUNT.keys)
    ours = [bench.ours(COUNT, batches) for _ in range(attempts + 1)]  # the first compiles
    theirs = [bench.from_kafka(COUNT, url, topic) for _ in range(attempts + 1)]
    line.say([min(ours), min(theirs)])


def _encoded(lines: Sequence[str]) -> Iterator[bytes]:
    return (line.encode() for line in lines)


def _beside(name: str, ours: float, peer: str, theirs: float, aim: float) -> Iterator[Result]:
    yield Result(name, ours, "events/s").beside(peer, theirs)
    yield Result(f"{name}: times Kafka", ours / theirs, "x").at_least(aim)


def _from_rows(rows: Sequence[dict[str, Any]]) -> Iterator[bytes]:
    import orjson

    return map(orjson.dumps, rows)


def _from_arrow(batch: pa.RecordBatch) -> Iterator[bytes]:
    return _from_rows(batch.to_pylist())


class Peer:
    """Kafka, as a Python program uses it."""

    def __init__(self, url: str, bench: Workbench) -> None:
        from confluent_kafka.admin import AdminClient

        from penstock.kafka.address import Address

        self.url = url
        self._settings = Address.parse(url).client()
        self._admin = AdminClient(self._settings)
        self._attempts = bench.sizes.attempts
        self._made = 0

    @contextlib.contextmanager
    def topic(self, durability: Durability, *, partitions: int = 1) -> Iterator[str]:
        from confluent_kafka.admin import NewTopic

        self._made += 1
        name = f"bench-{self._made}"
        config = {"flush.messages": "1"} if durability == "fsync" else {}
        for made in self._admin.create_topics([NewTopic(name, partitions, 1, config=config)]).values():
            made.result(_ANSWER_S)
        try:
            yield name
        finally:
            for gone in self._admin.delete_topics([name]).values():
                gone.result(_ANSWER_S)

    def append_rate(self, chunks: Chunks, *, encode: Encode, durability: Durability) -> float:
        took_s = []
        for _ in range(self._attempts):
            with self.topic(durability) as name:
                producer = self.producer(name)
                took_s.append(timed_s(lambda: _produce(producer, name, chunks, encode)))  # noqa: B023
        return sum(map(len, chunks)) / min(took_s)

    @contextlib.contextmanager
    def filled(self, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
        with self.topic("os") as name:
            _produce(self.producer(name), name, [rows], _from_rows)
            yield name

    def read_rate(
        self, name: str, events: int, decode: Decode | None, settings: Mapping[str, object] | None = None
    ) -> float:
        settings = {**self._settings, "group.id": "bench", "enable.auto.commit": False, **(settings or {})}
        return events / min(
            timed_s(lambda: _consume(settings, name, events, decode)) for _ in range(self._attempts)
        )

    def producer(self, name: str) -> Any:
        from confluent_kafka import Producer

        producer = Producer(
            {**self._settings, "enable.idempotence": True, "queue.buffering.max.messages": 4_000_000}
        )
        producer.list_topics(name, timeout=_ANSWER_S)  # it is known before the clock runs
        return producer


def _produce(producer: Any, name: str, chunks: Chunks, encode: Encode, *, partition: int = 0) -> None:
    for chunk in chunks:
        for message in encode(chunk):
            producer.produce(name, message, partition=partition)
        producer.flush(_ANSWER_S)


def _consume(settings: Mapping[str, object], name: str, events: int, decode: Decode | None) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(dict(settings))
    consumer.assign([TopicPartition(name, 0, 0)])
    left = events
    while left:
        messages = consumer.consume(min(left, _MANY), timeout=_ANSWER_S)
        for message in messages:
            value = message.value()
            if decode is not None and value is not None:
                decode(value)
        left -= len(messages)
    consumer.close()


def _append(topic: Topic, chunks: Sequence[Any]) -> None:
    for chunk in chunks:
        topic.append(chunk)


def _chunks(rows: Sequence[Any], each: int) -> list[Sequence[Any]]:
    return [rows[start : start + each] for start in range(0, len(rows), each)]


def _drain(found: Iterator[Any]) -> None:
    for _ in found:
        pass
