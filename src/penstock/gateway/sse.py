"""Server-sent events: how one is written, and the answer that consists of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.errors import PenstockError, as_object
from penstock.gateway.connection import ABORT
from penstock.gateway.json import dumps

_SEND_S_MAX = 30.0
_CHUNK_BYTES = 32 << 10
_ADMIT_S = 1.0
ALIVE = b": alive\n\n"


def event(kind: str, value: object, id: str | None = None) -> bytes:
    """One event. JSON has no line breaks of its own, so it is one line of data."""
    place = b"" if id is None else b"id: %s\n" % id.encode()
    return b"%sevent: %s\ndata: %s\n\n" % (place, kind.encode(), dumps(value))


def place(id: str) -> bytes:
    """Moves the place of a client that has nothing to be told: it resumes from here."""
    return b"id: %s\n\n" % id.encode()


def failed(error: PenstockError) -> bytes:
    """The last event of a stream that cannot go on."""
    return event("error", {"error": as_object(error)})


def chunked(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same in fewer pieces, each not much longer than a bound."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= _CHUNK_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


class EventStream(Response):
    """Sends what `pieces` gives until it ends, the client leaves, or the client is `dropped` as too slow.

    A client that takes longer than half a minute for a piece is cut off, too: nothing is held for it. So is
    one that is not let in any more: `admit` is asked again and again, and raises then.
    """

    media_type = "text/event-stream"
    admit: Callable[[], object] | None = None

    def __init__(
        self, pieces: AsyncIterator[bytes], *, dropped: asyncio.Event, on_end: Callable[[], None]
    ) -> None:
        self._pieces, self._dropped, self._on_end = pieces, dropped, on_end
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tasks = [
            asyncio.create_task(self._send(send)),
            asyncio.create_task(_until_gone(receive)),
            asyncio.create_task(self._dropped.wait()),
            asyncio.create_task(self._until_refused()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0] not in done or tasks[0].exception() is not None:
                _cut_off(scope)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._on_end()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for piece in self._pieces:
            async with asyncio.timeout(_SEND_S_MAX):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _until_refused(self) -> None:
        while True:
            await asyncio.sleep(_ADMIT_S)
            try:
                if self.admit is not None:
                    self.admit()
            except PenstockError:
                return


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _cut_off(scope: Scope) -> None:
    abort: Any = scope.get(ABORT)
    if abort is not None:
        abort()
