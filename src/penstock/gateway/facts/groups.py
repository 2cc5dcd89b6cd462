"""Consumer groups: who reads what, how far they are, and moving them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from penstock.app.app import App
from penstock.errors import PenstockError, UnknownGroup
from penstock.log.port import GroupInfo
from penstock.places import offsets_of, parse_place

_GROUPS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A group on one topic. `lag_seconds`: the age of the oldest record that it has not read."""

    group: str
    topic: str
    members: int
    lag_records: int
    lag_seconds: float


@dataclass(frozen=True, slots=True)
class Move:
    """One partition of a group being moved."""

    partition: int
    committed: int | None
    to: int
    read_again: int
    skipped: int


@dataclass(frozen=True, slots=True)
class Reset:
    """`moved` is false for a dry run: nothing was changed."""

    group: str
    topic: str
    moved: bool
    partitions: tuple[Move, ...]


def all_of(app: App) -> tuple[GroupFacts, ...]:
    found = []
    for group, topic in app.log.groups()[:_GROUPS_MAX]:
        try:
            found.append(_summary(app.log.group(group, topic)))
        except PenstockError:  # its topic was deleted meanwhile
            continue
    return tuple(found)


def one_of(app: App, group: str) -> tuple[GroupInfo, ...]:
    """On each topic that it reads. Raises UnknownGroup."""
    pairs = app.log.groups()
    topics = [topic for known, topic in pairs if known == group]
    if not topics:
        raise UnknownGroup(group, known=(known for known, _ in pairs))
    return tuple(app.log.group(group, topic) for topic in topics)


def reset(
    app: App, group: str, topic: str, to: str, *, partition: int | None, dry_run: bool, now: datetime
) -> Reset:
    """Move a group without members. Raises Contended if it has some, OffsetOutOfRange."""
    opened = app.log.topic(topic)
    wanted = offsets_of(opened, parse_place(to, now=now), partition)
    committed, bounds = app.log.port.committed(group, topic), opened.bounds()
    moves = tuple(_move(n, committed.get(n), offset, bounds[n]) for n, offset in wanted.items())
    if not dry_run:
        app.log.port.reset(group, topic, wanted)
    return Reset(group, topic, not dry_run, moves)


def _move(number: int, committed: int | None, to: int, bounds: tuple[int, int]) -> Move:
    # Without a commit the group would begin where its consumers say, at the start unless told otherwise.
    now = max(bounds[0] if committed is None else committed, bounds[0])
    return Move(number, committed, to, read_again=max(now - to, 0), skipped=max(to - now, 0))


def _summary(info: GroupInfo) -> GroupFacts:
    return GroupFacts(
        info.group, info.topic, len(info.members), sum(lag.records for lag in info.lag),
        max((lag.seconds for lag in info.lag), default=0.0),
    )  # fmt: skip
