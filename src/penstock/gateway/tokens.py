"""Bearer tokens, stored as hashes: `gateway/tokens.json` in the home, readable by its owner alone.

A token is `pst_<id>_<secret>`; the file has the id and the SHA-256 of the secret. The secret has 256 random
bits, so that a hash made slow on purpose would protect nothing more. A token that is revoked or expired is
refused from the next request on: the file is looked at again whenever it has changed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from penstock.errors import BadInput, BadOption, StorageError
from penstock.log.disk import RealDisk, storage_errors
from penstock.log.settings import check_name

Role = Literal["read", "write", "admin"]
_FORM = re.compile(r"pst_([0-9a-f]{12})_([0-9a-f]{64})")
_LOCK_S = 10.0
_LASTS_US_MAX = 100 * 366 * 86_400_000_000  # a moment that a calendar has
_NOBODY = hashlib.sha256(b"").hexdigest()


class UnknownToken(BadInput):
    def __init__(self, name: str, known: list[str]) -> None:
        self.name = name
        hint = f"there are: {', '.join(known)}" if known else "there are none"
        super().__init__(f'there is no token "{name}".', hint=hint)


@dataclass(frozen=True, slots=True)
class Token:
    """What is stored of a token."""

    id: str
    name: str
    role: Role
    created_us: int
    expires_us: int | None
    secret_sha256: str

    def is_expired(self, now_us: int) -> bool:
        return self.expires_us is not None and now_us >= self.expires_us


class Tokens:
    """The tokens of one home. Thread-safe; other processes may change them at any time."""

    def __init__(self, home: Path, *, now_us: Callable[[], int]) -> None:
        self._path = home / "gateway" / "tokens.json"
        self._now_us = now_us
        self._mutex = threading.Lock()
        self._seen: tuple[int, int, int] | None = None
        self._known: dict[str, Token] = {}

    def find(self, given: str) -> Token | None:
        """The token that was given, if it is good now."""
        form = _FORM.fullmatch(given)
        identity, secret = form.groups() if form else ("", "")
        known = self._current().get(identity)
        # Also compared where there is none, so that the time it takes tells nobody which ids there are.
        same = hmac.compare_digest(_hashed(secret), known.secret_sha256 if known else _NOBODY)
        return known if known and same and not known.is_expired(self._now_us()) else None

    def exist(self) -> bool:
        """Whether one was ever made here: that the last one is expired or revoked opens no door again."""
        return self._stamp() is not None

    def all(self) -> list[Token]:
        return sorted(self._current().values(), key=lambda token: token.created_us)

    def create(self, name: str, role: Role, *, lasts_us: int | None) -> str:
        """A new token, which is told here and never again."""
        check_name("token", name)
        if role not in get_args(Role):
            raise BadOption(f"role {role!r}.", hint=f"choose one of {', '.join(get_args(Role))}")
        if lasts_us is not None and lasts_us <= 0:
            raise BadOption("a token that has expired already.", hint='say how long it lasts: "90 days"')
        if lasts_us is not None and lasts_us > _LASTS_US_MAX:
            raise BadOption("a token that lasts for more than a century.", hint="for ever: without --expires")
        identity, secret, now_us = secrets.token_hex(6), secrets.token_hex(32), self._now_us()
        expires_us = None if lasts_us is None else now_us + lasts_us
        token = Token(identity, name, role, now_us, expires_us, _hashed(secret))
        with self._changing():
            if any(token.name == name for token in self._current().values()):
                raise BadOption(
                    f'there is a token "{name}" already.', hint="revoke it, or choose another name"
                )
            self._store({**self._current(), identity: token})
        return f"pst_{identity}_{secret}"

    def revoke(self, name: str) -> Token:
        """Refused from now on, also by a server that runs."""
        with self._changing():
            found = next((token for token in self._current().values() if token.name == name), None)
            if found is None:
                raise UnknownToken(name, [token.name for token in self.all()])
            self._store({key: token for key, token in self._current().items() if token is not found})
        return found

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One at a time: else one who adds could bring back what another revoked meanwhile."""
        with storage_errors(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            lock = RealDisk().lock(self._path.with_name("tokens.lock"), "the tokens")
            lock.acquire(_LOCK_S)
            try:
                yield
            finally:
                lock.release()
                lock.close()

    def _current(self) -> dict[str, Token]:
        with self._mutex:
            seen = self._stamp()
            if seen != self._seen:
                self._known = self._load() if seen else {}
                self._seen = seen
            return self._known

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size

    def _load(self) -> dict[str, Token]:
        try:
            return {stored["id"]: Token(**stored) for stored in json.loads(self._path.read_text())["tokens"]}
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"{self._path} cannot be read ({error}).", hint="remove it, and make the tokens anew"
            ) from error

    def _store(self, tokens: dict[str, Token]) -> None:
        fresh = self._path.with_name("tokens.new")
        content = json.dumps({"tokens": [asdict(token) for token in tokens.values()]}, indent=1)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        RealDisk().sync_folder(self._path.parent)  # that it is revoked must survive power loss


def _hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
