"""A bounded receiver of webhooks: what producers send over HTTP waits in memory for this program."""

from __future__ import annotations

import ipaddress
import threading
from collections import Counter
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from penstock.clock import duration_ms
from penstock.direct.channel import Channel, Overflow
from penstock.direct.message import Received
from penstock.direct.request import Refusal, RequestServer, Rules
from penstock.direct.seen import Seen
from penstock.errors import BadOption, ChannelClosed, ChannelFull, Unreachable

_CLOSE_S = 5.0
_RETRY_AFTER_S = 1


class Receiver:
    """Takes every POST on `url`, until `close`. Thread-safe.

    A message is answered with 202 once it waits in memory. When `capacity` of them wait, `overflow` decides,
    in the words that queues and channels have: "reject" (429 with Retry-After), "block" (the sender waits for
    its answer, at most `block_for`; then 429) or "drop_oldest" (202; the message that waited longest is gone,
    counted in `dropped`). A body over `body_bytes_max` is refused with 413 before it is read; a connection
    beyond `connections_max` is told to come back (503). So memory is bounded, by (capacity + connections_max)
    times body_bytes_max.

    A message with an `Idempotency-Key` that came before, among the last `remember` keys, is answered with 202
    again and not received again.

    What this promises is what memory can: a message that was answered and not yet worked on is lost with the
    process, and while nothing listens here, nothing is taken. A sender that must not lose any keeps them
    itself until they are answered, as `ps.to.webhook` does from the log.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        token: str | None = None,
        capacity: int = 1_000,
        overflow: Overflow = "reject",
        block_for: str | float = "10 seconds",
        body_bytes_max: int = 256 << 10,
        connections_max: int = 64,
        request_timeout: str | float = "30 seconds",
        remember: int = 100_000,
    ) -> None:
        if body_bytes_max < 0 or connections_max < 1 or remember < 1:
            raise BadOption(
                "a receiver needs room for a body, a connection and a key.",
                hint="raise body_bytes_max, connections_max or remember",
            )
        if not 0 <= port <= 65_535:
            raise BadOption(f"port={port}.", hint="0 to 65535; 0 takes a free one")
        if token is not None and not token.strip():
            raise BadOption("the token is empty: nobody could show it.", hint="give it some text, or None")
        if token is None and not _is_loopback(host):
            raise BadOption(
                f"a receiver on {host} would take messages from anybody who reaches it.",
                hint='give it a token="..." that senders show as "Authorization: Bearer ..."',
            )
        self._counts = Counter[str]()
        self._counting = threading.Lock()
        self._channel: Channel[Received] = Channel(capacity, overflow=overflow)
        self._seen = Seen(remember)
        self._block_s = duration_ms(block_for) / 1_000
        rules = Rules(body_bytes_max, token, duration_ms(request_timeout) / 1_000)
        self._host = host
        try:
            self._server = RequestServer((host, port), self._take, rules, connections_max=connections_max)
        except OSError as error:
            raise Unreachable(
                f"{host}:{port}",
                error.strerror or str(error),
                hint="use another port, or 0",
            ) from error
        self._server.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{self.port}/"

    @property
    def accepted(self) -> int:
        """Messages that were taken, each once."""
        return self._counts["accepted"]

    @property
    def duplicates(self) -> int:
        """Messages that came again under a key that was taken."""
        return self._counts["duplicates"]

    @property
    def rejected(self) -> int:
        """Messages that were answered with 429."""
        return self._counts["rejected"]

    @property
    def dropped(self) -> int:
        """Messages that were answered with 202 and made room for newer ones."""
        return self._channel.dropped

    def __len__(self) -> int:
        """How many wait."""
        return len(self._channel)

    def receive(self, *, timeout: str | float | None = None) -> Received | None:
        """The message that waits longest; None when none came within `timeout`, or none will come."""
        return self._channel.receive(timeout=timeout)

    def __iter__(self) -> Iterator[Received]:
        """Every message, until the receiver is closed and nothing waits."""
        return iter(self._channel)

    def close(self) -> None:
        """Listen no more. What was taken can still be received."""
        self._channel.close()
        self._server.close(timeout_s=_CLOSE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- the threads of connections ------------------------------------------------------------------

    def _take(self, message: Received) -> None:
        if message.key is None:
            self._send(message)
            return
        state = self._seen.begin(message.key)
        if state == "under way":
            raise Refusal(503, "this message is being taken already", retry_after_s=_RETRY_AFTER_S)
        if state == "taken":
            self._count("duplicates")
            return
        try:
            self._send(message)
        except BaseException:
            self._seen.refused(message.key)
            raise
        self._seen.taken(message.key)

    def _send(self, message: Received) -> None:
        try:
            self._channel.send(message, timeout=self._block_s)
        except ChannelFull as error:
            self._count("rejected")
            reason = f"{error.capacity} messages wait already"
            raise Refusal(429, reason, retry_after_s=_RETRY_AFTER_S) from error
        except ChannelClosed as error:
            raise Refusal(503, "the receiver is closing", retry_after_s=_RETRY_AFTER_S) from error
        self._count("accepted")

    def _count(self, what: str) -> None:
        with self._counting:
            self._counts[what] += 1


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
