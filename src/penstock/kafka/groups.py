"""Consumer groups as Kafka keeps them: who is in them, where they stand, and moving them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition

from penstock.errors import Contended, UnknownGroup
from penstock.kafka.clients import ANSWER_S, Clients
from penstock.kafka.reading import Reading
from penstock.kafka.refusals import error_of
from penstock.log.port import GroupInfo, MemberInfo, PartitionLag
from penstock.log.settings import TopicSettings

_NO_GROUP = {KafkaError.GROUP_ID_NOT_FOUND, KafkaError._UNKNOWN_GROUP}
_HAS_MEMBERS = {
    KafkaError.NON_EMPTY_GROUP,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.GROUP_SUBSCRIBED_TO_TOPIC,
}


class Groups:
    """Thread-safe."""

    def __init__(self, clients: Clients, reading: Reading) -> None:
        self._clients, self._reading = clients, reading

    def committed(self, group: str, topic: str) -> dict[int, int]:
        return {
            place.partition: place.offset
            for place in self._offsets(group)
            if place.topic == topic and place.offset >= 0
        }

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Raises Contended if the group has members."""
        if self._members(group):
            raise Contended(f'group "{group}" has members.', hint="stop them first")
        try:
            self.commit(group, topic, offsets)
        except KafkaException as failure:
            if error_of(failure).code() in _HAS_MEMBERS:
                raise Contended(f'group "{group}" has members.', hint="stop them first") from failure
            raise self._clients.translated(error_of(failure)) from failure

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Where a group without members is. Raises what Kafka says."""
        places = [TopicPartition(topic, number, offset) for number, offset in offsets.items()]
        wanted = ConsumerGroupTopicPartitions(group, places)
        (altered,) = self._clients.admin.alter_consumer_group_offsets([wanted]).values()
        for place in altered.result(ANSWER_S).topic_partitions:
            if place.error is not None:
                raise KafkaException(place.error)

    def pairs(self) -> list[tuple[str, str]]:
        """(group, topic), with members or commits."""
        with self._clients.translating():
            listed = self._clients.admin.list_consumer_groups().result(ANSWER_S)
        found: set[tuple[str, str]] = set()
        for each in listed.valid:
            group = each.group_id
            found |= {(group, place.topic) for place in self._offsets(group) if place.offset >= 0}
            found |= {(group, place.topic) for member in self._members(group) for place in _places(member)}
        return sorted(found)

    def describe(self, group: str, settings: TopicSettings) -> GroupInfo:
        """Raises BadInput when there is no such group on that topic."""
        committed, members = self.committed(group, settings.name), self.members(group, settings.name)
        if not committed and not members:
            raise UnknownGroup(group, topic=settings.name, known=(name for name, _ in self.pairs()))
        owners = {partition: member.member for member in members for partition in member.partitions}
        lags = (self._lag(settings, n, owners.get(n), committed.get(n)) for n in range(settings.partitions))
        return GroupInfo(group, settings.name, tuple(members), tuple(lags))

    def members(self, group: str, topic: str) -> list[MemberInfo]:
        found = []
        for member in self._members(group):
            parts = tuple(sorted(place.partition for place in _places(member) if place.topic == topic))
            found.append(MemberInfo(member.member_id, parts, waiting=not parts))
        return found

    def all_taken(self, group: str, settings: TopicSettings) -> bool:
        held = [part for member in self.members(group, settings.name) for part in member.partitions]
        return set(held) == set(range(settings.partitions))

    def _members(self, group: str) -> list[Any]:
        (described,) = self._clients.admin.describe_consumer_groups([group]).values()
        found = self._of_group(described)
        return list(found.members) if found else []

    def _offsets(self, group: str) -> list[TopicPartition]:
        asked = self._clients.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
        (listed,) = asked.values()
        found = self._of_group(listed)
        return list(found.topic_partitions or ()) if found else []

    def _of_group(self, asked: Any) -> Any:
        """The answer, or None if there is no such group."""
        with self._clients.translating():
            try:
                return asked.result(ANSWER_S)
            except KafkaException as failure:
                if error_of(failure).code() in _NO_GROUP:
                    return None
                raise

    def _lag(
        self, settings: TopicSettings, partition: int, owner: str | None, committed: int | None
    ) -> PartitionLag:
        start, end = self._reading.bounds(settings, partition)
        next_offset = max(committed if committed is not None else start, start)
        oldest_us = self._time_of(settings, partition, next_offset) if next_offset < end else None
        if oldest_us is None:  # behind a transaction there may be nothing up to the end
            return PartitionLag(partition, owner, committed, start, end, 0, 0.0, None)
        age_s = max(0.0, time.time() - oldest_us / 1e6)
        kept_ms = None if settings.compacted else settings.retention_ms
        expires = None if kept_ms is None else max(0.0, kept_ms / 1e3 - age_s)
        return PartitionLag(partition, owner, committed, start, end, end - next_offset, age_s, expires)

    def _time_of(self, settings: TopicSettings, partition: int, offset: int) -> int | None:
        for batch in self._reading.read(settings, partition, offset, None):
            return int(batch.column("_timestamp").cast("int64")[0].as_py())
        return None


def _places(member: Any) -> list[TopicPartition]:
    return list(member.assignment.topic_partitions) if member.assignment else []
