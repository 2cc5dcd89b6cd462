"""Which queues, exchanges and bindings the file has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from penstock.errors import QueueDiffers, UnknownExchange, UnknownQueue
from penstock.queue.file import Transaction
from penstock.queue.numbers import remove_messages, take_number
from penstock.queue.pattern import check_pattern, matches
from penstock.queue.settings import Binding, ExchangeKind, QueueSettings

_COLUMNS = "SELECT id, settings, length FROM queues"


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue as a transaction finds it."""

    id: int
    settings: QueueSettings
    length: int


@lru_cache(maxsize=1_024)
def _settings(text: str) -> QueueSettings:
    return QueueSettings.from_json(text)


def find(tx: Transaction, name: str) -> QueueRow:
    """Raises UnknownQueue."""
    row = tx.db.execute(f"{_COLUMNS} WHERE name=?", (name,)).fetchone()
    if row is None:
        raise UnknownQueue(name, known=names(tx))
    return QueueRow(row[0], _settings(row[1]), row[2])


def by_id(tx: Transaction, queue: int) -> QueueRow | None:
    row = tx.db.execute(f"{_COLUMNS} WHERE id=?", (queue,)).fetchone()
    return row and QueueRow(row[0], _settings(row[1]), row[2])


def names(tx: Transaction) -> list[str]:
    """Without the reply queues, which are nobody else's business."""
    rows = tx.db.execute("SELECT name FROM queues WHERE holder IS NULL ORDER BY name")
    return [row[0] for row in rows]


def declare(tx: Transaction, settings: QueueSettings, *, holder: int | None = None) -> None:
    row = tx.db.execute("SELECT settings FROM queues WHERE name=?", (settings.name,)).fetchone()
    if row is None:
        id = take_number(tx)  # never used again: a consumer of a deleted queue finds nothing of a new one
        tx.db.execute(
            "INSERT INTO queues VALUES (?, ?, ?, 0, ?)", (id, settings.name, settings.to_json(), holder)
        )
    elif differing := settings.differing(_settings(row[0])):
        raise QueueDiffers("queue", settings.name, differing, alterable=True)


def alter(tx: Transaction, settings: QueueSettings) -> None:
    queue = find(tx, settings.name)
    (length,) = tx.db.execute("SELECT count(*) FROM ready WHERE queue=?", (queue.id,)).fetchone()
    tx.db.execute("UPDATE queues SET settings=?, length=? WHERE id=?", (settings.to_json(), length, queue.id))
    tx.has_room.add(queue.id)


def drop_from(tx: Transaction, table: str, queue: int) -> int:
    """Remove the messages of a queue that are in that table; how many these were."""
    seqs = [row[0] for row in tx.db.execute(f"SELECT seq FROM {table} WHERE queue=?", (queue,))]
    remove_messages(tx, seqs)
    tx.db.execute(f"DELETE FROM history WHERE seq IN (SELECT seq FROM {table} WHERE queue=?)", (queue,))
    tx.db.execute(f"DELETE FROM {table} WHERE queue=?", (queue,))
    return len(seqs)


def delete(tx: Transaction, queue: int) -> None:
    for table in ("ready", "delayed", "leased", "dead"):
        drop_from(tx, table, queue)
    for table in ("bindings", "consumers"):
        tx.db.execute(f"DELETE FROM {table} WHERE queue=?", (queue,))
    tx.db.execute("DELETE FROM queues WHERE id=?", (queue,))
    tx.has_work.add(queue)
    tx.has_room.add(queue)


# ---- exchanges -----------------------------------------------------------------------------------


def kind_of(tx: Transaction, exchange: str) -> ExchangeKind:
    """Raises UnknownExchange."""
    row = tx.db.execute("SELECT kind FROM exchanges WHERE name=?", (exchange,)).fetchone()
    if row is None:
        raise UnknownExchange(exchange, known=exchanges(tx))
    kind: ExchangeKind = row[0]
    return kind


def exchanges(tx: Transaction) -> list[str]:
    return [row[0] for row in tx.db.execute("SELECT name FROM exchanges ORDER BY name")]


def declare_exchange(tx: Transaction, name: str, kind: ExchangeKind) -> None:
    tx.db.execute("INSERT OR IGNORE INTO exchanges VALUES (?, ?)", (name, kind))
    if kind_of(tx, name) != kind:
        raise QueueDiffers("exchange", name, ["kind"])


def delete_exchange(tx: Transaction, name: str) -> None:
    kind_of(tx, name)
    tx.db.execute("DELETE FROM bindings WHERE exchange=?", (name,))
    tx.db.execute("DELETE FROM exchanges WHERE name=?", (name,))


def bind(tx: Transaction, binding: Binding) -> None:
    check_pattern(kind_of(tx, binding.exchange), binding.pattern)
    queue = find(tx, binding.queue)
    tx.db.execute(
        "INSERT OR IGNORE INTO bindings VALUES (?, ?, ?)", (binding.exchange, queue.id, binding.pattern)
    )


def unbind(tx: Transaction, binding: Binding) -> None:
    kind_of(tx, binding.exchange)
    queue = find(tx, binding.queue)
    tx.db.execute(
        "DELETE FROM bindings WHERE exchange=? AND queue=? AND pattern=?",
        (binding.exchange, queue.id, binding.pattern),
    )


def bindings(tx: Transaction) -> list[Binding]:
    rows = tx.db.execute(
        "SELECT b.exchange, q.name, b.pattern FROM bindings b "
        "JOIN queues q ON q.id = b.queue ORDER BY 1, 2, 3"
    )
    return [Binding(*row) for row in rows]


class Routes:
    """Where an exchange sends a key, looked up once for a batch."""

    def __init__(self, tx: Transaction, exchange: str) -> None:
        self._kind = kind_of(tx, exchange)
        rows = tx.db.execute("SELECT queue, pattern FROM bindings WHERE exchange=?", (exchange,)).fetchall()
        self._bindings: list[tuple[int, str]] = rows

    def queues(self, key: str) -> list[int]:
        return sorted({queue for queue, pattern in self._bindings if matches(self._kind, pattern, key)})
