"""One connection to a RabbitMQ with one channel, in a thread that answers heartbeats while programs work.

A link that is lost stays lost: its owner makes a new one. What waits for an answer then gets a LinkLost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from typing import Any

import pika
from pika.channel import Channel
from pika.exceptions import AMQPError, ConnectionClosed, ProbableAuthenticationError

from penstock.errors import BadOption, NotAllowed, PenstockError, Unreachable

_ANSWER_S = 30.0
_HEARTBEAT_S = 30
_CLOSE_S = 10.0

Work = Callable[[Channel, "Future[Any]"], None]
Prepare = Callable[["Link", Channel, Callable[[], None]], None]


class LinkLost(Exception):
    """The channel or the connection is gone; `code` is what the broker said, 0 if it said nothing."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}" if code else text)
        self.code, self.text = code, text


class Server:
    """Where the broker is, without its password in what is shown."""

    def __init__(self, url: str) -> None:
        try:
            self.parameters = pika.URLParameters(url)
        except (ValueError, TypeError) as error:
            raise BadOption(
                f"this is no address of a RabbitMQ: {error}.", hint="write amqp://user:password@host:5672/"
            ) from error
        if "heartbeat=" not in url:
            self.parameters.heartbeat = _HEARTBEAT_S
        self.parameters.blocked_connection_timeout = 60
        self.label = f"RabbitMQ at {self.parameters.host}:{self.parameters.port}"

    def error(self, why: BaseException) -> PenstockError:
        """What pika or a link says, in our words."""
        if isinstance(why, ProbableAuthenticationError) or "ACCESS_REFUSED" in str(why):
            return NotAllowed(self.label, "it does not let this user in")
        said = str(why) or type(why).__name__
        return Unreachable(self.label, said.rstrip("."), hint="is it running, and is the address right?")


class Link:
    """Thread-safe. `prepare` gets the open channel in the link's thread, and is done when it calls back."""

    def __init__(self, server: Server, prepare: Prepare) -> None:
        self._server, self._prepare = server, prepare
        self._opened: Future[None] = Future()
        self._waiting: set[Future[Any]] = set()
        self._mutex = threading.Lock()
        self._lost: LinkLost | None = None
        self._channel: Channel | None = None
        self._connection: pika.SelectConnection | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-rabbitmq", daemon=True)
        self._thread.start()
        try:
            self._opened.result(_ANSWER_S)
        except BaseException:
            self.close()
            raise

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    def call(self, work: Work, *, timeout_s: float = _ANSWER_S) -> Any:
        """Run `work` in the link's thread and wait until it has filled the future. Raises LinkLost."""
        future: Future[Any] = Future()
        with self._mutex:
            self._waiting.add(future)
        try:
            self.post(lambda channel: work(channel, future))
            return future.result(timeout_s)
        except NotInTime as error:
            raise LinkLost(0, f"no answer within {timeout_s:g} s") from error
        finally:
            with self._mutex:
                self._waiting.discard(future)

    def post(self, work: Callable[[Channel], None]) -> None:
        """Run `work` in the link's thread, some time soon. Raises LinkLost if that is over."""
        connection, channel = self._connection, self._channel
        if self._lost is not None or connection is None or channel is None:
            raise self._lost or LinkLost(0, "it is not open")
        connection.ioloop.add_callback_threadsafe(lambda: self._work(work, channel))

    def later(self, delay_s: float, work: Callable[[], None]) -> None:
        """In the link's own thread only: run `work` after a while."""
        if self._connection is not None and self._lost is None:
            self._connection.ioloop.call_later(delay_s, work)

    def _work(self, work: Callable[[Channel], None], channel: Channel) -> None:
        if channel.is_open:
            try:
                work(channel)
            except AMQPError as error:
                self._lose(0, str(error) or type(error).__name__)

    # ---- in the link's thread --------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._connection = pika.SelectConnection(
                self._server.parameters,
                on_open_callback=self._on_connected,
                on_open_error_callback=lambda _, error: self._failed(error),
                on_close_callback=lambda _, error: self._failed(error),
            )
            self._connection.ioloop.start()
        except Exception as error:  # whatever ends this thread ends the link
            self._lose(0, str(error) or type(error).__name__)
        finally:
            self._lose(0, "its thread ended")
            if self._connection is not None:
                self._connection.ioloop.close()

    def _on_connected(self, connection: pika.SelectConnection) -> None:
        connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Channel) -> None:
        self._channel = channel
        channel.add_on_close_callback(lambda _, error: self._failed(error))
        self._prepare(self, channel, self._ready)

    def _ready(self) -> None:
        if not self._opened.done():
            self._opened.set_result(None)

    def _failed(self, error: BaseException) -> None:
        if not self._opened.done() and not isinstance(error, ConnectionClosed):
            self._opened.set_exception(self._server.error(error))
        self._lose(getattr(error, "reply_code", 0), getattr(error, "reply_text", "") or str(error))
        if self._connection is not None and not self._connection.is_closed:
            if not self._connection.is_closing:
                self._connection.close()
        elif self._connection is not None:
            self._connection.ioloop.stop()

    def _lose(self, code: int, text: str) -> None:
        with self._mutex:
            self._lost = self._lost or LinkLost(code, text)
            waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_exception(self._lost)
        if not self._opened.done():
            self._opened.set_exception(self._server.error(self._lost))

    # ---- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """What was posted before is sent first."""
        connection = self._connection
        if connection is not None and self._thread.is_alive():
            connection.ioloop.add_callback_threadsafe(lambda: self._close(connection))
            self._thread.join(_CLOSE_S)
        self._lose(0, "it was closed")

    def drop(self) -> None:
        """As the death of the process would: the broker sees the connection end, and nothing else."""
        connection = self._connection
        if connection is not None and self._thread.is_alive():
            connection.ioloop.add_callback_threadsafe(lambda: self._drop(connection))
            self._thread.join(_CLOSE_S)
        self._lose(0, "it was dropped")

    def _drop(self, connection: pika.SelectConnection) -> None:
        connection._transport.abort()

    def _close(self, connection: pika.SelectConnection) -> None:
        if connection.is_open:
            connection.close()
        elif connection.is_closed:
            connection.ioloop.stop()
