"""Opening queues by their address: a folder on this machine, or a RabbitMQ."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.clock import Clock
from penstock.errors import BadOption, NotSupported
from penstock.log.log import home_of
from penstock.queue.embedded import EmbeddedQueues
from penstock.queue.queues import Queues

if TYPE_CHECKING:
    from penstock.queue.port import QueuePort

_AMQP = ("amqp://", "amqps://")
FOLDER = "queues"


def open_queues(home: str | Path | None = None, *, clock: Clock | None = None) -> Queues:
    """Open the queues under the folder `home` (default: $PENSTOCK_HOME or ./.penstock), or on "amqp://host".

    `clock`: for tests; a RabbitMQ has its own.

    >>> import tempfile
    >>> with open_queues(tempfile.mkdtemp()) as queues:
    ...     jobs = queues.queue("jobs")
    ...     _ = jobs.publish({"id": 7})
    ...     delivery = jobs.get()
    ...     print(delivery.json(), delivery.attempts)
    ...     delivery.ack()
    {'id': 7} 1
    """
    if is_amqp(home):
        return Queues(_rabbitmq(str(home)))
    chosen = str(home or os.environ.get("PENSTOCK_HOME") or "")
    if "://" in chosen:
        raise BadOption(
            "queues are in a folder or on a RabbitMQ, and this address names neither.",
            hint="give a folder, or amqp://user:password@host:5672/",
        )
    return Queues(EmbeddedQueues(home_of(home) / FOLDER, clock=clock))


def is_amqp(address: object) -> bool:
    return isinstance(address, str) and address.startswith(_AMQP)


def check_rabbitmq() -> None:
    """Raises NotSupported where the client is not installed."""
    try:
        import pika  # noqa: F401
    except ImportError as error:
        raise NotSupported(
            "RabbitMQ is spoken with pika, which is not installed.", hint='pip install "penstock[rabbitmq]"'
        ) from error


def _rabbitmq(url: str) -> QueuePort:
    check_rabbitmq()
    from penstock.queue.rabbitmq import RabbitQueues

    return RabbitQueues(url)
