"""The queues beside the log, opened once there are some: looking at them creates nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import UnknownQueue
from penstock.gateway.pages import words
from penstock.gateway.pages.look import QueueLook
from penstock.queue.opening import FOLDER

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.queue.delivery import DeadLetter
    from penstock.queue.queue import Queue
    from penstock.queue.queues import Queues

_QUEUES_MAX = 200


class Queueing:
    """Thread-safe."""

    def __init__(self, app: App) -> None:
        self._app = app

    def here(self) -> Queues | None:
        """None while nothing was ever queued here."""
        return self._app.queues if (self._app.home / FOLDER).is_dir() else None

    def looks(self) -> tuple[QueueLook, ...]:
        """Every queue, as far as a page lists them."""
        queues = self.here()
        if queues is None or "listing" not in queues.capabilities:
            return ()
        return tuple(self._look(queues.open_queue(name)) for name in queues.names()[:_QUEUES_MAX])

    def queue(self, name: str) -> Queue:
        """Raises UnknownQueue."""
        queues = self.here()
        if queues is None:
            raise UnknownQueue(name)
        return queues.open_queue(name)

    def _look(self, queue: Queue) -> QueueLook:
        stats = queue.stats()
        reason = ""
        if stats.dead:
            letters = queue.dead_letters(limit=1)
            reason = _said(letters[0]) if letters else ""
        return QueueLook(
            queue.name,
            stats.ready,
            stats.unacked or 0,
            stats.delayed or 0,
            stats.dead,
            stats.consumers,
            reason,
        )


def _said(letter: DeadLetter) -> str:
    why = letter.reason or {"expired": "it expired", "rejected": "it was rejected"}.get(
        letter.cause, letter.cause
    )
    return f"Tried {words.count(letter.attempts, 'time')}: {why}."
