"""The token of a browser: in a cookie that scripts cannot read and other sites cannot send."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

_NAME = "penstock_token"


def token_of(request: Request) -> str | None:
    return request.cookies.get(_NAME)


def keep(token: str, request: Request, answer: Response) -> None:
    """From this answer on, the browser that sent the request sends the token."""
    secure = request.url.scheme == "https"
    answer.set_cookie(_NAME, token, httponly=True, secure=secure, samesite="strict", path="/")


def drop(answer: Response) -> None:
    answer.delete_cookie(_NAME, path="/", httponly=True, samesite="strict")
