"""A member of a Kafka consumer group, as the port describes one.

Kafka's own protocol decides who has which partition (cooperative, sticky). Its consumer is only a member,
and paused everywhere: records are read by offset, through other consumers. A partition that is to be given up
stays until `release`, so that what was processed is committed first.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from penstock.errors import NotOwner
from penstock.kafka.clients import ANSWER_S, Clients
from penstock.kafka.refusals import LOST_MEMBER, NO_RIGHT, error_of
from penstock.log.port import Assignment, Owned

LEASE_S_MIN = 6.0
"""Brokers refuse sessions shorter than this, unless they are told otherwise."""

_ASK_S = 0.5
_RETRY_S = 0.05


class KafkaMember:
    """Used by one thread; `commit` may come from others."""

    def __init__(
        self, clients: Clients, group: str, topic: str, lease_s: float, taken: Callable[[], bool]
    ) -> None:
        """`taken`: whether every partition is in somebody's hands."""
        self.member = ""
        self._clients, self._group, self._topic, self._taken = clients, group, topic, taken
        self._mutex = threading.RLock()
        self._terms: dict[int, int] = {}  # how often a partition came
        self._owned: dict[int, Owned] = {}
        self._fresh: set[int] = set()  # whose committed offset is not known yet
        self.left = False
        self._waiting = False
        self._ask_at = 0.0
        lease_ms = int(max(lease_s, LEASE_S_MIN) * 1_000)
        self._consumer: Consumer = clients.consumer(
            group_id=group,
            session_timeout_ms=lease_ms,
            max_poll_interval_ms=lease_ms,
            heartbeat_interval_ms=min(1_000, lease_ms // 3),
            partition_assignment_strategy="cooperative-sticky",
            auto_offset_reset="earliest",
            topic_metadata_refresh_interval_ms=2_000,  # partitions that were added
        )
        self._consumer.subscribe([topic], on_assign=self._gained, on_revoke=self._asked, on_lost=self._lost)

    def poll(self) -> Assignment:
        with self._mutex:
            self._serve(0.0 if self._owned else 0.01)
            self._look_up()
            self.member = self.member or self._consumer.memberid() or ""
            if self._owned:
                self._waiting = False
            elif time.monotonic() >= self._ask_at:
                # An empty share may be a rebalance half done.
                self._waiting = bool(self.member) and self._taken()
                self._ask_at = time.monotonic() + _ASK_S
            known = {number: owned for number, owned in self._owned.items() if number not in self._fresh}
            return Assignment(known, waiting=self._waiting)

    def commit(self, offsets: Mapping[int, int]) -> None:
        with self._mutex:
            missing = [number for number in offsets if number not in self._owned]
            if missing:
                raise NotOwner(self._group, self._topic, missing)
            places = [TopicPartition(self._topic, number, offset) for number, offset in offsets.items()]
            self._commit(places)
            for number, offset in offsets.items():
                if number in self._owned:
                    held = self._owned[number]
                    self._owned[number] = Owned(held.term, offset, held.revoked)

    def release(self, partitions: Iterable[int]) -> None:
        with self._mutex:
            given = [number for number in partitions if number in self._owned]
            for number in given:
                del self._owned[number]
                self._fresh.discard(number)
            if given:
                with self._clients.translating():
                    self._consumer.incremental_unassign([TopicPartition(self._topic, n) for n in given])

    def leave(self) -> None:
        with self._mutex:
            if not self.left:
                self.left = True
                self._owned.clear()
                self._consumer.close()

    # ---- what Kafka tells ------------------------------------------------------------------------------

    def _gained(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        if self.left:
            return
        consumer.incremental_assign(places)
        if places:
            consumer.pause(places)
        for place in places:
            number = place.partition
            self._terms[number] = self._terms.get(number, 0) + 1
            self._owned[number] = Owned(self._terms[number], None)
            self._fresh.add(number)

    def _asked(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        if self.left:
            return
        consumer.incremental_assign([])  # ours to give up later, and not by itself after this call
        for place in places:
            if place.partition in self._owned:
                held = self._owned[place.partition]
                self._owned[place.partition] = Owned(held.term, held.committed, revoked=True)

    def _lost(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        for place in places:
            self._owned.pop(place.partition, None)
            self._fresh.discard(place.partition)
        if not self.left:
            consumer.incremental_unassign(places)

    def _serve(self, timeout_s: float) -> None:
        message = self._consumer.poll(timeout_s)
        error = message.error() if message is not None else None
        if error is not None and (error.fatal() or error.code() in NO_RIGHT):
            raise self._clients.translated(error, f'group "{self._group}", topic "{self._topic}"')

    def _look_up(self) -> None:
        """Where the group stands in partitions that have just come."""
        if not self._fresh:
            return
        places = [TopicPartition(self._topic, number) for number in sorted(self._fresh)]
        try:
            found = self._consumer.committed(places, timeout=ANSWER_S)
        except KafkaException as failure:
            if error_of(failure).retriable() or error_of(failure).code() in LOST_MEMBER:
                return  # with the next poll
            raise self._clients.translated(error_of(failure)) from failure
        for place in found:
            held = self._owned.get(place.partition)
            if place.error is None and held is not None:
                committed = place.offset if place.offset >= 0 else None
                self._owned[place.partition] = Owned(held.term, committed, held.revoked)
                self._fresh.discard(place.partition)

    def _commit(self, places: list[TopicPartition]) -> None:
        deadline = time.monotonic() + ANSWER_S
        while True:
            try:
                self._consumer.commit(offsets=places, asynchronous=False)
                return
            except KafkaException as failure:
                error = error_of(failure)
                if error.code() in LOST_MEMBER:
                    raise NotOwner(self._group, self._topic, [p.partition for p in places]) from failure
                passing = error.retriable() or error.code() == KafkaError.REBALANCE_IN_PROGRESS
                if not passing or time.monotonic() > deadline:
                    raise self._clients.translated(error) from failure
            with contextlib.suppress(KafkaException):
                self._serve(_RETRY_S)
            gone = [place.partition for place in places if place.partition not in self._owned]
            if gone:
                raise NotOwner(self._group, self._topic, gone)
