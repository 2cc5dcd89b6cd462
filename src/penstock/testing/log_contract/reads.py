"""Reading: by offset, by time, from the end, and waiting for more."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from penstock.errors import BadOption, OffsetOutOfRange
from penstock.log.log import Log
from penstock.log.port import LogPort
from penstock.log.topic import Topic
from penstock.testing.log_contract.backend import Backend, column, counted, numbers

_TICK = timedelta(milliseconds=2)  # a backend may keep time in milliseconds


class Reads(Backend):
    def test_a_new_partition_is_empty(self, log: Log) -> None:
        topic = numbers(log, partitions=2)
        for start, end in topic.bounds().values():
            assert start == end
        assert column(topic) == []

    def test_bounds_enclose_the_records(self, log: Log) -> None:
        topic = numbers(log)
        topic.append(counted(1, 2, 3))
        offsets = [event.offset for event in topic.events()]
        start, end = topic.bounds()[0]
        assert start <= offsets[0]
        assert offsets[-1] < end

    def test_records_come_with_their_place_and_time_first(self, log: Log) -> None:
        topic = numbers(log)
        topic.append(counted(1))
        (batch,) = topic.read()
        assert batch.schema.equals(topic.settings.read_schema)
        assert batch.schema.names == ["_partition", "_offset", "_timestamp", "n"]

    def test_a_range_of_offsets_is_read_from_its_first_to_before_its_last(self, log: Log) -> None:
        topic = numbers(log)
        topic.append(counted(*range(10)))
        offsets = [event.offset for event in topic.events()]
        assert column(topic, start=offsets[3], end=offsets[6]) == [3, 4, 5]
        assert column(topic, start=offsets[3], end=offsets[3]) == []
        assert column(topic, start=offsets[8]) == [8, 9]

    def test_each_partition_can_start_at_its_own_offset(self, log: Log) -> None:
        topic = numbers(log, partitions=2)
        topic.append(counted(1, 2), partition=0)
        second = topic.append(counted(3, 4), partition=1)
        assert column(topic, start={1: second.offset + 1}) == [1, 2, 4]

    def test_one_partition_can_be_read_alone(self, log: Log) -> None:
        topic = numbers(log, partitions=3)
        for partition in range(3):
            topic.append(counted(partition), partition=partition)
        assert column(topic, partition=1) == [1]

    def test_a_partition_that_is_not_there_cannot_be_read(self, log: Log, port: LogPort) -> None:
        topic = numbers(log)
        with pytest.raises(BadOption):
            port.bounds(topic.name, 1)
        with pytest.raises(BadOption):
            list(port.read(topic.name, 1, 0))

    def test_reading_at_the_end_gives_nothing(self, log: Log, port: LogPort) -> None:
        topic = numbers(log)
        topic.append(counted(1))
        assert list(port.read(topic.name, 0, topic.bounds()[0][1])) == []

    def test_latest_means_only_what_comes_after(self, log: Log) -> None:
        topic = numbers(log)
        topic.append(counted(1))
        end = topic.offset_of(0, "latest")
        topic.append(counted(2))
        assert column(topic, start=end) == [2]

    @pytest.mark.parametrize("beside", [-1, 1_000_000])
    def test_an_offset_that_never_was_is_out_of_range(self, log: Log, port: LogPort, beside: int) -> None:
        topic = numbers(log)
        topic.append(counted(1))
        with pytest.raises(OffsetOutOfRange) as refused:
            list(port.read(topic.name, 0, beside))
        assert (refused.value.topic, refused.value.partition, refused.value.offset) == (topic.name, 0, beside)
        assert (refused.value.start, refused.value.end) == topic.bounds()[0]

    def test_records_that_retention_took_are_out_of_range(self, log: Log, port: LogPort) -> None:
        topic = numbers(log, segment_bytes=1)
        for n in range(5):
            topic.append(counted(n))
        first = topic.bounds()[0][0]
        self.expire(port, topic.name, 0)
        with pytest.raises(OffsetOutOfRange) as refused:
            list(port.read(topic.name, 0, first))
        assert refused.value.start == topic.bounds()[0][0] > first
        left = column(topic)
        assert left == list(range(5))[-len(left) :]

    # ---- time ------------------------------------------------------------------------------------

    def test_timestamps_say_when_records_were_appended(self, log: Log) -> None:
        topic = numbers(log)
        topic.append(counted(1))
        (event,) = topic.events()
        assert abs(datetime.now(UTC) - event.timestamp) < timedelta(minutes=1)

    def test_timestamps_do_not_go_back_within_a_partition(self, log: Log) -> None:
        topic = numbers(log)
        for n in range(20):
            topic.append(counted(n))
        times = [event.timestamp for event in topic.events()]
        assert times == sorted(times)

    def test_reading_from_a_time_starts_with_the_first_record_not_before_it(self, log: Log) -> None:
        topic = numbers(log)
        times = [self._append_later(topic, n) for n in range(3)]
        assert column(topic, start=times[0]) == [0, 1, 2]
        assert column(topic, start=times[1]) == [1, 2]
        assert column(topic, start=times[1] + _TICK / 2, end=times[2]) == []
        assert column(topic, start=times[1] - timedelta(days=1), end=times[1]) == [0]

    def test_a_time_after_the_last_record_means_the_end(self, log: Log, port: LogPort) -> None:
        topic = numbers(log)
        later = self._append_later(topic, 1) + timedelta(hours=1)
        assert column(topic, start=later) == []
        assert port.offset_at(topic.name, 0, round(later.timestamp() * 1e6)) == topic.bounds()[0][1]

    def _append_later(self, topic: Topic, n: int) -> datetime:
        """Append a number in a tick of its own; returns its timestamp."""
        before = max((event.timestamp for event in topic.events()), default=datetime.min.replace(tzinfo=UTC))
        self.until(lambda: datetime.now(UTC) > before + 2 * _TICK)
        topic.append(counted(n))
        *_, last = topic.events()
        return last.timestamp

    # ---- waiting -----------------------------------------------------------------------------------

    def test_waiting_ends_when_another_client_appends(self, log: Log, other: Log) -> None:
        topic = numbers(log, partitions=2)
        self.until(lambda: topic.name in other.topics())
        ends = {partition: end for partition, (_, end) in topic.bounds().items()}
        woken: list[bool] = []
        waiter = threading.Thread(target=lambda: woken.append(topic.wait(ends, self.patience_s)))
        waiter.start()
        other.topic(topic.name).append(counted(1), partition=1)
        waiter.join()
        assert woken == [True]
        assert column(topic) == [1]

    def test_waiting_for_what_is_there_ends_at_once(self, log: Log) -> None:
        topic = numbers(log)
        ends = {0: topic.bounds()[0][1]}
        topic.append(counted(1))
        begun = time.monotonic()
        assert topic.wait(ends, 2 * self.patience_s)
        assert time.monotonic() - begun < self.patience_s

    def test_waiting_ends_when_time_is_up(self, log: Log) -> None:
        topic = numbers(log)
        topic.append(counted(1))
        begun = time.monotonic()
        assert not topic.wait({0: topic.bounds()[0][1]}, 0.2)
        assert 0.15 < time.monotonic() - begun < self.patience_s

    def test_a_long_wait_notices_every_append(self, log: Log, other: Log) -> None:
        topic = numbers(log)
        self.until(lambda: topic.name in other.topics())
        theirs = other.topic(topic.name)
        for n in range(5):
            end = topic.bounds()[0][1]
            theirs.append(counted(n))
            assert topic.wait({0: end}, self.patience_s)
            assert column(topic, start=end) == [n]
