"""`penstock forget`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.command import Command, error_of

APP = """
import penstock as ps

app = ps.App("shop")
orders = app.topic("orders", "id BIGINT, customer BIGINT, email STRING", personal={"email": "customer"})
mails = app.topic("mails", "recipient STRING")
"""


@pytest.fixture
def shop(cli: Command, tmp_path: Path) -> Path:
    path = tmp_path / "shop.py"
    path.write_text(APP)
    cli("forget", path, "nobody", "--dry-run")  # which declares its topics
    for customer, email in ((17, "ann@example.org"), (18, "bob@example.org")):
        line = f'{{"id": 1, "customer": {customer}, "email": "{email}"}}\n'
        assert cli("produce", "orders", input=line).exit_code == 0
    return path


def test_forget_asks_and_then_destroys(cli: Command, shop: Path) -> None:
    refused = cli("forget", shop, 17, "--json")
    assert refused.exit_code == 2
    assert "for good" in error_of(refused)["message"]
    told = cli("forget", shop, 17, "--dry-run")
    assert told.exit_code == 0
    assert '"17" is known; nothing was destroyed' in told.stdout
    done = cli.json("forget", shop, 17, "--yes")
    assert (done["destroyed"], done["complete"], done["places"], done["clear"]) == (
        True,
        True,
        ["orders"],
        [],
    )
    assert [row["email"] for row in cli.lines("consume", "orders", "--values", "--reveal")] == [
        None,
        "bob@example.org",
    ]


def test_what_nobody_has_looked_for_is_never_called_done(cli: Command, shop: Path) -> None:
    unlooked = cli("forget", shop, 17, "--yes", "--no-search")
    assert (unlooked.exit_code, "nobody has looked" in unlooked.stdout) == (1, True)
    again = cli("forget", shop, 17, "--yes", "--json")
    told = json.loads(again.stdout)
    assert (again.exit_code, told["again"], told["complete"], told["searched"]) == (1, True, False, None)
    said = cli("forget", shop, 17, "--yes")
    assert (said.exit_code, "before now" in said.stdout) == (1, True)
    assert "--look-for TEXT" in said.stderr
    looked = cli("forget", shop, 17, "--yes", "--look-for", "ann@example.org")
    assert (looked.exit_code, "1 value looked for" in looked.stdout) == (0, True)
    both = cli("forget", shop, 17, "--yes", "--no-search", "--look-for", "ann@example.org")
    assert both.exit_code == 2


def test_what_is_left_in_clear_is_told_with_exit_code_1(cli: Command, shop: Path) -> None:
    cli("produce", "mails", input='{"recipient": "ann@example.org"}\n')
    result = cli("forget", shop, 17, "--yes")
    assert result.exit_code == 1
    assert "in clear" in result.stdout
    assert "mails" in result.stdout


def test_an_unknown_subject_is_bad_input(cli: Command, shop: Path) -> None:
    refused = cli("forget", shop, "nobody", "--yes", "--json")
    assert refused.exit_code == 2
    assert error_of(refused)["type"] == "UnknownSubject"
    assert error_of(refused)["subject"] == "nobody"
