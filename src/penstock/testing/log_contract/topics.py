"""Topics: created, listed, altered, deleted, and what is refused."""

from __future__ import annotations

import pytest

from penstock.errors import BadName, BadOption, TopicExists, UnknownTopic
from penstock.log.log import Log
from penstock.log.port import LogPort
from penstock.testing.log_contract.backend import Backend, column, counted, fresh, numbers


class Topics(Backend):
    def test_a_new_topic_is_listed(self, log: Log) -> None:
        topic = numbers(log)
        assert topic.name in log.topics()

    def test_a_topic_keeps_the_settings_it_was_created_with(self, log: Log) -> None:
        topic = log.create_topic(
            fresh("orders"), "id BIGINT NOT NULL, at TIMESTAMP", key="id", event_time="at", partitions=3,
            retention="7 days", retention_bytes=1 << 30, record_bytes_max=10_000,
        )  # fmt: skip
        assert log.topic(topic.name).settings == topic.settings
        assert topic.settings.retention_ms == 7 * 86_400_000

    def test_another_client_finds_a_new_topic(self, log: Log, other: Log) -> None:
        topic = numbers(log, partitions=2)
        self.until(lambda: topic.name in other.topics())
        assert other.topic(topic.name).settings == topic.settings

    def test_a_topic_cannot_be_created_twice(self, log: Log) -> None:
        topic = numbers(log)
        with pytest.raises(TopicExists) as refused:
            log.create_topic(topic.name, "other STRING")
        assert refused.value.topic == topic.name
        assert log.topic(topic.name).schema.names == ("n",)

    def test_a_topic_that_may_exist_is_returned_as_it_is(self, log: Log) -> None:
        topic = numbers(log, partitions=2)
        again = log.create_topic(topic.name, "other STRING", if_missing=True)
        assert again.settings == topic.settings

    def test_an_unknown_topic_comes_with_the_name_that_was_meant(self, log: Log) -> None:
        topic = log.create_topic(fresh("customers"), "n BIGINT")
        with pytest.raises(UnknownTopic) as missing:
            log.topic(topic.name.replace("customers", "custmoers"))
        assert missing.value.did_you_mean == topic.name

    def test_an_unknown_topic_can_be_neither_altered_deleted_nor_read(self, log: Log, port: LogPort) -> None:
        name = fresh("nowhere")
        with pytest.raises(UnknownTopic):
            log.alter_topic(name, partitions=2)
        with pytest.raises(UnknownTopic):
            log.delete_topic(name)
        with pytest.raises(UnknownTopic):
            port.bounds(name, 0)
        with pytest.raises(UnknownTopic):
            list(port.read(name, 0, 0))

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "x" * 250])
    def test_a_name_with_other_than_plain_characters_is_refused(self, log: Log, name: str) -> None:
        with pytest.raises(BadName):
            log.create_topic(name, "n BIGINT")

    def test_a_deleted_topic_is_gone(self, log: Log, other: Log) -> None:
        topic = numbers(log)
        topic.append(counted(1))
        log.delete_topic(topic.name)
        assert topic.name not in log.topics()
        with pytest.raises(UnknownTopic):
            log.topic(topic.name)
        self.until(lambda: topic.name not in other.topics())

    def test_a_topic_created_again_is_empty(self, log: Log) -> None:
        name = numbers(log).name
        log.topic(name).append(counted(1, 2, 3))
        log.delete_topic(name)
        again = log.create_topic(name, "word STRING")
        assert list(again.rows()) == []
        again.append({"word": "new"})
        assert column(again, "word") == ["new"]

    def test_altered_settings_are_kept(self, log: Log, other: Log) -> None:
        topic = numbers(log)
        altered = log.alter_topic(topic.name, retention_ms=1_000_000, record_bytes_max=500)
        assert (altered.settings.retention_ms, altered.settings.record_bytes_max) == (1_000_000, 500)
        assert altered.settings.version > 1
        self.until(lambda: other.topic(topic.name).settings == altered.settings)

    def test_partitions_can_be_added(self, log: Log) -> None:
        topic = numbers(log, partitions=2)
        topic.append(counted(1), partition=1)
        log.alter_topic(topic.name, partitions=4)
        assert set(topic.bounds()) == {0, 1, 2, 3}
        topic.append(counted(2), partition=3)
        assert column(topic) == [1, 2]

    def test_partitions_cannot_be_taken_away(self, log: Log) -> None:
        topic = numbers(log, partitions=2)
        with pytest.raises(BadOption):
            log.alter_topic(topic.name, partitions=1)
        assert topic.settings.partitions == 2

    def test_a_key_cannot_change(self, log: Log) -> None:
        topic = log.create_topic(fresh("orders"), "id BIGINT, user BIGINT", key="id")
        with pytest.raises(BadOption):
            log.alter_topic(topic.name, key=("user",))
        assert topic.settings.key == ("id",)

    def test_an_option_that_no_topic_has_is_refused(self, log: Log) -> None:
        topic = numbers(log)
        with pytest.raises(BadOption):
            log.alter_topic(topic.name, colour=3)

    def test_a_compacted_topic_keeps_its_partitions_and_stays_compacted(self, log: Log) -> None:
        topic = numbers(log, key="n", cleanup="compact")
        with pytest.raises(BadOption):
            log.alter_topic(topic.name, partitions=2)
        with pytest.raises(BadOption):
            log.alter_topic(topic.name, cleanup="delete")
