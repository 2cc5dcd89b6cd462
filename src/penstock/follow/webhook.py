"""Records to a web server: a POST for each, or for several, as JSON.

The header `Idempotency-Key` is the same at each try of a delivery, so that a receiver can tell.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import SplitResult, unquote, urlsplit

import xxhash

from penstock.errors import Unreachable
from penstock.follow.deliveries import Message, Refused
from penstock.follow.table import TableSpec

_ANSWER_BYTES_MAX = 64 << 10
_WAIT_S_MAX = 3_600.0
_TRY_AGAIN = {408, 425, 429}


class Webhook:
    """One connection, opened when it is needed and again when it broke."""

    def __init__(
        self, url: str, *, label: str, headers: Mapping[str, str], batch: int, timeout_s: float
    ) -> None:
        place = urlsplit(url)
        self.label, self.batch = label, batch
        self.identity = f"webhook-{xxhash.xxh3_64_hexdigest(_without_user(place).encode())}"
        self._place, self._timeout_s = place, timeout_s
        self._headers = {**_authorization(place), **headers}
        self._connection: http.client.HTTPConnection | None = None

    def check(self, spec: TableSpec) -> None:
        """Anything can be JSON."""

    def send(self, key: str, messages: Sequence[Message]) -> None:
        values = [message.to_json() for message in messages]
        body = json.dumps(values if self.batch > 1 else values[0], ensure_ascii=False).encode()
        headers = {"Content-Type": "application/json", **self._headers, "Idempotency-Key": key}
        was_open = self._connection is not None
        try:
            try:
                status, reason, after = self._post(body, headers)
            except (http.client.HTTPException, OSError):
                self.close()
                if not was_open:
                    raise
                # A connection that was not used for a while may have been closed at the other end.
                status, reason, after = self._post(body, headers)
        except (http.client.HTTPException, OSError) as error:
            self.close()
            said = str(error) or type(error).__name__
            raise Unreachable(self.label, said, hint="it is tried again; check that it runs") from error
        if 200 <= status < 300:
            return
        if status in _TRY_AGAIN or status >= 500:
            raise Unreachable(
                self.label, f"it answers {status} {reason}", hint="it is tried again", retry_after_s=after
            )
        raise Refused(f"it answers {status} {reason}")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _post(self, body: bytes, headers: Mapping[str, str]) -> tuple[int, str, float | None]:
        if self._connection is None:
            self._connection = self._made()
        if self._connection.sock is None:
            self._connection.connect()
        query = f"?{self._place.query}" if self._place.query else ""
        with suppress(BrokenPipeError, ConnectionResetError):  # it may have answered before it had all
            self._connection.request("POST", (self._place.path or "/") + query, body, dict(headers))
        answer = self._connection.getresponse()
        self._read(answer)
        if not answer.isclosed():  # too long an answer to wait for
            self.close()
        return answer.status, answer.reason, _wait_s(answer.headers["Retry-After"])

    def _read(self, answer: http.client.HTTPResponse) -> None:
        """To the end, so that the connection can be used again. The status has said everything already."""
        until = time.monotonic() + self._timeout_s
        with suppress(http.client.HTTPException, OSError):
            for _ in range(_ANSWER_BYTES_MAX):
                if not answer.read(1) or time.monotonic() > until:
                    return

    def _made(self) -> http.client.HTTPConnection:
        host, port = self._place.hostname or "", self._place.port
        if self._place.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=context)
        return http.client.HTTPConnection(host, port, timeout=self._timeout_s)


def _without_user(place: SplitResult) -> str:
    return place._replace(netloc=place.netloc.rpartition("@")[2]).geturl()


def _authorization(place: SplitResult) -> dict[str, str]:
    if place.username is None:
        return {}
    pair = f"{unquote(place.username)}:{unquote(place.password or '')}"
    return {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}


def _wait_s(text: str | None) -> float | None:
    """Retry-After: so many seconds, or until a date."""
    if text is None:
        return None
    try:
        if text.strip().isdecimal():
            return min(float(text), _WAIT_S_MAX)
        until = parsedate_to_datetime(text)
    except ValueError:
        return None
    aware = until if until.tzinfo else until.replace(tzinfo=UTC)
    return min(max(0.0, (aware - datetime.now(UTC)).total_seconds()), _WAIT_S_MAX)
