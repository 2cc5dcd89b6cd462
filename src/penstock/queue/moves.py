"""How messages of the embedded queues move: published, due, expired, returned, given up, removed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.errors import MessageTooLarge, QueueFull
from penstock.queue.catalog import QueueRow, by_id
from penstock.queue.delivery import Cause
from penstock.queue.file import Transaction
from penstock.queue.message import Message
from penstock.queue.numbers import next_number, remove_messages
from penstock.queue.settings import ATTEMPTS_MAX


@dataclass(frozen=True, slots=True)
class Place:
    """A message's row in `ready` or `leased`."""

    seq: int
    rank: int
    attempts: int
    expires_us: int | None


# ---- in ------------------------------------------------------------------------------------------


def publish(tx: Transaction, queue: QueueRow, messages: Sequence[Message]) -> None:
    """Raises MessageTooLarge or QueueFull before anything is stored."""
    settings = queue.settings
    for message in messages:
        if len(message.body) > settings.max_message_bytes:
            raise MessageTooLarge(
                settings.name, size_bytes=len(message.body), size_bytes_max=settings.max_message_bytes
            )
    waiting = [message for message in messages if not message.delay_ms]
    limit = None if settings.overflow == "drop_oldest" else settings.max_length
    if limit is not None and queue.length + len(waiting) > limit:
        raise QueueFull(settings.name, length_max=limit, count=len(waiting))
    first = next_number(tx)
    tx.db.executemany(
        "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (first + n, message.id, message.key, message.priority, tx.now_us, extra_of(message), message.body)
            for n, message in enumerate(messages)
        ],
    )
    placed = [_placed(tx, queue, first + n, message) for n, message in enumerate(messages)]
    make_ready(
        tx, queue, [place for place, message in zip(placed, messages, strict=True) if not message.delay_ms]
    )
    if len(waiting) < len(messages):
        delayed = [(p, m.delay_ms) for p, m in zip(placed, messages, strict=True) if m.delay_ms]
        delay(tx, queue, delayed)
    if settings.max_length is not None and settings.overflow == "drop_oldest":
        _drop_oldest(tx, queue, queue.length + len(waiting) - settings.max_length)


def _placed(tx: Transaction, queue: QueueRow, seq: int, message: Message) -> Place:
    ends_ms = [] if message.ttl_ms is None else [message.ttl_ms]
    if queue.settings.ttl_ms is not None:  # which is about waiting in it, and so begins after a delay
        ends_ms.append(message.delay_ms + queue.settings.ttl_ms)
    expires_us = tx.now_us + min(ends_ms) * 1_000 if ends_ms else None
    return Place(seq, -min(message.priority, queue.settings.max_priority), 0, expires_us)


def make_ready(tx: Transaction, queue: QueueRow, places: Sequence[Place]) -> None:
    if places:
        tx.db.executemany(
            "INSERT INTO ready VALUES (?, ?, ?, ?, ?)",
            [(queue.id, each.rank, each.seq, each.attempts, each.expires_us) for each in places],
        )
        count(tx, queue, len(places))
        tx.has_work.add(queue.id)


def delay(tx: Transaction, queue: QueueRow, places: Sequence[tuple[Place, int]]) -> None:
    """Keep messages back for so many milliseconds each."""
    tx.db.executemany(
        "INSERT INTO delayed VALUES (?, ?, ?, ?, ?, ?)",
        [
            (queue.id, tx.now_us + delay_ms * 1_000, each.seq, each.rank, each.attempts, each.expires_us)
            for each, delay_ms in places
        ],
    )
    tx.has_work.add(queue.id)  # who waits has to wait for something else now


def count(tx: Transaction, queue: QueueRow, change: int) -> None:
    """What is ready in a queue of limited length has become more or less."""
    if queue.settings.max_length is not None:
        tx.db.execute("UPDATE queues SET length = length + ? WHERE id=?", (change, queue.id))
        if change < 0:
            tx.has_room.add(queue.id)


def extra_of(message: Message) -> str | None:
    """What few messages have, in one column."""
    if not (message.headers or message.content_type or message.correlation_id or message.reply_to):
        return None
    return json.dumps([dict(message.headers), message.content_type, message.correlation_id, message.reply_to])


def _drop_oldest(tx: Transaction, queue: QueueRow, excess: int) -> None:
    """Of the lowest priority first."""
    while excess > 0 and (places := _oldest_of_lowest(tx, queue.id, excess)):
        take_ready(tx, queue, places)
        reason = f"more than {queue.settings.max_length} messages waited"
        give_up(tx, queue, places, cause="dropped", reason=reason)
        excess -= len(places)


def _oldest_of_lowest(tx: Transaction, queue: int, limit: int) -> list[Place]:
    # One priority at a time: ordered by both at once, SQLite would look at everything that waits.
    rows = tx.db.execute(
        "SELECT seq, rank, attempts, expires_us FROM ready WHERE queue=? "
        "AND rank = (SELECT max(rank) FROM ready WHERE queue=?) ORDER BY seq LIMIT ?",
        (queue, queue, limit),
    )
    return [Place(*row) for row in rows]


# ---- time passes ---------------------------------------------------------------------------------


def wake_delayed(tx: Transaction, queue: QueueRow) -> None:
    """What was kept back long enough is ready."""
    rows = tx.db.execute(
        "SELECT seq, rank, attempts, expires_us, due_us FROM delayed WHERE queue=? AND due_us<=?",
        (queue.id, tx.now_us),
    ).fetchall()
    if rows:
        tx.db.executemany(
            "DELETE FROM delayed WHERE queue=? AND due_us=? AND seq=?",
            [(queue.id, row[4], row[0]) for row in rows],
        )
        make_ready(tx, queue, [Place(*row[:4]) for row in rows])


def expire(tx: Transaction) -> None:
    """In all queues: what waited longer than it may."""
    rows = tx.db.execute(
        "SELECT queue, seq, rank, attempts, expires_us FROM ready WHERE expires_us <= ?", (tx.now_us,)
    ).fetchall()
    for id in {row[0] for row in rows}:
        queue = by_id(tx, id)
        if queue is not None:
            places = [Place(*row[1:]) for row in rows if row[0] == id]
            take_ready(tx, queue, places)
            give_up(tx, queue, places, cause="expired", reason="it waited longer than its ttl")


# ---- out -----------------------------------------------------------------------------------------


def take_ready(tx: Transaction, queue: QueueRow, places: Sequence[Place]) -> None:
    tx.db.executemany(
        "DELETE FROM ready WHERE queue=? AND rank=? AND seq=?", [(queue.id, p.rank, p.seq) for p in places]
    )
    count(tx, queue, -len(places))


def put_back(
    tx: Transaction, queue: QueueRow, places: Sequence[Place], *, outcome: str, reason: str, delay_ms: int = 0
) -> None:
    """Deliveries that ended without an ack (their leases are gone): deliver them again, or give them up."""
    remember(tx, places, outcome, reason)
    tries = queue.settings.max_attempts
    over: list[Place] = []
    late: list[Place] = []
    again: list[Place] = []
    for place in places:
        if tries is not None and place.attempts >= tries:
            over.append(place)
        elif place.expires_us is not None and place.expires_us <= tx.now_us:
            late.append(place)
        else:
            again.append(place)
    give_up(tx, queue, over, cause="attempts", reason=reason or outcome)
    give_up(tx, queue, late, cause="expired", reason="it waited longer than its ttl")
    if delay_ms:
        delay(tx, queue, [(place, delay_ms) for place in again])
    else:
        make_ready(tx, queue, again)


def remember(tx: Transaction, places: Sequence[Place], outcome: str, reason: str) -> None:
    """The last ones of many: with `max_attempts=None` there is no end of them."""
    tx.db.executemany(
        "INSERT OR REPLACE INTO history VALUES (?, ?, ?, ?, ?)",
        [(place.seq, place.attempts, tx.now_us, outcome, reason) for place in places],
    )
    tx.db.executemany(
        "DELETE FROM history WHERE seq=? AND number<=?",
        [(p.seq, p.attempts - ATTEMPTS_MAX) for p in places if p.attempts > ATTEMPTS_MAX],
    )


def give_up(tx: Transaction, queue: QueueRow, places: Sequence[Place], *, cause: Cause, reason: str) -> None:
    """Messages that are in no other table any more become dead letters, or nothing."""
    if queue.settings.dead_letters:
        tx.db.executemany(
            "INSERT INTO dead VALUES (?, ?, ?, ?, ?, ?)",
            [(place.seq, queue.id, cause, reason, tx.now_us, place.attempts) for place in places],
        )
    else:
        remove(tx, places)


def remove(tx: Transaction, places: Iterable[Place]) -> None:
    """The messages themselves; their places are gone already."""
    gone = [place.seq for place in places]
    remove_messages(tx, gone)
    tx.db.executemany("DELETE FROM history WHERE seq=?", [(seq,) for seq in gone])
