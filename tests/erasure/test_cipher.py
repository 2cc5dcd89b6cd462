"""One personal value: sealed, opened, and what no key opens."""

from __future__ import annotations

import builtins
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.erasure.cipher import TOKEN, Key, Token, new_key
from penstock.errors import NotSupported

KEY = Key(*new_key())


def token_of(text: str) -> Token:
    found = Token.of(text)
    assert found is not None
    return found


@given(st.binary(max_size=300), st.text(min_size=1, max_size=20), st.booleans())
def test_a_sealed_value_opens_again_and_survives_json(value: bytes, field: str, comparable: bool) -> None:
    sealed = KEY.seal(value, "orders", field, comparable=comparable)
    token = token_of(json.loads(json.dumps(sealed)))
    assert (token.place, token.field, token.key) == ("orders", field, KEY.id)
    assert KEY.open(token) == value


def test_equal_values_look_different_unless_they_are_to_be_comparable() -> None:
    assert KEY.seal(b"ann", "orders", "name") != KEY.seal(b"ann", "orders", "name")
    one, other = (KEY.seal(b"ann", "orders", "name", comparable=True) for _ in range(2))
    assert one == other


@pytest.mark.parametrize(
    "moved", [{"place": "invoices"}, {"field": "email"}, {"form": "d1"}, {"key": bytes(16)}]
)
def test_a_sealed_value_cannot_be_moved(moved: dict[str, Any]) -> None:
    token = replace(token_of(KEY.seal(b"ann", "orders", "name")), **moved)
    reader = KEY if token.key == KEY.id else Key(token.key, KEY.secret)
    with pytest.raises(ValueError, match="belongs elsewhere"):
        reader.open(token)


def test_every_changed_byte_of_a_sealed_value_is_noticed() -> None:
    token = token_of(KEY.seal(b"ann", "orders", "name"))
    for at in range(len(token.sealed)):
        changed = bytearray(token.sealed)
        changed[at] ^= 1
        with pytest.raises(ValueError, match="changed"):
            KEY.open(replace(token, sealed=bytes(changed)))


def test_sealed_values_are_found_among_other_bytes_even_without_anything_between_them() -> None:
    values = [KEY.seal(text, "orders", "e mail:é") for text in (b"ann", b"", b"bob")]
    found = [
        Token.matched(each) for each in TOKEN.finditer(b"\x00x" + "".join(values).encode() + b"personal:r1")
    ]
    assert [KEY.open(token) for token in found if token] == [b"ann", b"", b"bob"]


@pytest.mark.parametrize(
    "text",
    ["", "ann", "personal:r1:x:y:z;", pytest.param(KEY.seal(b"a", "t", "f")[:-1], id="cut"), "personal:é"],
)
def test_other_text_is_no_sealed_value(text: str) -> None:
    assert Token.of(text) is None


def test_a_key_does_not_show_its_secret() -> None:
    assert KEY.secret.hex() not in repr(KEY)
    assert repr(KEY.secret) not in repr(KEY)


def test_without_cryptography_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    before = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return before(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(NotSupported, match=r"penstock\[erasure\]"):
        Key(*new_key())
