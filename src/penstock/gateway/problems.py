"""Errors as HTTP answers: the object that the command line prints with --json, and a status."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from penstock import errors
from penstock.errors import PenstockError, as_object
from penstock.gateway.json import Json
from penstock.gateway.refusals import (
    BadParameters,
    BadRequest,
    Busy,
    ForeignRequest,
    NotKnown,
    NotPermitted,
)

_STATUSES: tuple[tuple[type[PenstockError], int], ...] = (
    (NotKnown, 401),
    (NotPermitted, 403),
    (ForeignRequest, 403),
    (Busy, 429),
    (errors.UnknownTopic, 404),
    (errors.UnknownView, 404),
    (errors.UnknownGroup, 404),
    (errors.UnknownQueue, 404),
    (errors.MessageTooLarge, 413),
    (errors.QueueFull, 429),
    (errors.TopicExists, 409),
    (errors.PositionLost, 410),
    (errors.RecordsLost, 410),
    (errors.RecordTooLarge, 413),
    (errors.BadInput, 400),
    (errors.OffsetOutOfRange, 416),
    (errors.ChangesLost, 410),
    (errors.BufferFull, 429),
    (errors.LockTimeout, 503),  # perhaps on the way from the write to the answer
    (errors.ViewBehind, 504),
    (errors.Contended, 409),
    (errors.Fenced, 409),
    (errors.DiskFull, 507),
    (errors.StorageError, 503),
    (errors.NotAllowed, 502),
)
_RETRY_S = {429: 1.0, 503: 5.0}


class Told(BaseModel):
    """What went wrong, and what to do. Besides these three it has the facts of that error."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"additionalProperties": True})

    type: str = Field(description="The kind of error, as in the Python API.", examples=["UnknownTopic"])
    message: str = Field(description="What happened.", examples=['there is no topic "oders".'])
    hint: str = Field(description="What to do about it.", examples=['did you mean "orders"?'])


class Problem(BaseModel):
    """The answer to every request that fails."""

    error: Told


def status_of(error: PenstockError) -> int:
    if isinstance(error, BadRequest):
        return error.status
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def answer(error: PenstockError) -> Response:
    """The error as a response."""
    status = status_of(error)
    return Json({"error": as_object(error)}, status_code=status, headers=_headers(error, status))


def _headers(error: PenstockError, status: int) -> dict[str, str]:
    if isinstance(error, NotKnown):
        return {"WWW-Authenticate": 'Bearer realm="penstock"'}
    if status in (408, 413):
        return {"Connection": "close"}  # the rest of the body is not read
    retry_s = getattr(error, "retry_after_s", None) or _RETRY_S.get(status)
    return {"Retry-After": str(max(1, math.ceil(retry_s)))} if retry_s else {}


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For the OpenAPI document: these statuses come with a problem."""
    return {status: {"model": Problem, "description": MEANINGS[status]} for status in statuses}


MEANINGS = {
    400: "What was asked cannot be done as asked.",
    401: "No token that is valid.",
    403: "The token's role does not reach so far, or the request comes from a foreign page.",
    404: "There is no such thing.",
    408: "The body did not come; nothing was done.",
    409: "Somebody else has it now, or it exists already.",
    410: "What was asked for is gone; begin anew.",
    413: "The body, or a record in it, is too large; nothing was stored.",
    415: "A body of this type is not taken here.",
    416: "The topic does not hold that offset.",
    422: "Parameters or a body that do not fit.",
    429: "Too much at once; nothing was done. `Retry-After` says when to come back.",
    431: "The address and the headers are too long together.",
    500: "A fault of the server; its log has the details.",
    502: "A server behind this one refuses.",
    503: "The disk, a lock or a server behind this one does not answer; an append may be stored or not.",
    504: "It did not come within the time given.",
    507: "The disk is full.",
}


def install(app: FastAPI, *, as_page: Callable[[Request, PenstockError], Response]) -> None:
    """Every error of an endpoint in this form; a path that is not there, in a browser, as a page."""

    async def ours(_: Request, error: Exception) -> Response:
        assert isinstance(error, PenstockError), error
        return answer(error)

    async def unfit(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError), error
        return answer(_of_validation(error))

    async def of_starlette(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException), error
        told = BadRequest(error.status_code, MEANINGS.get(error.status_code, error.detail))
        found = as_page(request, told) if _is_for_reading(request) else answer(told)
        found.headers.update(error.headers or {})
        return found

    async def unforeseen(_: Request, __: Exception) -> Response:
        # The traceback goes to the server's log; who asks learns nothing about its insides.
        return answer(BadRequest(500, MEANINGS[500], hint="tell who runs it"))

    app.add_exception_handler(PenstockError, ours)
    app.add_exception_handler(RequestValidationError, unfit)
    app.add_exception_handler(HTTPException, of_starlette)
    app.add_exception_handler(Exception, unforeseen)


def _is_for_reading(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/api/")


def _of_validation(error: RequestValidationError) -> PenstockError:
    problems = [
        f"{'.'.join(str(part) for part in found['loc'])}: {found['msg']}" for found in error.errors()[:20]
    ]
    return BadParameters("the request does not fit.", problems=problems, hint="; ".join(problems)[:1_000])
