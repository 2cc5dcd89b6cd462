"""copy: a log moved to a Kafka cluster, with everything that others hold of it.

Topics keep their settings, partitions, keys, order and append times. Offsets begin anew there, so whatever
names one is translated: the commits of groups, and the positions and recorded batches of queries, which go on
where they were. Their state is built anew from the log at the first start.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import BadOption, NotSupported
from penstock.flow.commit import Position
from penstock.flow.offset import Offset, Point
from penstock.flow.output import BATCHES, LATE
from penstock.kafka.log import KafkaLog
from penstock.log.embedded import EmbeddedLog
from penstock.log.log import Log
from penstock.log.settings import TopicSettings
from penstock.log.topic import WATERMARKS

_FLOW = "flow."

Tell = Callable[[str], None]
"""Told of each topic that is copied next."""


@dataclass(slots=True)
class Runs:
    """Where the records of one partition went. Between two gaps, offsets only shift."""

    olds: list[int] = field(default_factory=list)  # first offset of each run
    news: list[int] = field(default_factory=list)
    end: int = 0  # one past the last record, there
    kept: int = 0  # retention had taken what lay before

    def note(self, offsets: np.ndarray[Any, Any], first: int) -> None:
        """These records, one after another, are there from `first` on."""
        news = first + np.arange(len(offsets))
        starts = np.flatnonzero(np.diff(offsets, prepend=offsets[0] - 2) != 1)
        for at in starts:
            shift = int(news[at]) - int(offsets[at])
            if not self.olds or shift != self.news[-1] - self.olds[-1]:
                self.olds.append(int(offsets[at]))
                self.news.append(int(news[at]))
        self.end = first + len(offsets)

    def new(self, old: int) -> int:
        """Where somebody goes on who was at `old`; -1 where retention had taken that."""
        if old < self.kept:
            return -1
        run = bisect.bisect_right(self.olds, old) - 1
        if run < 0:
            return 0
        shifted = self.news[run] + old - self.olds[run]
        return min(shifted, self.news[run + 1] if run + 1 < len(self.news) else self.end)


Moved = Mapping[str, Sequence[Runs]]
"""By topic, for each partition."""


@dataclass(frozen=True, slots=True)
class Copied:
    records: Mapping[str, int]
    groups: int
    producers: int
    moved: Moved

    def offsets(self) -> dict[str, dict[int, list[tuple[int, int]]]]:
        """By topic and partition: from which offset on records are where, up to the next such pair."""
        return {
            topic: {n: list(zip(runs.olds, runs.news, strict=True)) for n, runs in enumerate(found)}
            for topic, found in self.moved.items()
        }


def copy(log: Log, cluster: Log, *, tell: Tell = lambda _: None) -> Copied:
    """Everything, while nobody writes to either. Raises BadOption where the target has one of the topics."""
    source, target = log.port, cluster.port
    if not isinstance(source, EmbeddedLog) or not isinstance(target, KafkaLog):
        raise NotSupported(
            "a log is copied from a folder to Kafka.", hint="open them as open_log(folder) and open_log(url)"
        )
    names = sorted(source.topics(), key=lambda name: (name.endswith(BATCHES), name))
    taken = sorted(set(names) & set(target.topics()))
    if taken:
        raise BadOption(
            f"topics of these names are there already: {', '.join(taken)}.",
            hint="delete them there, or copy into another cluster",
        )
    moved: dict[str, list[Runs]] = {}
    records: dict[str, int] = {}
    for name in names:
        tell(name)
        moved[name] = _topic(source, target, name, moved)
        records[name] = sum(runs.end for runs in moved[name])
    groups = source.groups()
    for group, topic in groups:
        committed = source.committed(group, topic)
        if committed:
            target.reset(group, topic, {p: max(0, moved[topic][p].new(o)) for p, o in committed.items()})
    producers = source.producers()
    for producer in producers:
        _producer(source, target, producer, moved)
    return Copied(records, len(groups), len(producers), moved)


def _topic(source: EmbeddedLog, target: KafkaLog, name: str, moved: Moved) -> list[Runs]:
    settings = target.create_topic(replace(source.settings(name), version=1), dated=True)
    found = [Runs() for _ in range(settings.partitions)]
    with target.restoring(settings):
        for partition, runs in enumerate(found):
            start, end = source.bounds(name, partition)
            runs.kept = start
            for batch in source.read(name, partition, start, until=end):
                translated = _history(batch, moved) if name.endswith(BATCHES) else batch
                first, _ = target.restore(settings, partition, translated)
                runs.note(np.asarray(batch.column("_offset")), first)
    _grown(target, settings, found)
    return found


def _grown(target: KafkaLog, settings: TopicSettings, found: Sequence[Runs]) -> None:
    """Where partitions were added: the ends of then, as they are there."""
    if settings.grown:
        grown = tuple(
            replace(added, ends=tuple(max(0, found[p].new(end)) for p, end in enumerate(added.ends)))
            for added in settings.grown
        )
        target.declare(replace(settings, grown=grown))


def _history(batch: pa.RecordBatch, moved: Moved) -> pa.RecordBatch:
    """Recorded batches, each with its offsets translated."""
    at = batch.schema.get_field_index("batch")
    texts = [json.dumps(_offset(json.loads(text), moved).to_json()) for text in batch.column(at).to_pylist()]
    return batch.set_column(at, batch.schema.field(at), pa.array(texts, batch.schema.field(at).type))


def _producer(source: EmbeddedLog, target: KafkaLog, producer: str, moved: Moved) -> None:
    stored = source.producer_position(producer)
    if stored.position is None:
        return
    position = stored.position
    if producer.startswith(_FLOW) and position:
        position = _position(Position.decode(position), producer, moved).encode()
    opened = target.open_producer(producer)
    target.append_atomically(producer, opened.epoch, max(stored.sequence, opened.sequence + 1), {}, position)
    target.close_producer(producer)


def _position(position: Position, producer: str, moved: Moved) -> Position:
    late = f"{producer.split('.', maxsplit=2)[2]}{LATE}"
    late_from = max(0, moved[late][0].new(position.late_from)) if late in moved else 0
    batch = _offset(position.batch.to_json(), moved)
    return replace(position, batch=batch, checkpoint="", late_from=late_from)


def _offset(plain: Mapping[str, Any], moved: Moved) -> Offset:
    offset = Offset.from_json(plain)
    return replace(offset, start=_point(offset.start, moved), end=_point(offset.end, moved))


def _point(point: Point, moved: Moved) -> Point:
    return replace(
        point,
        ends={topic: _moved(moved, topic, ends) for topic, ends in point.ends.items()},
        declared={
            topic: _moved(moved, f"{topic}{WATERMARKS}", [known])[0]
            for topic, known in point.declared.items()
        },
    )


def _moved(moved: Moved, topic: str, offsets: Iterable[int]) -> tuple[int, ...]:
    runs = moved.get(topic)
    return tuple(runs[number].new(old) if runs else old for number, old in enumerate(offsets))
