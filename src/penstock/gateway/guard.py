"""Who may do what: tokens and roles, and what a browser may be made to send.

A request carries its token in `Authorization: Bearer`, or, from the pages, in a cookie that scripts cannot
read and other sites cannot send. Without any token made, a server on the loopback address lets everybody on
this machine in: that is for development, and the checks against foreign pages hold all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from penstock.gateway import cookie
from penstock.gateway.refusals import BadMediaType, NotKnown, NotPermitted
from penstock.gateway.tokens import Tokens

_RANK = {"public": 0, "read": 1, "write": 2, "admin": 3}
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
# What a page of another site can make a browser send without asking this server first.
_SIMPLE = frozenset({"application/x-www-form-urlencoded", "multipart/form-data", "text/plain"})
_TAKEN = ("application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the token's name, None where none is needed."""

    token: str | None
    role: str


class Guard:
    """`open_to_all`: whether requests without a token are let in while there are no tokens."""

    def __init__(self, tokens: Tokens, *, open_to_all: bool) -> None:
        self.tokens, self.open_to_all = tokens, open_to_all

    def admit(self, request: Request, needed: str) -> Caller:
        """Who asks. Raises NotKnown, NotPermitted, BadMediaType."""
        if request.method not in _SAFE:
            _check_type(request)
        if needed == "public":
            return Caller(None, "public")
        caller = self.caller(request)
        if _RANK[caller.role] < _RANK[needed]:
            raise NotPermitted(caller.role, needed)
        return caller

    def caller(self, request: Request) -> Caller:
        """Raises NotKnown."""
        given = _bearer(request)
        if given is None and self.open_to_all and not self.tokens.exist():
            return Caller(None, "admin")
        return self.known(given or "")

    def known(self, token: str) -> Caller:
        """Who has this token. Raises NotKnown for one that is not good now."""
        found = self.tokens.find(token)
        if found is None:
            raise NotKnown
        return Caller(found.name, found.role)


def _bearer(request: Request) -> str | None:
    header = request.headers.get("authorization")
    if header is None:
        return cookie.token_of(request)
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _check_type(request: Request) -> None:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given in _SIMPLE:
        raise BadMediaType(given, _TAKEN)
