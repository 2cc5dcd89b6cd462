"""`penstock topic create --personal`, and what `produce` and `consume` make of it."""

from __future__ import annotations

import json

from tests.cli.command import Command, error_of

DDL = "id BIGINT, customer BIGINT, email STRING"


def test_a_personal_column_is_sealed_by_produce_and_revealed_on_request(cli: Command) -> None:
    cli("topic", "create", "orders", "--schema", DDL, "--personal", "email=customer", "--comparable", "email")
    assert "email of customer, comparable" in cli("topic", "show", "orders").stdout
    line = json.dumps({"id": 1, "customer": 17, "email": "ann@example.org"})
    assert cli("produce", "orders", input=line + "\n").exit_code == 0
    (sealed,) = cli.lines("consume", "orders", "--values")
    assert sealed["email"].startswith("personal:d1:")
    (clear,) = cli.lines("consume", "orders", "--values", "--reveal")
    assert clear == {"id": 1, "customer": 17, "email": "ann@example.org"}
    (member,) = cli.lines("consume", "orders", "--values", "--reveal", "--group", "g")
    assert member == clear


def test_a_personal_column_needs_to_say_whose_it_is(cli: Command) -> None:
    refused = cli("topic", "create", "orders", "--schema", DDL, "--personal", "email", "--json")
    assert refused.exit_code == 2
    assert "customer_id" in error_of(refused)["hint"]
