"""The log port on a Kafka cluster."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from penstock.erasure.keys import KeyRing, KeyStore
from penstock.erasure.opening import open_keys
from penstock.errors import Contended, NotSupported, TopicExists, UnknownTopic
from penstock.kafka.address import Address
from penstock.kafka.clients import ANSWER_S, Clients
from penstock.kafka.declarations import SCHEMAS, Declarations
from penstock.kafka.groups import Groups
from penstock.kafka.membership import KafkaMember
from penstock.kafka.reading import Reading
from penstock.kafka.records import Codec, Poison
from penstock.kafka.refusals import error_of
from penstock.kafka.registry import Registry
from penstock.kafka.table import Table
from penstock.kafka.transactions import LEDGER, Transactions
from penstock.kafka.writing import Writing
from penstock.log import settings as declared
from penstock.log.framing import position_of
from penstock.log.port import (
    AtomicResult,
    GroupInfo,
    Member,
    Parts,
    Position,
    ProducerPosition,
    StaleAppend,
)
from penstock.log.settings import TopicSettings, check_name
from penstock.schema import RecordSchema

if TYPE_CHECKING:
    from penstock.kafka.avro import Avro

POISON = ".poison"
_LEDGER_PARTITIONS = 16  # a producer that dies inside a transaction holds back those in its partition
_PAUSE_S = 0.02
_CREATING_S = 5.0  # between declaring a topic and creating it, where its creator lives
_SEGMENT_BYTES_MIN = 1 << 20  # Kafka's own
_OVERHEAD_BYTES = 1 << 20  # JSON, keys and framing around a record


class KafkaLog:
    """A LogPort. Thread-safe."""

    capabilities: frozenset[str] = frozenset({"holds"})

    def __init__(self, url: str, *, keys: KeyStore | None = None) -> None:
        self.url = url
        self.keys = KeyRing(keys or open_keys())
        address = Address.parse(url)
        self._avro = _avro(address)
        self._codec = Codec(self._avro)
        self._clients = Clients(address)
        self._clients.check()
        self._declarations = Declarations(self._clients, lambda: self._writing)
        self._reading = Reading(self._clients, self._codec, self._ruined)
        self._groups = Groups(self._clients, self._reading)
        self._mutex = threading.RLock()
        # Made by whoever writes first: Spark's workers only read, and each has a log of its own.
        self._writer: Writing | None = None
        self._atomic: Transactions | None = None
        self._members: list[KafkaMember] = []
        self._told: set[tuple[str, int, int]] = set()

    @property
    def _writing(self) -> Writing:
        with self._mutex:
            if self._writer is None:
                self._writer = Writing(self._clients, self._codec)
            return self._writer

    @property
    def _transactions(self) -> Transactions:
        with self._mutex:
            if self._atomic is None:
                ledger = Table(self._clients, LEDGER, partitions=_LEDGER_PARTITIONS)
                self._atomic = Transactions(self._clients, ledger, self._codec)
            return self._atomic

    # ---- topics ------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        self._declarations.read()
        return sorted(name for name in self._partitions() if not name.startswith("_"))

    def settings(self, name: str) -> TopicSettings:
        check_name("topic", name)
        known = self._declarations.known
        return known(name) or known(name, anew=True) or self._of_bytes(name)

    def _of_bytes(self, name: str) -> TopicSettings:
        found = self._partitions()
        if name not in found:
            raise UnknownTopic(name, known=[each for each in found if not each.startswith("_")])
        count = found[name]
        return TopicSettings(name, RecordSchema.of(None), partitions=count, key=("key",), format="json")

    def _partitions(self) -> dict[str, int]:
        """How many each topic of the cluster has."""
        with self._clients.translating():
            listed = self._clients.admin.list_topics(timeout=ANSWER_S).topics
        return {name: len(topic.partitions) for name, topic in listed.items() if topic.error is None}

    def create_topic(self, wanted: TopicSettings, *, dated: bool = False) -> TopicSettings:
        """`dated`: its records will say themselves when they were appended, until `restoring` ends."""
        known = self._declarations.known(wanted.name, anew=True)
        there = self._partitions().get(wanted.name)
        if known is not None and (there is not None or self._comes_to_be(known)):
            raise TopicExists(wanted.name)
        wanted = replace(wanted, id=uuid.uuid4().hex, partitions=there or wanted.partitions)
        wanted = self._formatted(wanted, foreign=there is not None)
        # Declared first: that is where it is decided who of several creates it.
        self._declarations.create(wanted, instead_of=known)
        if there is None:  # or it is another program's, and has a schema from here on
            self._create(wanted, dated=dated)
        return wanted

    def _formatted(self, wanted: TopicSettings, *, foreign: bool = False) -> TopicSettings:
        """With how its records are written. A registry that refuses its schema does so here."""
        if self._avro is None and wanted.format != "avro":
            return replace(wanted, format="json")
        avro = self._codec.avro(wanted)
        return avro.adopted(wanted) if foreign else avro.created(wanted)

    def _comes_to_be(self, known: TopicSettings) -> bool:
        """Whether a topic that is declared and not there is being created: its creator may have died."""
        deadline = time.monotonic() + _CREATING_S
        while time.monotonic() < deadline:
            if known.name in self._partitions():
                return True
            if self._declarations.known(known.name, anew=True) != known:  # it was being deleted
                return False
            time.sleep(_PAUSE_S)
        return False

    def _create(self, wanted: TopicSettings, *, dated: bool) -> None:
        try:
            self._create_in_kafka(wanted, dated=dated)
        except BaseException:
            if self._is_declared(wanted):
                self._declarations.forget(wanted.name)
            raise

    def _is_declared(self, wanted: TopicSettings) -> bool:
        known = self._declarations.known(wanted.name, anew=True)
        return known is not None and known.id == wanted.id

    def _create_in_kafka(self, wanted: TopicSettings, *, dated: bool) -> None:
        deadline = time.monotonic() + ANSWER_S
        times = {"message.timestamp.type": "CreateTime"} if dated else {}
        config = {**self._config(wanted), **times}
        new = NewTopic(wanted.name, wanted.partitions, -1, config=config)
        while True:
            (made,) = self._clients.admin.create_topics([new]).values()
            try:
                made.result(ANSWER_S)
                break
            except KafkaException as failure:
                error = error_of(failure)
                if error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise self._clients.translated(error, f'topic "{wanted.name}"') from failure
                if not self._is_declared(wanted) or time.monotonic() > deadline:
                    raise TopicExists(wanted.name) from failure
            time.sleep(_PAUSE_S)  # one of that name is still being deleted
        self._await(wanted.name, wanted.partitions)

    def _await(self, name: str, partitions: int) -> None:
        deadline = time.monotonic() + ANSWER_S
        while self._partitions().get(name, 0) != partitions:
            if time.monotonic() > deadline:
                raise Contended(f'topic "{name}" did not come to be in time.', hint="try again")
            time.sleep(_PAUSE_S)

    def alter_topic(self, name: str, wanted: TopicSettings) -> TopicSettings:
        current = self.settings(name)
        ends = tuple(self.bounds(name, number)[1] for number in range(current.partitions))
        changed = declared.altered(current, wanted, ends=ends, now_us=time.time_ns() // 1_000)
        if current.format == "avro" and changed.schema != current.schema:
            self._codec.avro(current).altered(current, changed)
        if changed.partitions > current.partitions:
            self._clients.done(
                self._clients.admin.create_partitions([NewPartitions(name, changed.partitions)])
            )
            self._await(name, changed.partitions)
        before = self._config(current)
        # No more than what changes: the rest may be another program's business.
        self._configure(name, {k: v for k, v in self._config(changed).items() if before.get(k) != v})
        self.declare(changed)
        return changed

    def _configure(self, topic: str, config: Mapping[str, str]) -> None:
        if config:
            entries = [
                ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
                for key, value in config.items()
            ]
            resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
            self._clients.done(self._clients.admin.incremental_alter_configs([resource]))

    def delete_topic(self, name: str) -> None:
        settings = self.settings(name)
        if settings.format == "avro" and self._avro is not None:
            self._avro.deleted(settings)
        (gone,) = self._clients.admin.delete_topics([name]).values()
        with self._clients.translating():
            try:
                gone.result(ANSWER_S)
            except KafkaException as failure:  # Kafka's own tools may have been faster
                if error_of(failure).code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
        self._declarations.forget(name)
        deadline = time.monotonic() + ANSWER_S
        while name in self._partitions() and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)

    def declare(self, settings: TopicSettings) -> None:
        """What a topic is from now on."""
        self._declarations.change(settings)

    def _config(self, settings: TopicSettings) -> dict[str, str]:
        """What of a topic's settings is Kafka's business."""
        flush = {"flush.messages": "1"} if settings.durability == "fsync" and self._copies == 1 else {}
        return {
            "cleanup.policy": settings.cleanup,
            "retention.ms": str(-1 if settings.retention_ms is None else settings.retention_ms),
            "retention.bytes": str(-1 if settings.retention_bytes is None else settings.retention_bytes),
            "delete.retention.ms": str(settings.tombstone_ms),
            "min.compaction.lag.ms": str(settings.history_ms or 0),
            "segment.bytes": str(max(settings.segment_bytes, _SEGMENT_BYTES_MIN)),
            "segment.ms": str(settings.segment_ms),
            "max.message.bytes": str(2 * settings.record_bytes_max + _OVERHEAD_BYTES),
            "message.timestamp.type": "LogAppendTime",
            **flush,
        }

    @functools.cached_property
    def _copies(self) -> int:
        """Of each record of a new topic: with several, power loss of one machine loses nothing."""
        with self._clients.translating():
            topic = self._clients.admin.list_topics(SCHEMAS, timeout=ANSWER_S).topics[SCHEMAS]
        return min((len(part.replicas) for part in topic.partitions.values()), default=1)

    # ---- appending ------------------------------------------------------------------------------------

    def append(self, settings: TopicSettings, parts: Parts) -> Position:
        self._check_current(settings)
        return position_of(settings.name, self._writing.append(settings, parts))

    def _check_current(self, settings: TopicSettings) -> None:
        known = self._declarations.known(settings.name)
        if known is not None and (known.id, known.version) != (settings.id, settings.version):
            raise StaleAppend({})
        if known is None and settings.id:
            self.settings(settings.name)  # raises where it was deleted
            raise StaleAppend({})

    def open_producer(self, producer: str) -> ProducerPosition:
        check_name("producer", producer)
        return self._transactions.open(producer)

    def close_producer(self, producer: str) -> None:
        self._transactions.release(producer)

    def producer_position(self, producer: str) -> ProducerPosition:
        return self._transactions.position(producer)

    def append_atomically(
        self,
        producer: str,
        epoch: int,
        sequence: int,
        parts: Mapping[str, tuple[TopicSettings, Parts]],
        position: bytes | None,
    ) -> AtomicResult:
        for settings, _ in parts.values():
            self._check_current(settings)
        return self._transactions.append(producer, epoch, sequence, parts, position)

    @contextlib.contextmanager
    def restoring(self, settings: TopicSettings) -> Iterator[None]:
        """While a topic that was created `dated` is filled."""
        try:
            yield
        finally:
            self._configure(settings.name, {"message.timestamp.type": "LogAppendTime"})

    def restore(self, settings: TopicSettings, partition: int, batch: pa.RecordBatch) -> tuple[int, int]:
        """Append records as they were read from another log; returns where they are."""
        times = batch.column("_timestamp").cast(pa.int64()).to_pylist()
        own = batch.select(settings.stored.names)
        messages = (
            (partition, replace(message, appended_us=time_us))
            for message, time_us in zip(self._codec.outgoing(settings, own), times, strict=True)
        )
        return self._writing.send(settings.name, messages)[partition]

    # ---- reading --------------------------------------------------------------------------------------

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return self._reading.bounds(self.settings(topic), partition)

    def read(
        self, topic: str, partition: int, offset: int, *, until: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        return self._reading.read(self.settings(topic), partition, offset, until)

    def offset_at(self, topic: str, partition: int, time_us: int) -> int:
        return self._reading.offset_at(self.settings(topic), partition, time_us)

    def wait(self, topic: str, ends: Mapping[int, int], timeout_s: float) -> bool:
        return self._reading.wait(self.settings(topic), ends, timeout_s)

    def _ruined(self, settings: TopicSettings, found: list[Poison]) -> None:
        """Messages that are no records go, once, to a topic of their own, and reading goes on."""
        fresh = [each for each in found if (settings.name, each.partition, each.offset) not in self._told]
        if not fresh:
            return
        topic = self.poison_topic(settings.name)
        rows = [
            {
                "place": f"{each.partition}:{each.offset}", "partition": each.partition,
                "offset": each.offset, "key": each.key, "value": _kept(each.value), "reason": each.reason,
                "_deleted": False,
            }
            for each in fresh
        ]  # fmt: skip
        self._writing.append(topic, {0: [pa.RecordBatch.from_pylist(rows, schema=topic.stored)]})
        self._told.update((settings.name, each.partition, each.offset) for each in fresh)

    def poison_topic(self, topic: str) -> TopicSettings:
        """Where messages that are no records of a topic are put aside."""
        name = f"{topic}{POISON}"
        with contextlib.suppress(TopicExists):
            schema = RecordSchema.of(_POISON_DDL)
            # Not Avro: what cannot be read may be the registry's fault.
            self.create_topic(TopicSettings(name, schema, key=("place",), cleanup="compact", format="json"))
        return self.settings(name)

    # ---- groups ---------------------------------------------------------------------------------------

    def hold(self, name: str, topic: str, offsets: Mapping[int, int], *, reason: str) -> None:
        """Kafka's retention waits for nobody; its tools see from this how far a query is."""
        with contextlib.suppress(KafkaException, TimeoutError):  # to be seen is no reason to fail
            self._groups.commit(name, topic, offsets)

    def join(self, group: str, topic: str, *, lease_s: float) -> Member:
        check_name("group", group)
        settings = self.settings(topic)

        def taken() -> bool:
            return self._groups.all_taken(group, self.settings(topic))

        member = KafkaMember(self._clients, group, settings.name, lease_s, taken)
        with self._mutex:
            self._members = [*(each for each in self._members if not each.left), member]
        return member

    def committed(self, group: str, topic: str) -> dict[int, int]:
        return self._groups.committed(group, topic)

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        check_name("group", group)
        self._groups.reset(group, topic, offsets)

    def groups(self) -> list[tuple[str, str]]:
        return [(group, topic) for group, topic in self._groups.pairs() if not topic.startswith("_")]

    def group(self, group: str, topic: str) -> GroupInfo:
        return self._groups.describe(group, self.settings(topic))

    def close(self) -> None:
        with self._mutex:
            members, self._members = self._members, []
        for member in members:
            member.leave()
        for opened in (self.keys, self._atomic, self._writer, self._declarations, self._clients):
            if opened is not None:
                opened.close()


def _avro(address: Address) -> Avro | None:
    if not address.registry:
        return None
    try:
        from penstock.kafka.avro import Avro
    except ModuleNotFoundError as error:
        raise NotSupported(
            "Avro is written and read with fastavro, which is not installed.",
            hint='pip install "penstock[avro]"',
        ) from error
    return Avro(Registry(address.registry))


def _kept(value: bytes | None) -> bytes | None:
    """As much of a message as another topic surely takes."""
    return None if value is None else value[:_POISON_BYTES_MAX]


_POISON_BYTES_MAX = 256 << 10
_POISON_DDL = "place STRING NOT NULL, partition INT, offset BIGINT, key BINARY, value BINARY, reason STRING"
