"""The numbers of messages, queues and consumers: none is ever given twice.

The messages that are there tell which were given, so publishing, which waits for the disk, need not write
`counter`. Whoever removes the highest does.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.queue.file import Transaction


def next_number(tx: Transaction) -> int:
    """The lowest that was never given; a message that takes it is stored before the next is asked for."""
    (number,) = tx.db.execute(
        "SELECT max(next, ifnull((SELECT max(seq) + 1 FROM messages), 0)) FROM counter"
    ).fetchone()
    return int(number)


def take_number(tx: Transaction) -> int:
    """One for what is no message."""
    number = next_number(tx)
    tx.db.execute("UPDATE counter SET next = ?", (number + 1,))
    return number


def remove_messages(tx: Transaction, seqs: Sequence[int]) -> None:
    """The only way in which messages go: their numbers stay given."""
    if seqs:
        highest = max(seqs)
        tx.db.execute(
            "UPDATE counter SET next = (SELECT max(?, ifnull(max(seq), 0)) + 1 FROM messages) "
            "WHERE next <= ?",
            (highest, highest),
        )
        tx.db.executemany("DELETE FROM messages WHERE seq=?", [(seq,) for seq in seqs])
