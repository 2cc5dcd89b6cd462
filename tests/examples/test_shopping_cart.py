"""The shopping cart: what is in it now and was before, and what its events tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from examples.shopping_cart import Cart, ItemAdded, ItemRemoved, QuantityChanged, carts

import penstock as ps
from examples import shopping_cart
from penstock.testing.plugin import Flow

DAY = "2026-11-01"


def test_a_cart_now_at_a_past_time_and_what_carts_tell(flow: Flow) -> None:
    with flow(shopping_cart.app, day=DAY) as run:
        ann, bob, eve = (carts.get(name, by=name) for name in ("ann", "bob", "eve"))
        run.wait_until("10:00")
        ann.add("apple")
        run.wait_until("10:01")
        ann.add("bread")
        run.wait_until("10:02")
        ann.remove("apple")
        run.wait_until("10:03")
        ann.add("apple")
        bob.add("apple", 2)
        bob.remove("apple")
        eve.add("cheese")
        run.wait_until("10:04")
        ann.change_quantity("apple", 3)
        eve.check_out()

        assert carts["ann"].items == {"bread": 1, "apple": 3}
        assert [entry.event for entry in carts.history("ann")] == [
            ItemAdded("apple", 1),
            ItemAdded("bread", 1),
            ItemRemoved("apple", 1),
            ItemAdded("apple", 1),
            QuantityChanged("apple", 3),
        ]
        assert carts.state("ann", as_of=run.time("10:01:30")).items == {"apple": 1, "bread": 1}
        assert carts.state("ann", as_of=run.time("10:02:30")).items == {"bread": 1}
        assert carts.state("ann", version=4).items == {"apple": 1, "bread": 1}

        assert run.values("most_removed", "item", "removals", "pieces") == [("apple", 2, 3)]
        assert run.view("abandoned") == []  # nobody knows yet
        bob.add("apple", 4)
        receipt = bob.remove("apple")
        with pytest.raises(ps.ViewBehind, match="not published yet"):
            run.app.read("most_removed", after=receipt, timeout=0)
        run.process()
        (row,) = run.app.read("most_removed", after=receipt)
        assert (row["item"], row["pieces"]) == ("apple", 7)

        run.advance("1 hour")
        (left,) = run.view("abandoned")
        assert (left["aggregate_id"], left["last"], left["events"]) == ("ann", "QuantityChanged", 5)
        run.verify()


def test_commands_that_make_no_sense_are_refused_with_what_to_do(home: Path) -> None:
    shop = ps.App("shop", home=home).aggregates("carts", Cart)
    cart = shop["1"]
    refusals: list[tuple[Callable[[], object], str]] = [
        (lambda: cart.add("apple", 0), "0 is no quantity"),
        (lambda: cart.remove("apple"), "no apple"),
        (lambda: cart.change_quantity("apple", 2), "no apple"),
        (cart.check_out, "is empty"),
    ]
    for refused, told in refusals:
        with pytest.raises(ps.CommandRefused, match=told) as error:
            refused()
        assert error.value.hint
    cart.add("apple")
    assert cart.change_quantity("apple", 1).entries == ()
    cart.check_out()
    with pytest.raises(ps.CommandRefused, match="checked out"):
        cart.add("apple")
    shop.app.close()
