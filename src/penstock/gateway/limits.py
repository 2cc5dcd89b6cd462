"""What a gateway takes and holds at most. Everything in here is a bound."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes, counts and seconds. What goes over one is refused with 413 or 429, or dropped if it is slow."""

    body_bytes: int = 16 << 20  # one append
    bodies_bytes: int = 256 << 20  # the bodies of all appends under way together
    question_bytes: int = 1 << 20  # the body of any other request
    connections: int = 2_000
    readers: int = 8  # threads that read
    writers: int = 16  # threads that append: those that come together share a sync
    scans: int = 2  # threads for what reads a whole table or topic
    waiting: int = 1_000  # requests that wait for a thread, for each kind: as many as may subscribe at once
    page_bytes: int = 16 << 20  # records or rows of one answer, as they are stored
    caught_up_bytes: int = 256 << 10  # of that, for a client of a stream that lies far back
    scanned_rows: int = 1_000_000  # looked at for one answer with a filter
    subscribers: int = 1_000
    channels: int = 64  # topics, views and tables that are followed at the same time
    replay_bytes: int = 4 << 20  # events that are kept, or read once more, for those who come back
    behind_bytes: int = 1 << 20  # what a subscriber may leave unread before it is dropped
    feed_rows: int = 200_000  # rows of a view or table that can be subscribed to
    feed_bytes: int = 128 << 20  # the same, as they are sent
    members: int = 256  # group members that are held for HTTP clients
    handed: int = 10_000  # messages of queues that clients have got and not settled
    wait_s: float = 30.0  # how long a request may wait for something to come
    body_silent_s: float = 30.0  # how long a body may stand still on its way here
    heartbeat_s: float = 15.0  # a silent stream says that it is alive
