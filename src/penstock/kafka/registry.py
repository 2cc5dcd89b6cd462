"""A schema registry with Confluent's REST interface: what `schema.registry.*` in an address says.

On the standard library: five requests do not need the fifteen packages that come with Confluent's own client.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from penstock.errors import BadOption, NotAllowed, PenstockError, SchemaRefused, StorageError, Unreachable

PREFIX = "schema.registry."
_URL, _USER = "url", "basic.auth.user.info"
_CA, _CERTIFICATE, _KEY = "ssl.ca.location", "ssl.certificate.location", "ssl.key.location"
_OPTIONS = (_URL, _USER, _CA, _CERTIFICATE, _KEY)
_TYPE = "application/vnd.schemaregistry.v1+json"
_ANSWER_S = 10.0
_ROUNDS, _PAUSE_S = 2, 0.2
_GONE = {40401, 40402, 40403}  # no such subject, version, schema; another 404 comes of a wrong address
_NOT_ALLOWED = {401, 403}
_REFUSED = {409, 422}
_PASSING = {408, 429, 500, 502, 503, 504}


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a schema finds a type that it names and does not define."""

    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Registered:
    text: str
    kind: str = "AVRO"
    references: tuple[Reference, ...] = ()


class Registry:
    """Thread-safe. Raises Unreachable, NotAllowed or SchemaRefused, and never shows a password."""

    def __init__(self, options: Mapping[str, str]) -> None:
        _check(options)
        given = [urlsplit(url.strip()) for url in options[_URL].split(",")]
        self._urls = [f"{u.scheme}://{u.netloc.rpartition('@')[2]}{u.path.rstrip('/')}" for u in given]
        users = [unquote(u.netloc.rpartition("@")[0]) for u in given]
        self._user = options.get(_USER) or next(filter(None, users), "")
        self._tls = _tls(options) if any(url.startswith("https") for url in self._urls) else None

    def __str__(self) -> str:
        return f"the schema registry {', '.join(self._urls)}"

    def schema(self, number: int) -> Registered | None:
        return _registered(self._ask("GET", f"/schemas/ids/{number}"))

    def version(self, subject: str, version: int | str = "latest") -> Registered | None:
        return _registered(self._ask("GET", f"/subjects/{_quoted(subject)}/versions/{version}"))

    def number(self, subject: str, schema: str) -> int | None:
        """Of a schema, if it is registered under this subject."""
        found = self._ask("POST", f"/subjects/{_quoted(subject)}", {"schema": schema})
        return None if found is None else int(found["id"])

    def register(self, subject: str, schema: str) -> int:
        """Its number; the one it has, where it is registered already."""
        path = f"/subjects/{_quoted(subject)}/versions"
        found: Any = self._ask("POST", path, {"schema": schema}, subject=subject)
        return int(found["id"])

    def delete(self, subject: str) -> None:
        """Softly: its numbers stay, for records that name them."""
        self._ask("DELETE", f"/subjects/{_quoted(subject)}")

    # ---- one request ----------------------------------------------------------------------------------

    def _ask(
        self, method: str, path: str, body: Mapping[str, str] | None = None, *, subject: str = ""
    ) -> Any | None:
        """What it answers; None where there is no such thing. Each server is asked again before giving up."""
        reason = ""
        for turn in range(_ROUNDS):
            time.sleep(_PAUSE_S if turn else 0)
            for url in self._urls:
                try:
                    return self._answer(method, f"{url}{path}", body)
                except urllib.error.HTTPError as error:
                    number, reason = _said(error)
                    if number in _GONE:
                        return None
                    if error.code not in _PASSING:
                        raise self._refusal(error.code, reason, subject) from None
                except (OSError, http.client.HTTPException, ValueError) as error:
                    reason = str(getattr(error, "reason", error)) or type(error).__name__
        raise Unreachable(str(self), reason, hint=f"is it running? check {PREFIX}{_URL}")

    def _answer(self, method: str, url: str, body: Mapping[str, str] | None) -> Any:
        request = urllib.request.Request(url, method=method, headers={"Accept": _TYPE})
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", _TYPE)
        if self._user:  # and not for another server that it may be sent on to
            basic = base64.b64encode(self._user.encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {basic}")
        with urllib.request.urlopen(request, timeout=_ANSWER_S, context=self._tls) as answer:
            return json.loads(answer.read())

    def _refusal(self, code: int, reason: str, subject: str) -> PenstockError:
        if code in _NOT_ALLOWED:
            return NotAllowed(str(self), reason)
        if code in _REFUSED and subject:
            return SchemaRefused(str(self), subject, reason)
        return StorageError(f"{self} refuses: {reason}.", hint=f"check {PREFIX}{_URL}")


def _check(options: Mapping[str, str]) -> None:
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        known = ", ".join(f"{PREFIX}{name}" for name in _OPTIONS)
        raise BadOption(f'there is no option "{PREFIX}{unknown[0]}".', hint=f"there are: {known}")
    if not all(_is_address(url.strip()) for url in options.get(_URL, "").split(",")):
        raise BadOption(
            f"{PREFIX}{_URL} is no address of a schema registry.",
            hint=f"write it as http://host:port, and a user and a password as {PREFIX}{_USER}",
        )


def _is_address(url: str) -> bool:
    """Not so where a sign in a password ends the host: a part of it would be shown as host or path."""
    parts = urlsplit(url)
    try:
        whole = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
    return whole and parts.scheme in ("http", "https") and "@" not in parts.path + parts.query


def _tls(options: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get(_CA))
        if _CERTIFICATE in options:
            context.load_cert_chain(options[_CERTIFICATE], options.get(_KEY))
    except OSError as error:
        raise BadOption(f"{PREFIX}ssl: {error}.", hint="name files in PEM format") from error
    return context


def _said(error: urllib.error.HTTPError) -> tuple[int, str]:
    """The registry's own number and words, or HTTP's."""
    try:
        said = json.loads(error.read())
        return int(said["error_code"]), str(said["message"]).rstrip(".")
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return error.code, f"{error.code} {error.reason}"


def _registered(found: Any | None) -> Registered | None:
    if found is None:
        return None
    references = tuple(Reference(r["subject"], r["version"]) for r in found.get("references") or ())
    return Registered(found["schema"], found.get("schemaType") or "AVRO", references)


def _quoted(subject: str) -> str:
    return quote(subject, safe="")
