"""A bridge between a queue and a topic, in either direction."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from penstock.errors import BadOption, QueueFull

if TYPE_CHECKING:
    from penstock.log.event import Event
    from penstock.log.topic import Start, Topic
    from penstock.queue.delivery import Delivery
    from penstock.queue.queue import Queue

Watch = Callable[[str], None]
_ROOM_PAUSE_S = 0.25
_BATCH_MAX = 10_000


def unwatched(step: str) -> None:
    """What a test hears of each step, for nobody."""


class Steps(Protocol):
    """One direction. One thread at a time."""

    exactly_once: bool

    def step(self, *, timeout_s: float) -> int:
        """Move what there is, at most one batch, waiting for the first; how many that were."""

    def close(self) -> None: ...


class Bridge:
    """What `ps.bridge` gives: `run` it, or `step` by step. For one thread; `stop` may come from another.

    `exactly_once` says what it promises; where it is False, a crash may repeat the last batch.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._stopping = threading.Event()
        self.moved = 0

    @property
    def exactly_once(self) -> bool:
        return self._steps.exactly_once

    def step(self, *, timeout_s: float = 0.0) -> int:
        """Move at most one batch; how many messages or records that were."""
        moved = self._steps.step(timeout_s=timeout_s)
        self.moved += moved
        return moved

    def run(self, *, once: bool = False) -> int:
        """Until `stop`; with `once`, until there is nothing to move. How many were moved.

        A queue that is full makes it wait. Any other error ends it; what was moved is in its place by then.
        """
        before = self.moved
        while not self._stopping.is_set():
            try:
                if not self.step(timeout_s=0.0 if once else 0.5) and once:
                    break
            except QueueFull:
                self._stopping.wait(_ROOM_PAUSE_S)
        return self.moved - before

    def stop(self) -> None:
        """Let `run` return after the batch under way."""
        self._stopping.set()

    def close(self) -> None:
        self.stop()
        self._steps.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def bridge(
    source: Queue | Topic,
    target: Queue | Topic,
    *,
    id: str | None = None,
    batch: int = 500,
    start: Start = "earliest",
    decode: Callable[[Delivery], Any] | None = None,
    encode: Callable[[Event], object] | None = None,
    watch: Watch = unwatched,
) -> Bridge:
    """Move messages of a queue into a topic, or records of a topic into a queue.

        with ps.bridge(queues.queue("orders"), log.topic("orders")) as bridge:
            bridge.run()

    Queue to topic: exactly once from queues in a file, at least once from RabbitMQ. A body is a JSON object
    of the topic's columns, or what `decode(delivery)` makes of it; one that does not fit is a dead letter.
    Topic to queue: exactly once into queues in a file, at least once into RabbitMQ, with the same message id
    each time. The body is the record as JSON, or what `encode(event)` makes of it; `start` is where the first
    run begins. `id` names the bridge: a second one of the same name takes over from the first.
    """
    from penstock.log.topic import Topic
    from penstock.queue.queue import Queue
    from penstock.queue.queue_to_topic import QueueToTopic
    from penstock.queue.topic_to_queue import TopicToQueue

    if not 1 <= batch <= _BATCH_MAX:
        raise BadOption(f"batch={batch}.", hint=f"1 to {_BATCH_MAX:,}")
    name = id or f"bridge.{source.name}.{target.name}"
    if isinstance(source, Queue) and isinstance(target, Topic):
        return Bridge(QueueToTopic(source, target, id=name, batch=batch, decode=decode, watch=watch))
    if isinstance(source, Topic) and isinstance(target, Queue):
        return Bridge(
            TopicToQueue(source, target, id=name, batch=batch, start=start, encode=encode, watch=watch)
        )
    raise BadOption(
        "a bridge leads from a queue to a topic, or from a topic to a queue.",
        hint="ps.bridge(queue, topic) or ps.bridge(topic, queue)",
    )
