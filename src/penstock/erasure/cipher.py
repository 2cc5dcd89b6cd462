"""One personal value as text that only its subject's key opens.

personal:r1:<key id>:<place>:<field>:<sealed>;      equal values look different
personal:d1:<key id>:<place>:<field>:<sealed>;      comparable: equal values of one subject look the same

The key's id and what was sealed are in URL-safe base64, place (a topic, or an aggregate) and field as in
URLs. They say what the value is, and are authenticated together with it: a value cannot be moved to another
field, place or subject, and one that is found in a view or a file tells where it is from.

AES-SIV (RFC 5297) with a 512-bit key: it needs no nonce to be safe, and a nonce that came twice would only
show that two values are equal. `r1` binds 16 random bytes to each value, `d1` none.
"""

from __future__ import annotations

import os
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from urllib.parse import quote, unquote

from penstock.errors import NotSupported

KEY_BYTES = 64
WHOLE = "*"  # the field of something that is sealed whole, as a snapshot is
ID_BYTES = 16
_NONCE_BYTES = 16
_TAG_BYTES = 16
_RANDOM, _COMPARABLE = "r1", "d1"

TOKEN = re.compile(rb"personal:([rd]1):([\w-]{22}):([\w.~%-]+):([\w.~%-]+):([\w-]{22,});")


class Key:
    """A subject's key, under an id that says nothing about them."""

    __slots__ = ("_siv", "id", "secret")

    def __init__(self, id: bytes, secret: bytes) -> None:
        check_cryptography()
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV

        self.id, self.secret = id, secret
        self._siv = AESSIV(secret)

    def __repr__(self) -> str:
        return f"<Key {_text(self.id)}>"

    def seal(self, value: bytes, place: str, field: str, *, comparable: bool = False) -> str:
        """`value` as text that `opened` gives back with this key."""
        form = _COMPARABLE if comparable else _RANDOM
        nonce = b"" if comparable else os.urandom(_NONCE_BYTES)
        sealed = self._siv.encrypt(value, [*self._bound(form, place, field), *([nonce] if nonce else [])])
        where = f"{quote(place, safe='')}:{quote(field, safe='')}"
        return f"personal:{form}:{_text(self.id)}:{where}:{_text(nonce + sealed)};"

    def open(self, token: Token) -> bytes:
        """What was sealed. Raises ValueError where it was not sealed like that, or was changed since."""
        from cryptography.exceptions import InvalidTag

        cut = 0 if token.form == _COMPARABLE else _NONCE_BYTES
        nonce, sealed = token.sealed[:cut], token.sealed[cut:]
        bound = self._bound(token.form, token.place, token.field)
        try:
            return self._siv.decrypt(sealed, [*bound, *([nonce] if nonce else [])])
        except InvalidTag as error:
            raise ValueError("it was changed, or belongs elsewhere") from error

    def opens(self, token: Token) -> bool:
        """Whether it was sealed with this key, and is as it was."""
        try:
            self.open(token)
        except ValueError:
            return False
        return True

    def _bound(self, form: str, place: str, field: str) -> list[bytes]:
        return [form.encode(), self.id, place.encode(), field.encode()]


@dataclass(frozen=True, slots=True)
class Token:
    """A sealed value, taken apart."""

    form: str
    key: bytes  # the key's id
    sealed: bytes
    place: str
    field: str

    @property
    def is_comparable(self) -> bool:
        return self.form == _COMPARABLE

    @classmethod
    def of(cls, text: str | bytes) -> Token | None:
        """None for what is no sealed value."""
        found = TOKEN.fullmatch(text.encode() if isinstance(text, str) else text)
        return None if found is None else cls.matched(found)

    @classmethod
    def matched(cls, found: re.Match[bytes]) -> Token | None:
        """What `TOKEN` found inside something longer."""
        form, key, place, field, sealed = found.groups()
        try:
            id, body = _bytes(key), _bytes(sealed)
        except ValueError:
            return None
        if len(id) != ID_BYTES or len(body) < _TAG_BYTES + (0 if form == b"d1" else _NONCE_BYTES):
            return None
        return cls(form.decode(), id, body, unquote(place.decode()), unquote(field.decode()))


def sealed_length(value: str, place: str, field: str) -> int:
    """How many characters a sealed text has."""
    sealed = -(-(len(value.encode()) + _NONCE_BYTES + _TAG_BYTES) * 4 // 3)
    return len(f"personal:{_RANDOM}::{quote(place, safe='')}:{quote(field, safe='')}:;") + 22 + sealed


def new_key() -> tuple[bytes, bytes]:
    """An id and a secret that nobody has had before."""
    return os.urandom(ID_BYTES), os.urandom(KEY_BYTES)


def check_cryptography() -> None:
    """Raises NotSupported where it is not installed."""
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise NotSupported(
            f"personal fields are encrypted with cryptography, which is not installed ({error}).",
            hint='install it with: pip install "penstock[erasure]"',
        ) from error


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: bytes) -> bytes:
    return urlsafe_b64decode(text + b"=" * (-len(text) % 4))
