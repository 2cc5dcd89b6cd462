"""`penstock token`: made once, listed without what they are, revoked."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.cli.command import Command, error_of

from penstock.gateway.tokens import Tokens

_TOKEN = re.compile(r"pst_[0-9a-f]{12}_[0-9a-f]{64}")
_DAY_US = 86_400_000_000


def _known(home: Path, token: str, *, later_us: int = 0) -> str | None:
    """The role that a gateway of this home would give it, now or later."""
    from time import time_ns

    found = Tokens(home, now_us=lambda: time_ns() // 1_000 + later_us).find(token)
    return found.role if found else None


def test_a_token_is_printed_alone_so_that_a_script_can_keep_it(cli: Command) -> None:
    result = cli("token", "create", "ann")
    assert result.exit_code == 0
    assert _TOKEN.fullmatch(result.stdout.strip())
    assert "not shown again" in result.stderr
    assert _known(cli.home, result.stdout.strip()) == "read"


@pytest.mark.parametrize("role", ["read", "write", "admin"])
def test_a_token_has_the_role_it_was_made_with(cli: Command, role: str) -> None:
    made = cli.json("token", "create", "ann", "--role", role)
    assert (made["name"], made["role"]) == ("ann", role)
    assert _known(cli.home, made["token"]) == role


def test_a_token_is_good_until_it_expires(cli: Command) -> None:
    token = cli.json("token", "create", "ann", "--expires", "2 days")["token"]
    assert _known(cli.home, token, later_us=_DAY_US) == "read"
    assert _known(cli.home, token, later_us=2 * _DAY_US) is None


def test_what_a_token_is_is_neither_listed_nor_stored(cli: Command) -> None:
    secret = cli.json("token", "create", "ann")["token"].rpartition("_")[2]
    listed = cli("token", "list").output + cli("token", "list", "--json").output
    assert "ann" in listed
    assert secret not in listed
    stored = cli.home / "gateway" / "tokens.json"
    assert secret not in stored.read_text()
    assert stored.stat().st_mode & 0o077 == 0


def test_tokens_are_listed_with_what_they_may_and_until_when(cli: Command) -> None:
    cli("token", "create", "ann", "--role", "write")
    cli("token", "create", "bob", "--expires", "1 ms")
    ann, bob = cli.json("token", "list")["tokens"]
    assert (ann["name"], ann["role"], ann["expires"], ann["expired"]) == ("ann", "write", None, False)
    assert (bob["name"], bob["role"], bob["expired"]) == ("bob", "read", True)
    text = cli("token", "list").stdout
    assert all(word in text for word in ("ann", "write", "bob", "read"))


def test_a_home_without_tokens_says_what_that_means(cli: Command) -> None:
    assert cli.json("token", "list") == {"tokens": []}
    assert "needs none" in cli("token", "list").stderr


def test_a_revoked_token_is_refused(cli: Command) -> None:
    token = cli.json("token", "create", "ann")["token"]
    assert cli.json("token", "revoke", "ann") == {"revoked": "ann"}
    assert _known(cli.home, token) is None
    assert cli.json("token", "list") == {"tokens": []}
    assert "answers nobody" in cli("token", "list").stderr


@pytest.mark.parametrize(
    ("arguments", "code", "hint"),
    [
        (("create", "ann"), 2, "revoke it"),
        (("create", "../ann"), 2, ""),
        (("create", "eve", "--expires", "soon"), 2, ""),
        (("create", "eve", "--expires", "-1 day"), 2, ""),
        (("create", "eve", "--expires", "0 days"), 2, "90 days"),
        (("create", "eve", "--expires", "99999999 days"), 2, "for ever"),
        (("revoke", "eve"), 2, "there are: ann"),
    ],
)
def test_what_cannot_be_done_is_refused_and_changes_nothing(
    cli: Command, arguments: tuple[str, ...], code: int, hint: str
) -> None:
    cli("token", "create", "ann")
    result = cli("token", *arguments, "--json")
    assert result.exit_code == code, result.output
    assert hint in error_of(result)["hint"]
    assert [token["name"] for token in json.loads(cli("token", "list", "--json").stdout)["tokens"]] == ["ann"]


def test_a_role_that_there_is_not_is_refused(cli: Command) -> None:
    assert cli("token", "create", "ann", "--role", "king").exit_code == 2
    assert cli.json("token", "list") == {"tokens": []}


def test_what_is_revoked_stays_revoked_whoever_changes_tokens_meanwhile(home: Path) -> None:
    """Each with its own file of what it knows, as processes are."""
    kept = [
        Tokens(home, now_us=lambda: 1).create(f"old-{number}", "read", lasts_us=None) for number in range(8)
    ]

    def change(number: int) -> str:
        mine = Tokens(home, now_us=lambda: 1)
        mine.revoke(f"old-{number}")
        return mine.create(f"new-{number}", "read", lasts_us=None)

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(change, range(8)))
    assert [_known(home, token) for token in kept] == [None] * 8
    assert [_known(home, token) for token in made] == ["read"] * 8
