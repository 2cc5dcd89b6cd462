"""Request bodies, never more of one than the bound: what is longer is refused without being held."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from penstock.gateway.refusals import BadRequest, BodyTooLarge, BodyTooSlow


async def read(request: Request, *, size_bytes_max: int, silent_s_max: float) -> bytes:
    """The whole body. Raises BodyTooLarge, by the announced length before anything is read of it.

    Raises BodyTooSlow when nothing comes for so long: others need the room that is kept for it.
    """
    announced = request.headers.get("content-length", "0")
    if not announced.isascii() or not announced.isdecimal() or len(announced) > 18:
        raise BadRequest(400, f"Content-Length {announced[:80]!r} is no length.")
    if int(announced) > size_bytes_max:
        raise BodyTooLarge(size_bytes_max)
    pieces: list[bytes] = []
    held = 0
    try:
        stream = request.stream()
        while True:
            async with asyncio.timeout(silent_s_max):
                piece = await anext(stream, None)
            if piece is None:
                return b"".join(pieces)
            held += len(piece)
            if held > size_bytes_max:
                raise BodyTooLarge(size_bytes_max)
            pieces.append(piece)
    except TimeoutError:
        raise BodyTooSlow(silent_s_max) from None
    except ClientDisconnect:
        raise BadRequest(400, "the request ended before its body did.") from None


async def read_first(request: Request, *, size_bytes_max: int, silent_s_max: float) -> Request:
    """The same request with its body read, so that whoever parses it reads no more than that."""
    body = await read(request, size_bytes_max=size_bytes_max, silent_s_max=silent_s_max)
    rest = request.receive
    told = False

    async def receive() -> Message:
        nonlocal told
        if told:
            return await rest()  # which tells when the client is gone
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return Request(request.scope, receive)
