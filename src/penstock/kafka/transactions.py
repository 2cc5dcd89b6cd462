"""The atomic append with a position: one Kafka transaction, with a record in the ledger.

The ledger is a compacted topic: of each producer its epoch, the sequence of its last append, its position.
Kafka fences older instances of a producer itself; the epoch in the ledger gives them numbers.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.errors import Contended, Fenced, PenstockError
from penstock.kafka.clients import ANSWER_S, Clients
from penstock.kafka.records import Codec, Outgoing
from penstock.kafka.refusals import FENCED, error_of
from penstock.kafka.table import Table
from penstock.kafka.writing import Delivery, Ranges, hand_over, messages_of
from penstock.log.framing import position_of
from penstock.log.port import AtomicResult, Parts, Position, ProducerPosition
from penstock.log.settings import TopicSettings

LEDGER = "_penstock_ledger"
_TIMEOUT_MS = 120_000
_VISIBLE_S = 5.0
_PAUSE_S = 0.002
_LOOK_S = 0.1
_COMMITS_MAX = 5


@dataclass(frozen=True, slots=True)
class State:
    """What the ledger says of a producer."""

    epoch: int = 0
    sequence: int = -1
    position: bytes | None = None
    ranges: Mapping[str, Ranges] | None = None  # of its last append

    @classmethod
    def read(cls, stored: bytes | None) -> State:
        if stored is None:
            return cls()
        plain = json.loads(stored)
        position = plain["position"]
        ranges = {
            topic: {int(number): tuple(pair) for number, pair in by_partition.items()}
            for topic, by_partition in plain["ranges"].items()
        }
        return cls(
            plain["epoch"],
            plain["sequence"],
            None if position is None else base64.b64decode(position),
            ranges,
        )

    def written(self) -> bytes:
        position = None if self.position is None else base64.b64encode(self.position).decode()
        plain = {
            "epoch": self.epoch,
            "sequence": self.sequence,
            "position": position,
            "ranges": self.ranges or {},
        }
        return json.dumps(plain).encode()

    def positions(self) -> tuple[Position, ...]:
        return tuple(position_of(topic, ranges) for topic, ranges in (self.ranges or {}).items())


@dataclass(slots=True)
class _Open:
    producer: Producer
    state: State
    usable: bool = True  # False when nobody knows whether its last append is stored
    committing: bool = False


class Transactions:
    """Thread-safe; one producer is used by one thread at a time."""

    def __init__(self, clients: Clients, ledger: Table, codec: Codec) -> None:
        self._clients = clients
        self._codec = codec
        self._ledger = ledger
        self._mutex = threading.Lock()
        self._opened: dict[str, _Open] = {}

    def open(self, id: str) -> ProducerPosition:
        self.release(id)
        producer = self._clients.producer(
            transactional_id=f"penstock.{id}", transaction_timeout_ms=_TIMEOUT_MS
        )
        with self._clients.translating(f'producer "{id}"'):
            producer.init_transactions(ANSWER_S * 2)
        # From here on no older instance writes; what it had begun has been ended.
        before = State.read(self._ledger.settled(id).get(id))
        self._check_shown(id, before.ranges or {})
        opened = _Open(producer, replace(before, epoch=before.epoch + 1))
        self._run(id, opened, {}, opened.state)
        with self._mutex:
            self._opened[id] = opened
        return _shown(opened.state)

    def position(self, id: str) -> ProducerPosition:
        with self._mutex:
            opened = self._opened.get(id)
        if opened is not None and opened.usable:
            return _shown(opened.state)
        return _shown(State.read(self._ledger.read(id).get(id)))

    def append(
        self,
        id: str,
        epoch: int,
        sequence: int,
        parts: Mapping[str, tuple[TopicSettings, Parts]],
        position: bytes | None,
    ) -> AtomicResult:
        with self._mutex:
            opened = self._opened.get(id)
        if opened is None or opened.state.epoch != epoch:
            raise Fenced(id, epoch=epoch, current=self.position(id).epoch)
        if not opened.usable:
            raise Contended(
                f'nobody knows whether the last append of producer "{id}" is stored.',
                hint="open the producer again: its position tells",
            )
        known = opened.state
        if sequence <= known.sequence:
            return AtomicResult(
                known.positions() if sequence == known.sequence else (), sequence, duplicate=True
            )
        stored = self._run(id, opened, parts, State(epoch, sequence, position))
        opened.state = replace(stored, position=position)
        self._await_visible(stored.ranges or {})
        return AtomicResult(opened.state.positions(), sequence)

    def _await_visible(self, ranges: Mapping[str, Ranges]) -> None:
        """A commit is answered a few milliseconds before readers see it: who reads next should."""
        ends = {(topic, n): end for topic, parts in ranges.items() for n, (_, end) in parts.items()}
        deadline = time.monotonic() + _VISIBLE_S
        with self._clients.reader() as consumer:
            while ends and time.monotonic() < deadline:
                seen = {place: self._clients.ends(consumer, *place)[1] for place in ends}
                ends = {place: end for place, end in ends.items() if seen[place] < end}
                if ends:
                    time.sleep(_PAUSE_S)

    def _check_shown(self, id: str, ranges: Mapping[str, Ranges]) -> None:
        """Whether readers see all of the last append, or Kafka has ended its transaction in a part only.

        A broker that died while it committed, and was the only one to hold a partition, does that: whoever
        went on from here would never notice what is missing.
        """
        ends = {(topic, n): end for topic, parts in ranges.items() for n, (_, end) in parts.items()}
        deadline = time.monotonic() + ANSWER_S
        while True:
            seen = self._clients.latest(ends, committed=True)
            written = self._clients.latest(ends, committed=False)
            hidden = [place for place in seen if seen[place] < ends[place] <= written.get(place, 0)]
            if not hidden:
                return
            if time.monotonic() > deadline:
                break
            time.sleep(_LOOK_S)
        topic, number = hidden[0]
        raise Contended(
            f'readers do not see all of the last append of producer "{id}": for them, topic "{topic}" '
            f"partition {number} ends at {seen[topic, number]}, and it reached {ends[topic, number]}.",
            hint="a transaction holds it back: another producer's, which ends within two minutes, or one "
            "that a dying broker left behind: docs/KAFKA.md, When brokers are away",
        )

    def release(self, id: str) -> None:
        """Done with a producer; its position stays."""
        with self._mutex:
            opened = self._opened.pop(id, None)
        if opened is not None:
            _close(opened.producer)

    def close(self) -> None:
        for id in list(self._opened):
            self.release(id)
        self._ledger.close()

    # ---- one transaction ------------------------------------------------------------------------------

    def _run(
        self, id: str, opened: _Open, parts: Mapping[str, tuple[TopicSettings, Parts]], wanted: State
    ) -> State:
        """What is stored in the end."""
        producer, opened.committing = opened.producer, False
        try:
            producer.begin_transaction()
            ranges = self._deliver(producer, parts)
            stored = replace(wanted, ranges=ranges)
            entry = Delivery()
            place = self._ledger.partition_of(id)
            hand_over(producer, LEDGER, place, Outgoing(id.encode(), stored.written()), entry)
            self._settle(producer, entry)
            opened.committing = True
            self._commit(opened)
            return stored
        except KafkaException as failure:
            raise self._given_up(id, opened, failure, [*parts, LEDGER]) from failure
        except BaseException:
            self._abort(opened)
            raise

    def _abort(self, opened: _Open, *, open_still: bool = False) -> None:
        """The producer can be used again if nothing of the transaction is stored: it was open still."""
        opened.usable = False
        with contextlib.suppress(KafkaException):
            opened.producer.abort_transaction(ANSWER_S)
            opened.usable = open_still or not opened.committing

    def _deliver(
        self, producer: Producer, parts: Mapping[str, tuple[TopicSettings, Parts]]
    ) -> dict[str, Ranges]:
        delivery = Delivery()
        for topic, (settings, by_partition) in parts.items():
            for number, message in messages_of(self._codec, settings, by_partition):
                hand_over(producer, topic, number, message, delivery)
        self._settle(producer, delivery)
        return delivery.ranges

    def _settle(self, producer: Producer, delivery: Delivery) -> None:
        delivery.finish()
        try:
            left = producer.flush(ANSWER_S)
        except SystemError as mixed:  # confluent-kafka calls back while its own exception is on the way
            raise KafkaException(_fatal(producer, mixed)) from mixed
        if delivery.error is not None or left:
            raise KafkaException(_cause(producer, delivery.error or KafkaError(KafkaError._TIMED_OUT)))

    def _commit(self, opened: _Open) -> None:
        for attempt in range(_COMMITS_MAX):
            try:
                opened.producer.commit_transaction(ANSWER_S)
                return
            except KafkaException as failure:
                if not error_of(failure).retriable() or attempt == _COMMITS_MAX - 1:
                    raise

    def _given_up(
        self, id: str, opened: _Open, failure: KafkaException, topics: Sequence[str]
    ) -> PenstockError:
        error = error_of(failure)
        if error.code() in FENCED:
            opened.usable = False
            current = State.read(self._ledger.settled(id).get(id)).epoch
            with self._mutex:
                if self._opened.get(id) is opened:
                    self._opened.pop(id)
            _close(opened.producer)
            return Fenced(id, epoch=opened.state.epoch, current=current)
        self._abort(opened, open_still=error.txn_requires_abort())
        return self._clients.translated(error, f"one of the topics {', '.join(topics)}")


def _close(producer: Producer) -> None:
    """Now, and not when it is collected: see Clients.close."""
    # It may be closed already, or fenced: of that, confluent-kafka makes a SystemError.
    with contextlib.suppress(KafkaException, RuntimeError, SystemError):
        producer.close()


def _cause(producer: Producer, error: KafkaError) -> KafkaError:
    """Of what a transaction failed, where its messages only say that they were given up for it."""
    if error.code() not in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
        return error
    try:
        producer.begin_transaction()  # which a failed transaction refuses, and says why
    except KafkaException as failure:
        return error_of(failure)
    return error


def _fatal(producer: Producer, mixed: SystemError) -> KafkaError:
    """What a producer failed of, where its client lost that on the way."""
    if isinstance(mixed.__cause__, KafkaException):
        return error_of(mixed.__cause__)
    try:
        producer.abort_transaction(ANSWER_S)
    except KafkaException as failure:
        return error_of(failure)
    return KafkaError(KafkaError._FAIL, "it did not say why")


def _shown(state: State) -> ProducerPosition:
    return ProducerPosition(state.epoch, state.sequence, state.position)
