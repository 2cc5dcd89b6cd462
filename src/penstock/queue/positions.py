"""What makes a bridge exactly once: positions kept with what is published, and removal by number.

The port of backends with the capability `positions`, and how the file keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

from penstock.errors import Contended
from penstock.queue import moves
from penstock.queue.catalog import QueueRow
from penstock.queue.file import Transaction
from penstock.queue.message import Message
from penstock.queue.numbers import remove_messages

if TYPE_CHECKING:
    from penstock.queue.queue import Queue

Numbered = tuple[int, str]
"""A message by its sequence and its id."""


class PositionsPort(Protocol):
    """What a QueuePort with the capability `positions` also has."""

    def identity(self) -> str:
        """The same for the same file of queues, and for no other."""

    def remove(self, queue: str, messages: Sequence[Numbered]) -> int:
        """Durably gone on return, be they waiting, delayed, delivered or dead. How many they were."""

    def position(self, producer: str) -> bytes | None:
        """What `publish_at` stored last under this name."""

    def publish_at(
        self,
        queue: str,
        messages: Sequence[Message],
        *,
        producer: str,
        before: bytes | None,
        after: bytes,
        timeout_s: float,
    ) -> None:
        """As `publish`, and the position with it: both or nothing.

        Raises Contended when the position is not `before`: somebody else goes on under this name.
        """


def exact_port(queue: Queue) -> PositionsPort | None:
    """None where the backend keeps no positions."""
    return cast("PositionsPort", queue.port) if "positions" in queue.port.capabilities else None


def identity(tx: Transaction) -> str:
    (found,) = tx.db.execute("SELECT id FROM identity").fetchone()
    return str(found)


def position(tx: Transaction, producer: str) -> bytes | None:
    row = tx.db.execute("SELECT position FROM positions WHERE producer=?", (producer,)).fetchone()
    return row and bytes(row[0])


def publish_at(
    tx: Transaction,
    queue: QueueRow,
    messages: Sequence[Message],
    *,
    producer: str,
    before: bytes | None,
    after: bytes,
) -> None:
    if position(tx, producer) != before:
        raise Contended(
            f'another instance of "{producer}" has gone on; nothing was published.',
            hint="stop one of them; whoever starts next goes on from where the other one is",
        )
    moves.publish(tx, queue, messages)
    tx.db.execute("INSERT OR REPLACE INTO positions VALUES (?, ?)", (producer, after))


def remove(tx: Transaction, queue: QueueRow, messages: Sequence[Numbered]) -> int:
    """By number and id: a file that was restored from a backup gives numbers again."""
    gone = 0
    for seq, id in messages:
        row = tx.db.execute("SELECT priority FROM messages WHERE seq=? AND id=?", (seq, id)).fetchone()
        if row is not None:
            rank = -min(row[0], queue.settings.max_priority)
            _take(tx, queue, seq, rank)
            remove_messages(tx, [seq])
            tx.db.execute("DELETE FROM history WHERE seq=?", (seq,))
            gone += 1
    return gone


def _take(tx: Transaction, queue: QueueRow, seq: int, rank: int) -> None:
    """Out of the one table that says where it is; the likeliest first, those without an index last."""
    for table in ("leased", "dead"):
        if tx.db.execute(f"DELETE FROM {table} WHERE seq=? AND queue=?", (seq, queue.id)).rowcount:
            return
    guess = "DELETE FROM ready WHERE queue=? AND rank=? AND seq=?"
    if (
        tx.db.execute(guess, (queue.id, rank, seq)).rowcount
        or tx.db.execute("DELETE FROM ready WHERE queue=? AND seq=?", (queue.id, seq)).rowcount
    ):
        moves.count(tx, queue, -1)
        return
    tx.db.execute("DELETE FROM delayed WHERE queue=? AND seq=?", (queue.id, seq))
