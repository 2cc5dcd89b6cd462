"""What the demo claims at its end, worked out from the log itself."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.cli.demo.carts import Recorded
from penstock.cli.demo.mails import Sent
from penstock.log.topic import Topic


@dataclass(frozen=True, slots=True)
class Stored:
    """What was acknowledged to the producers against what the log holds."""

    acknowledged: int
    in_log: int
    lost: int  # acknowledged, not in the log
    twice: int  # more often in the log than sent
    out_of_order: int  # records of a key before an older one of the same producer


@dataclass(frozen=True, slots=True)
class Delivered:
    """What a group was given against what the log holds."""

    group: str
    delivered: int
    lost: int  # in the log, given to nobody
    repeated: int  # given again after a crash


@dataclass(frozen=True, slots=True)
class Proof:
    """Everything the demo claims, and whether it holds."""

    seconds: float
    events: int  # that were acknowledged to anybody
    cut_short: bool  # somebody stopped it before every query had begun
    stored: Stored
    delivered: tuple[Delivered, ...]
    imported: bool
    captured: bool
    carts: Recorded
    mails: Sent
    views: Mapping[str, Mapping[str, Any]] | None  # what verify said: verdict, reason, rows, late
    ended_in_order: bool
    taken_over_s: float | None
    killed: bool

    @property
    def holds(self) -> bool:
        intact = not (self.stored.lost or self.stored.twice or self.stored.out_of_order)
        read = not any(group.lost for group in self.delivered)
        took_over = self.taken_over_s is not None or not self.killed
        told = self.imported and self.captured and self.carts.holds and self.mails.holds
        return intact and read and took_over and self.proved and told and self.ended_in_order

    @property
    def proved(self) -> bool:
        """Every view and stream; where it was cut short, those that had begun."""
        if self.views is None:
            return True
        found = [one["verdict"] == "equal" for one in self.views.values() if not self.is_excused(one)]
        return all(found) and bool(found or self.cut_short)

    def is_excused(self, found: Mapping[str, Any]) -> bool:
        """Whether nothing could be expected of a view or stream."""
        return self.cut_short and not found["rows"]


def stored(topic: Topic, acknowledged: Mapping[int, int]) -> Stored:
    """`acknowledged`: how many records each producer was told are stored; it numbers them from 0."""
    numbers: dict[int, list[npt.NDArray[np.int64]]] = defaultdict(list)
    newest: dict[tuple[int, int], int] = {}
    total = out_of_order = 0
    for batch in topic.read():
        total += batch.num_rows
        producers = batch.column("producer").to_numpy()
        found = batch.column("number").to_numpy()
        for producer in np.unique(producers):
            numbers[int(producer)].append(found[producers == producer])
        for place in zip(
            producers.tolist(), batch.column("user_id").to_pylist(), found.tolist(), strict=True
        ):
            producer, user, number = place
            out_of_order += newest.get((producer, user), -1) > number
            newest[producer, user] = number
    lost = twice = 0
    for producer, count in acknowledged.items():
        held = np.concatenate(numbers[producer]) if numbers[producer] else np.empty(0, np.int64)
        distinct = np.unique(held)
        twice += len(held) - len(distinct)
        lost += count - int(np.count_nonzero(distinct < count))
    return Stored(sum(acknowledged.values()), total, lost, twice, out_of_order)


def delivered(group: str, ends: Mapping[int, int], ranges: Iterable[tuple[int, int, int]]) -> Delivered:
    """`ranges`: (partition, first, end) of everything that members of the group were given."""
    given = {partition: np.zeros(end, np.int32) for partition, end in ends.items()}
    for partition, first, end in ranges:
        given[partition][first:end] += 1
    counts = Counter[str]()
    for times in given.values():
        counts["lost"] += int(np.count_nonzero(times == 0))
        counts["delivered"] += int(times.sum())
        counts["repeated"] += int(np.maximum(times - 1, 0).sum())
    return Delivered(group, counts["delivered"], counts["lost"], counts["repeated"])
