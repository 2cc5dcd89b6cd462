"""Dead letters of the embedded queues: what was given up, why, and what was tried."""

from __future__ import annotations

import json
from typing import Any

from penstock.errors import QueueFull
from penstock.log.port import from_us
from penstock.queue import catalog, moves
from penstock.queue.delivery import Attempt, DeadLetter
from penstock.queue.file import QueueFile, Transaction
from penstock.queue.message import Message
from penstock.queue.port import Edit, Wanted

_CHUNK = 500


def letters(tx: Transaction, queue: str, *, after: int, limit: int) -> list[tuple[int, DeadLetter]]:
    """With the number of each, in their order."""
    found = catalog.find(tx, queue)
    rows = tx.db.execute(
        "SELECT d.seq, d.cause, d.reason, d.attempts, d.at_us, m.body, m.key, m.priority, m.id, m.extra "
        "FROM dead d JOIN messages m ON m.seq = d.seq WHERE d.queue=? AND d.seq>? ORDER BY d.seq LIMIT ?",
        (found.id, after, limit),
    ).fetchall()
    return [(row[0], _letter(tx, queue, row)) for row in rows]


def _letter(tx: Transaction, queue: str, row: tuple[Any, ...]) -> DeadLetter:
    seq, cause, reason, attempts, at_us, body, key, priority, id, extra = row
    headers, content_type, correlation_id, reply_to = json.loads(extra) if extra else ({}, "", "", "")
    message = Message(body, key, headers, priority, id, content_type, correlation_id, reply_to)
    tried = tx.db.execute(
        "SELECT number, outcome, reason, at_us FROM history WHERE seq=? ORDER BY number", (seq,)
    )
    history = tuple(Attempt(number, outcome, why, from_us(at)) for number, outcome, why, at in tried)
    return DeadLetter(queue, message, cause, reason, attempts, from_us(at_us), history)


def _last(tx: Transaction, queue: str, to: str) -> int:
    found, _ = catalog.find(tx, queue), catalog.find(tx, to)
    (last,) = tx.db.execute("SELECT max(seq) FROM dead WHERE queue=?", (found.id,)).fetchone()
    return int(last or 0)


def redrive(file: QueueFile, queue: str, *, to: str, wanted: Wanted, edit: Edit, limit: int | None) -> int:
    """In chunks: what is asked of the caller happens outside of transactions, which are short."""
    count, after = 0, 0
    last = file.write(lambda tx: _last(tx, queue, to))  # what dies again meanwhile has a higher number
    while after < last and (limit is None or count < limit):
        found = file.write(lambda tx, at=after: letters(tx, queue, after=at, limit=_CHUNK))  # type: ignore[misc]
        found = [(seq, letter) for seq, letter in found if seq <= last]
        if not found:
            break
        after = found[-1][0]
        chosen = [(seq, edit(letter)) for seq, letter in found if wanted(letter)]
        chosen = chosen[: None if limit is None else limit - count]
        count += _publish_as_there_is_room(file, queue, to, chosen)
    return count


def _publish_as_there_is_room(file: QueueFile, queue: str, to: str, chosen: list[tuple[int, Message]]) -> int:
    """Raises QueueFull when there is none for the next one; those before it are redriven."""
    try:
        return file.write(lambda tx: _publish_anew(tx, queue, to, chosen), durable=True)
    except QueueFull:
        if len(chosen) <= 1:
            raise
    half = len(chosen) // 2
    return sum(_publish_as_there_is_room(file, queue, to, each) for each in (chosen[:half], chosen[half:]))


def _publish_anew(tx: Transaction, queue: str, to: str, chosen: list[tuple[int, Message]]) -> int:
    source, target = catalog.find(tx, queue), catalog.find(tx, to)
    still = [(seq, message) for seq, message in chosen if _remove(tx, source.id, seq)]
    if still:
        moves.publish(tx, target, [message for _, message in still])
    return len(still)


def _remove(tx: Transaction, queue: int, seq: int) -> bool:
    """False when somebody else has redriven it meanwhile."""
    gone = tx.db.execute("DELETE FROM dead WHERE seq=? AND queue=?", (seq, queue)).rowcount
    if gone:
        moves.remove(tx, [moves.Place(seq, 0, 0, None)])
    return bool(gone)


def purge(file: QueueFile, queue: str, wanted: Wanted) -> int:
    count, after = 0, 0
    while found := file.write(lambda tx, at=after: letters(tx, queue, after=at, limit=_CHUNK)):  # type: ignore[misc]
        after = found[-1][0]
        chosen = [seq for seq, letter in found if wanted(letter)]

        def remove(tx: Transaction, seqs: list[int] = chosen) -> int:
            source = catalog.find(tx, queue)
            return sum(_remove(tx, source.id, seq) for seq in seqs)

        count += file.write(remove)
    return count
