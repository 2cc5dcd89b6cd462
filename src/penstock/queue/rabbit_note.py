"""How a queue was declared, kept beside it on a RabbitMQ: the broker tells nobody.

One message in `<name>.settings`. Programs that only open a queue read it, and so know when a message has had
its last attempt, what is too large, and whether a full queue makes publishers wait.
"""

from __future__ import annotations

import contextlib
import time

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from penstock.queue.rabbit_topology import Topology
from penstock.queue.settings import QueueSettings

# While one program reads the message the others do not see it.
_PATIENCE_S, _PAUSE_S = 2.0, 0.02


def note_name(queue: str) -> str:
    return f"{queue}.settings"


def write(topology: Topology, settings: QueueSettings) -> None:
    """In place of the one that is there."""
    with topology.channel() as channel:
        name = note_name(settings.name)
        # A classic queue: quorum queues count how often a message was read, and some give it up.
        channel.queue_declare(name, durable=True, arguments={"x-max-length": 1})
        channel.confirm_delivery()
        channel.basic_publish("", name, settings.to_json().encode(), pika.BasicProperties(delivery_mode=2))


def read(topology: Topology, queue: str) -> QueueSettings | None:
    """None for a queue that was declared by others."""
    deadline = time.monotonic() + _PATIENCE_S
    with topology.channel() as channel, contextlib.suppress(ChannelClosedByBroker):  # it has no note
        while (found := _read_once(channel, queue)) is None and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
        return found
    return None


def _read_once(channel: BlockingChannel, queue: str) -> QueueSettings | None:
    method, _, body = channel.basic_get(note_name(queue))
    if method is None or body is None:
        return None
    channel.basic_nack(method.delivery_tag, requeue=True)
    with contextlib.suppress(ValueError, TypeError):  # of a newer program: as if there were none
        return QueueSettings.from_json(body.decode())
    return None


def remove(topology: Topology, queue: str) -> None:
    with topology.channel() as channel:
        channel.queue_delete(note_name(queue))
