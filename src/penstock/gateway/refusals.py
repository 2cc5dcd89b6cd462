"""What only a server refuses: who asks, from where, and how much of it.

PenstockError
├── NotKnown        401  no token, or one that is wrong, revoked or expired
├── NotPermitted    403  a token whose role does not reach so far
├── ForeignRequest  403  from another site's page, or to a name that is not this server's
├── BadRequest      4xx  not a request that this server has
│   ├── BadParameters  422
│   ├── BodyTooSlow    408
│   ├── KeyReused      409
│   ├── BodyTooLarge   413
│   └── BadMediaType   415
└── Contended
    └── Busy        429  too much at once; nothing was done
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.errors import BadInput, Contended, PenstockError


class NotKnown(PenstockError):
    """Who asks has not shown a token that is good now. Says no more: a guess must not learn which it was."""

    def __init__(self) -> None:
        super().__init__(
            "this needs a token, and there was none that is valid.",
            hint='send "Authorization: Bearer TOKEN"; make one with: penstock token create --role read',
        )


class NotPermitted(PenstockError):
    def __init__(self, role: str, needed: str) -> None:
        self.role, self.needed = role, needed
        super().__init__(
            f'this needs the role "{needed}", and the token has "{role}".',
            hint=f"make another one with: penstock token create --role {needed}",
        )


class ForeignRequest(PenstockError):
    """A browser sent it for a page of somebody else, or under a name that somebody else gave this server."""


class BadRequest(BadInput):
    """Not a request that this server has. `status` is the HTTP status."""

    def __init__(self, status: int, message: str, *, hint: str = "") -> None:
        self.status = status
        super().__init__(message, hint=hint)


class BadParameters(BadRequest):
    """Parameters or a body that do not fit what the endpoint takes."""

    def __init__(self, message: str, *, problems: Iterable[str] = (), hint: str = "") -> None:
        self.problems = tuple(problems)
        super().__init__(422, message, hint=hint or "see the endpoint in /api/v1/openapi.json")


class BodyTooLarge(BadRequest):
    def __init__(self, size_bytes_max: int) -> None:
        self.size_bytes_max = size_bytes_max
        super().__init__(
            413,
            f"the body has more than {size_bytes_max:,} bytes; nothing was stored.",
            hint="send it in several requests, or raise --body-max",
        )


class BodyTooSlow(BadRequest):
    def __init__(self, silent_s: float) -> None:
        self.silent_s = silent_s
        super().__init__(408, f"nothing came of the body for {silent_s:g} s.", hint="send it again")


class KeyReused(BadRequest):
    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(
            409, f"the idempotency key {key!r} was used for another body.", hint="a new key for new records"
        )


class BadMediaType(BadRequest):
    def __init__(self, given: str, taken: Iterable[str]) -> None:
        self.given, self.taken = given, tuple(taken)
        super().__init__(
            415, f'a body of type "{given}" is not taken here.', hint=f"send {' or '.join(self.taken)}"
        )


class Busy(Contended):
    """More than the server takes at once. Nothing was done."""

    def __init__(self, reason: str, *, retry_after_s: float = 1.0) -> None:
        self.reason, self.retry_after_s = reason, retry_after_s
        super().__init__(f"{reason}.", hint=f"try again in {retry_after_s:g} s")
