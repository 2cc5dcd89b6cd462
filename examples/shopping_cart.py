"""A shopping cart that forgets nothing.

    python examples/shopping_cart.py                                  # a few commands, and what they leave
    penstock run examples/shopping_cart.py
    penstock sourcing audit examples/shopping_cart.py cart-1
    penstock sourcing state examples/shopping_cart.py cart-1 --version 3
    penstock view examples/shopping_cart.py most_removed

A table of carts says what is in them now. This one knows what happened: that an apple was taken out and put
back, when, and by whom. What is in the cart follows from it, now or at any time before; and so do answers to
questions that nobody had asked when it happened, as which items people put back on the shelf.
"""

from dataclasses import dataclass, field

from pyspark.sql import DataFrame

import penstock as ps
from penstock.sourcing import Aggregate, applies, command

app = ps.App("shopping-cart")


@dataclass(frozen=True)
class ItemAdded:
    item: str
    quantity: int


@dataclass(frozen=True)
class ItemRemoved:
    item: str
    quantity: int


@dataclass(frozen=True)
class QuantityChanged:
    item: str
    quantity: int


@dataclass(frozen=True)
class Emptied:
    pass


@dataclass(frozen=True)
class CheckedOut:
    pass


@dataclass
class Cart(Aggregate):
    items: dict[str, int] = field(default_factory=dict)
    checked_out: bool = False

    @command
    def add(self, item: str, quantity: int = 1) -> ItemAdded:
        self._must_be_open()
        _must_be_some(quantity)
        return ItemAdded(item, quantity)

    @command
    def remove(self, item: str) -> list[ItemRemoved | Emptied]:
        self._must_be_open()
        self._must_have(item)
        removed = ItemRemoved(item, self.items[item])
        return [removed] if len(self.items) > 1 else [removed, Emptied()]

    @command
    def change_quantity(self, item: str, quantity: int) -> QuantityChanged | None:
        self._must_be_open()
        self._must_have(item)
        _must_be_some(quantity)
        return QuantityChanged(item, quantity) if quantity != self.items[item] else None

    @command
    def check_out(self) -> CheckedOut:
        self._must_be_open()
        if not self.items:
            raise ps.CommandRefused(f'"{self.id}" is empty.', hint="add something first")
        return CheckedOut()

    @applies
    def _added(self, event: ItemAdded) -> None:
        self.items[event.item] = self.items.get(event.item, 0) + event.quantity

    @applies
    def _removed(self, event: ItemRemoved) -> None:
        del self.items[event.item]

    @applies
    def _changed(self, event: QuantityChanged) -> None:
        self.items[event.item] = event.quantity

    @applies
    def _emptied(self, event: Emptied) -> None:
        """Nothing is left to take out."""

    @applies
    def _checked_out(self, event: CheckedOut) -> None:
        self.checked_out = True

    def _must_be_open(self) -> None:
        if self.checked_out:
            raise ps.CommandRefused(f'"{self.id}" is checked out.', hint="begin a new cart")

    def _must_have(self, item: str) -> None:
        if item not in self.items:
            inside = ", ".join(self.items) or "nothing"
            raise ps.CommandRefused(f'there is no {item} in "{self.id}".', hint=f"it has {inside}")


def _must_be_some(quantity: int) -> None:
    if quantity < 1:
        raise ps.CommandRefused(f"{quantity} is no quantity.", hint="give 1 or more; remove takes items out")


carts = app.aggregates("carts", Cart)


@app.view(key="item")
def most_removed() -> DataFrame:
    """How often each item was taken out of a cart again, and how many pieces of it."""
    return ps.aggregate(carts.stream(ItemRemoved), by="item", removals=ps.count(), pieces=ps.sum("quantity"))


@app.view(key=["aggregate_id", "window"])
def abandoned() -> DataFrame:
    """Carts with something in them that nobody touched for half an hour."""
    visits = ps.aggregate(
        carts.stream(),
        by="aggregate_id",
        window=ps.session("30 minutes"),
        last=ps.last("event"),
        events=ps.count(),
    )
    return visits.where(~visits["last"].isin("CheckedOut", "Emptied"))


def main() -> None:
    cart = carts.get("cart-1", by="ann")
    cart.add("apple")
    cart.add("bread")
    cart.remove("apple")
    cart.add("apple")
    receipt = cart.change_quantity("apple", 3)
    print("now:", cart.items)
    for version in range(1, receipt.version + 1):
        print(f"after {version}:", carts.state("cart-1", version=version).items)
    for entry in carts.history("cart-1"):
        print(f"{entry.at:%H:%M:%S} {entry.by} {entry.event}")


if __name__ == "__main__":
    main()
