"""A shopping cart, small: what the tests give commands to."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.app.aggregates import AppAggregates
from penstock.sourcing import Aggregate, applies, command


@dataclass(frozen=True)
class ItemAdded:
    item: str
    quantity: int


@dataclass(frozen=True)
class ItemRemoved:
    item: str


@dataclass(frozen=True)
class CheckedOut:
    pass


@dataclass
class Cart(Aggregate):
    items: dict[str, int] = field(default_factory=dict)
    open: bool = True

    @command
    def add(self, item: str, quantity: int = 1) -> ItemAdded:
        if not self.open:
            raise ps.CommandRefused(f'"{self.id}" is checked out.', hint="begin a new cart")
        return ItemAdded(item, quantity)

    @command
    def remove(self, item: str) -> ItemRemoved | None:
        return ItemRemoved(item) if item in self.items else None

    @command
    def check_out(self) -> list[Any]:
        """What it is about, and a last sweet."""
        return [ItemAdded("sweet", 1), CheckedOut()]

    @applies
    def _added(self, event: ItemAdded) -> None:
        self.items[event.item] = self.items.get(event.item, 0) + event.quantity

    @applies
    def _removed(self, event: ItemRemoved) -> None:
        del self.items[event.item]

    @applies
    def _checked_out(self, _event: CheckedOut) -> None:
        self.open = False


@dataclass(frozen=True, slots=True)
class Place:
    """A store that is empty for each test."""

    kind: str
    url: str | None = None
    name: str = field(default_factory=lambda: f"a{uuid.uuid4().hex[:8]}")

    @contextmanager
    def carts(self, home: Path, kind: type[Any] = Cart, **options: Any) -> Iterator[AppAggregates[Any]]:
        app = ps.App(self.name, home=home)
        try:
            yield app.aggregates("carts", kind, store=self.url, **options)
        finally:
            app.close()
