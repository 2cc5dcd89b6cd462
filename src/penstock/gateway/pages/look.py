"""One look at everything that a page tells at a glance: made about once a second, shared by all readers.

Everything in it is cheap to know: bounds of topics, stored positions, the newest batches, what a run told.
Nothing here starts Spark or reads a topic from its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from penstock.app.failures import Failure
from penstock.app.proofs import Proof
from penstock.app.published import Published
from penstock.app.status import QueryStatus
from penstock.app.watermark import Held
from penstock.gateway.facts.topics import TopicFacts
from penstock.gateway.pages.batches import Batch
from penstock.log.port import GroupInfo

Standing = Literal["live", "waiting", "behind", "failed", "not run", "stopped"]
BEHIND_S = 10.0  # unread for longer than this is worth a word
QUIET_S = 15.0  # without a record for so long


@dataclass(frozen=True, slots=True)
class Trend:
    """A number now, and how it was."""

    now: float
    before: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicLook:
    facts: TopicFacts
    doc: str
    rate: Trend  # records per second

    @property
    def name(self) -> str:
        return self.facts.name


@dataclass(frozen=True, slots=True)
class ViewLook:
    """A view or a derived stream."""

    name: str
    kind: Literal["view", "stream"]
    doc: str
    key: tuple[str, ...]
    window: str  # in words, empty where there is none
    windowed: bool
    topics: tuple[str, ...]
    standing: Standing
    rows: int | None  # of a stream: in its topic
    rate: float
    batch: Batch | None
    batches: tuple[Batch, ...]
    watermark_us: int | None
    lag_records: int
    lag_s: float
    lag_trend: tuple[float, ...]
    wait_s: float | None
    held: Held | None
    quiet_us: int | None  # the newest append to what it reads
    state_rows: int | None
    late: int
    query: QueryStatus | None
    failure: Failure | None
    proof: Proof | None
    behind: int  # records that its copy lacks
    to: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GroupLook:
    info: GroupInfo
    records: int
    seconds: float
    trend: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class QueueLook:
    """A queue and its dead letters."""

    name: str
    ready: int
    taken: int
    delayed: int
    dead: int
    consumers: int | None
    last_reason: str = ""  # why the oldest of the dead died


@dataclass(frozen=True, slots=True)
class Look:
    """All of it, at one moment. `error`: the log does not answer, and the rest is as it was before."""

    at_us: int
    topics: Mapping[str, TopicLook]
    views: Mapping[str, ViewLook]
    groups: tuple[GroupLook, ...]
    queues: tuple[QueueLook, ...]
    published: Published | None
    running: bool
    events: Trend
    late: Trend
    slowest: Trend  # seconds behind
    wait: Trend  # seconds from append to view
    late_hour: int
    queries: frozenset[str] = frozenset()  # under which names a log other than ours shows how far they are
    error: str | None = None

    @property
    def shown_topics(self) -> list[TopicLook]:
        """Those that a program declares or writes."""
        return [topic for topic in self.topics.values() if topic.facts.kind in ("topic", "stream", "table")]

    @property
    def begun(self) -> bool:
        """Whether any view has stored a batch."""
        return any(view.standing != "not run" for view in self.views.values())

    @property
    def tables(self) -> list[TopicLook]:
        return [topic for topic in self.topics.values() if topic.facts.kind == "table"]
