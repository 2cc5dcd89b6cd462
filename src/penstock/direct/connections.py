"""A server of few connections at a time, each with a thread and a bound on how long a request takes."""

from __future__ import annotations

import io
import socket
import socketserver
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BACKLOG = 128
_POLL_S = 0.05
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
)


class TimedReader(io.RawIOBase):
    """What comes on a connection, until a deadline: a sender that drips bytes ends there too."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._deadline = time.monotonic()

    def allow(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class Connections(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Who comes when all connections are taken is told to come back (503)."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False  # `close` waits itself, and not for ever
    request_queue_size = _BACKLOG

    def __init__(self, address: tuple[str, int], handler: Any, *, connections_max: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)
        self._free = threading.Semaphore(connections_max)
        self._open: set[socket.socket] = set()
        self._changed = threading.Condition()
        self._thread = threading.Thread(
            target=self.serve_forever, args=(_POLL_S,), name="penstock-receiver", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def close(self, *, timeout_s: float) -> None:
        """No more connections; those there are may finish the request that was read."""
        self.shutdown()
        self.server_close()
        self._thread.join()
        with self._changed:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RD)
            self._changed.wait_for(lambda: not self._open, timeout_s)

    # ---- what socketserver calls ---------------------------------------------------------------------

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            with suppress(OSError):
                request.settimeout(0)
                request.send(_BUSY)
            self.shutdown_request(request)
            return
        with self._changed:
            self._open.add(request)
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread to be had
            self._let_go(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._let_go(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a sender that left is nobody's fault here
            super().handle_error(request, client_address)

    def _let_go(self, request: socket.socket) -> None:
        self._free.release()
        with self._changed:
            self._open.discard(request)
            self._changed.notify_all()
