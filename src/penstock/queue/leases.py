"""Who has which message of the embedded queues, and until when.

A lease counts on the monotonic clock, which all processes of one boot share; after a restart every process
that held one is dead, and so its leases are over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.queue import moves
from penstock.queue.catalog import QueueRow, by_id
from penstock.queue.file import Transaction
from penstock.queue.moves import Place
from penstock.queue.numbers import remove_messages, take_number

Row = tuple[Any, ...]  # rank, seq, attempts before, id, key, priority, published_us, extra, body, expires_us
Lease = tuple[int, int]  # seq and attempts: no two deliveries have the same
_PLACE = "SELECT seq, rank, attempts, expires_us FROM leased"


def add_consumer(tx: Transaction, holder: int, queue: int) -> int:
    id = take_number(tx)
    tx.db.execute("INSERT INTO consumers VALUES (?, ?, ?, 0)", (id, holder, queue))
    return id


def take(
    tx: Transaction, queue: QueueRow, consumer: int, *, limit: int, lease_us: int, ahead: bool
) -> list[Row]:
    """Lease what comes first. `ahead`: more than was asked for.

    Then a message that was delivered before travels alone: if it is the one that kills its consumers, it
    should not use up the attempts of others. So does one that has only one: it would be given up unseen.
    """
    if queue.settings.single_active_consumer and not _is_active(tx, queue.id, consumer):
        return []
    rows: list[Row] = tx.db.execute(
        "SELECT r.rank, r.seq, r.attempts, m.id, m.key, m.priority, m.published_us, m.extra, m.body, "
        "r.expires_us FROM ready r JOIN messages m ON m.seq = r.seq "
        "WHERE r.queue=? ORDER BY r.rank, r.seq LIMIT ?",
        (queue.id, limit),
    ).fetchall()
    if ahead:
        has_one = queue.settings.max_attempts == 1
        tried = next((n for n, row in enumerate(rows) if row[2] or has_one), len(rows))
        rows = rows[: max(tried, 1)]
    if rows:
        upto = (queue.id, rows[-1][0], rows[-1][1])
        tx.db.execute(
            "INSERT INTO leased SELECT seq, queue, rank, attempts + 1, expires_us, ?, ? FROM ready "
            "WHERE queue=? AND (rank, seq) <= (?, ?)",
            (consumer, tx.mono_us + lease_us, *upto),
        )
        tx.db.execute("DELETE FROM ready WHERE queue=? AND (rank, seq) <= (?, ?)", upto)
        moves.count(tx, queue, -len(rows))
    return rows


def _is_active(tx: Transaction, queue: int, consumer: int) -> bool:
    """The one consumer that gets everything; the first to ask when there is none."""
    row = tx.db.execute("SELECT id FROM consumers WHERE queue=? AND active", (queue,)).fetchone()
    if row is None:
        tx.db.execute("UPDATE consumers SET active=1 WHERE id=?", (consumer,))
    return row is None or row[0] == consumer


def held(tx: Transaction, consumer: int, wanted: Sequence[Lease]) -> list[Place]:
    """Those of the leases that still are this consumer's."""
    seqs = [seq for seq, _ in wanted]
    rows = tx.db.execute(
        f"{_PLACE} WHERE seq BETWEEN ? AND ? AND consumer=? AND until_us>?",
        (min(seqs), max(seqs), consumer, tx.mono_us),
    ).fetchall()
    asked = set(wanted)
    return [Place(*row) for row in rows if (row[0], row[2]) in asked]


def release(tx: Transaction, places: Sequence[Place]) -> None:
    tx.db.executemany("DELETE FROM leased WHERE seq=?", [(place.seq,) for place in places])


def ack(tx: Transaction, consumer: int, wanted: Sequence[Lease]) -> list[Place]:
    """Remove what is still this consumer's; which that was."""
    found = held(tx, consumer, wanted)
    release(tx, found)
    remove_messages(tx, [place.seq for place in found])
    retried = [(place.seq,) for place in found if place.attempts > 1]
    if retried:
        tx.db.executemany("DELETE FROM history WHERE seq=?", retried)
    return found


def extend(tx: Transaction, consumer: int, wanted: Sequence[Lease], lease_us: int) -> list[Place]:
    found = held(tx, consumer, wanted)
    tx.db.executemany(
        "UPDATE leased SET until_us=? WHERE seq=?", [(tx.mono_us + lease_us, place.seq) for place in found]
    )
    return found


def hand_back(tx: Transaction, queue: QueueRow, consumer: int, wanted: Sequence[Lease]) -> None:
    """What was fetched and never looked at: as if it had not been delivered."""
    found = held(tx, consumer, wanted)
    release(tx, found)
    unseen = [Place(each.seq, each.rank, each.attempts - 1, each.expires_us) for each in found]
    moves.make_ready(tx, queue, unseen)


def sweep(tx: Transaction) -> None:
    """In all queues: leases that are over. A consumer that let one end is not the active one any more."""
    rows = tx.db.execute(
        "SELECT seq, rank, attempts, expires_us, queue, consumer FROM leased WHERE until_us<=?", (tx.mono_us,)
    ).fetchall()
    if rows:
        _end(tx, rows, outcome="its lease ended")
        stalled = [(consumer,) for consumer in {row[5] for row in rows}]
        tx.db.executemany("UPDATE consumers SET active=0 WHERE id=?", stalled)


def end_consumer(tx: Transaction, consumer: int, *, outcome: str) -> None:
    rows = tx.db.execute(
        "SELECT seq, rank, attempts, expires_us, queue, consumer FROM leased WHERE consumer=?", (consumer,)
    ).fetchall()
    _end(tx, rows, outcome=outcome)
    for (queue,) in tx.db.execute("SELECT queue FROM consumers WHERE id=?", (consumer,)).fetchall():
        tx.has_work.add(queue)  # somebody else may be the active one now
    tx.db.execute("DELETE FROM consumers WHERE id=?", (consumer,))


def _end(tx: Transaction, rows: Sequence[Row], *, outcome: str) -> None:
    for id in {row[4] for row in rows}:
        queue = by_id(tx, id)
        places = [Place(*row[:4]) for row in rows if row[4] == id]
        release(tx, places)
        if queue is not None:
            moves.put_back(tx, queue, places, outcome=outcome, reason="")


def next_moment_us(tx: Transaction, queue: int) -> tuple[int | None, int | None]:
    """When something of this queue may become ready by itself: by the wall clock, by the monotonic one."""
    (due_us,) = tx.db.execute("SELECT min(due_us) FROM delayed WHERE queue=?", (queue,)).fetchone()
    (until_us,) = tx.db.execute("SELECT min(until_us) FROM leased WHERE queue=?", (queue,)).fetchone()
    return due_us, until_us
