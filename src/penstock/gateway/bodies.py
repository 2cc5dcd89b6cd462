"""Request bodies, never more of one than the bound: what is longer is refused without being held."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from penstock.gateway.refusals import BadRequest, BodyTooLarge


async def read(request: Request, *, size_bytes_max: int) -> bytes:
    """The whole body. Raises BodyTooLarge, by the announced length before anything is read of it."""
    announced = request.headers.get("content-length", "0")
    if not announced.isascii() or not announced.isdecimal() or len(announced) > 18:
        raise BadRequest(400, f"Content-Length {announced[:80]!r} is no length.")
    if int(announced) > size_bytes_max:
        raise BodyTooLarge(size_bytes_max)
    pieces: list[bytes] = []
    held = 0
    try:
        async for piece in request.stream():
            held += len(piece)
            if held > size_bytes_max:
                raise BodyTooLarge(size_bytes_max)
            pieces.append(piece)
    except ClientDisconnect:
        raise BadRequest(400, "the request ended before its body did.") from None
    return b"".join(pieces)


async def read_first(request: Request, *, size_bytes_max: int) -> Request:
    """The same request with its body read, so that whoever parses it reads no more than that."""
    body = await read(request, size_bytes_max=size_bytes_max)
    rest = request.receive
    told = False

    async def receive() -> Message:
        nonlocal told
        if told:
            return await rest()  # which tells when the client is gone
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return Request(request.scope, receive)
