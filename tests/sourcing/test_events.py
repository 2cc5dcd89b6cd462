"""Stored events outlive the classes that they were: other modules, other names, other fields, or none."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.sourcing.carts import Place

import penstock as ps
from penstock.sourcing import Aggregate, applies, command, event


@event(version=3, name="ItemAdded")
@dataclass(frozen=True)
class PricedItemAdded:
    item: str
    count: int
    price: Decimal

    @staticmethod
    def upcast(data: dict[str, Any], version: int) -> dict[str, Any]:
        if version == 1:
            return {"item": data["item"], "count": data["quantity"]}
        return {**data, "price": "0.50"}


@event(was="ItemRemoved")
@dataclass(frozen=True)
class TakenOut:
    item: str


@dataclass
class NewerCart(Aggregate):
    items: dict[str, int] = field(default_factory=dict)
    worth: Decimal = Decimal(0)

    @command
    def add(self, item: str, count: int, price: Decimal) -> PricedItemAdded:
        return PricedItemAdded(item, count, price)

    @applies
    def _added(self, event: PricedItemAdded) -> None:
        self.items[event.item] = event.count
        self.worth += event.count * event.price

    @applies
    def _taken(self, event: TakenOut) -> None:
        del self.items[event.item]


@dataclass
class ForgetfulCart(Aggregate):
    items: dict[str, int] = field(default_factory=dict)

    @applies
    def _added(self, event: PricedItemAdded) -> None:
        self.items[event.item] = event.count


def test_older_versions_are_upcast_and_renamed_events_are_known(home: Path) -> None:
    place = Place("sqlite")
    with place.carts(home) as older:
        cart = older["7"]
        cart.add("apple", 2)
        cart.add("pear", 1)
        cart.remove("pear")
        older.publish()
    with place.carts(home, NewerCart) as newer:
        newer["7"].add("plum", 3, Decimal("0.20"))
        found = newer["7"]
        assert (found.items, found.worth) == ({"apple": 2, "plum": 3}, Decimal("2.10"))
        newer.publish()
        told = list(newer.app.log.topic("carts").rows())
    assert [(row["event"], row["event_version"], row["quantity"], row["count"]) for row in told] == [
        ("ItemAdded", 1, 2, None),
        ("ItemAdded", 1, 1, None),
        ("ItemRemoved", 1, None, None),
        ("ItemAdded", 3, None, 3),
    ]


def test_older_events_that_were_not_published_are_published_as_they_are_now(home: Path) -> None:
    place = Place("sqlite")
    with place.carts(home) as older:
        older["7"].add("apple", 2)
    with place.carts(home, NewerCart) as newer:
        newer.publish()
        (row,) = newer.app.log.topic("carts").rows()
    assert (row["event_version"], row["count"], row["price"]) == (3, 2, Decimal("0.5"))


@event(version=2, name="ItemAdded")
@dataclass(frozen=True)
class WronglyUpcast:
    item: str

    @staticmethod
    def upcast(data: dict[str, Any], version: int) -> dict[str, Any]:
        return {"item": data["name"]}


@dataclass
class MistakenCart(Aggregate):
    @applies
    def _added(self, event: WronglyUpcast) -> None: ...


def test_an_upcast_that_fails_is_told_with_the_event_it_fails_for(home: Path) -> None:
    place = Place("sqlite")
    with place.carts(home) as older:
        older["7"].add("apple", 2)
    with place.carts(home, MistakenCart) as newer:
        for read in (lambda: newer["7"], newer.publish):
            with pytest.raises(
                ps.UnreadableEvent, match=r'version 1 of "7".*from version 1 says KeyError'
            ) as bad:
                read()
            assert bad.value.hint == "mend upcast of WronglyUpcast"


def test_a_class_that_no_longer_exists_is_told_with_what_to_do(place: Place, home: Path) -> None:
    with place.carts(home) as older:
        cart = older["7"]
        cart.add("apple")
        cart.remove("apple")
    with place.carts(home, ForgetfulCart) as newer:
        for read in (lambda: newer["7"], newer.publish, lambda: newer.history("7")):
            with pytest.raises(ps.UnreadableEvent, match='version 2 of "7" is event "ItemRemoved"') as gone:
                read()
            assert "apply it again" in gone.value.hint and 'was="ItemRemoved"' in gone.value.hint
        assert newer.state("7", version=1).items == {"apple": 1}  # what comes before it can still be read


def test_an_event_of_a_newer_program_is_not_guessed_at(home: Path) -> None:
    place = Place("sqlite")
    with place.carts(home, NewerCart) as newer:
        newer["7"].add("apple", 1, Decimal(1))
    with place.carts(home) as older, pytest.raises(ps.UnreadableEvent, match="a newer program") as unread:
        older.state("7")
    assert unread.value.event_version == 3


@dataclass(frozen=True)
class ItemAdded:
    """The same name and version as before, and another field."""

    item: str
    amount: int


@dataclass
class CarelessCart(Aggregate):
    @applies
    def _added(self, event: ItemAdded) -> None: ...


def test_fields_that_changed_without_a_new_version_are_told(home: Path) -> None:
    place = Place("sqlite")
    with place.carts(home) as older:
        older["7"].add("apple")
    with place.carts(home, CarelessCart) as newer, pytest.raises(ps.UnreadableEvent) as unread:
        newer.state("7")
    assert "quantity" in unread.value.message and "upcast" in unread.value.hint


def test_snapshots_of_another_state_version_are_left_aside(home: Path) -> None:
    """They say what an older program made of the events."""

    @dataclass(frozen=True)
    class Counted:
        pass

    def counter(step: int, number: int) -> type[Any]:
        @dataclass
        class Counter(Aggregate):
            state_version = number
            total: int = 0

            @command
            def count(self) -> Counted:
                return Counted()

            def _counted(self, event: Counted) -> None:
                self.total += step

        Counter._counted.__annotations__["event"] = Counted
        applies(Counter._counted)
        return Counter

    place = Place("sqlite")
    with place.carts(home, counter(1, 1), snapshot_every=2) as older:
        for _ in range(5):
            older["7"].count()
    with place.carts(home, counter(10, 1), snapshot_every=2) as careless:
        assert careless["7"].total == 4 + 10
    with place.carts(home, counter(10, 2), snapshot_every=2) as careful:
        assert careful["7"].total == 50


@dataclass(frozen=True)
class Line:
    item: str
    price: Decimal
    note: str | None = None


@dataclass(frozen=True)
class Ordered:
    lines: list[Line]
    by_shelf: dict[str, Line]
    when: datetime
    photo: bytes


@dataclass
class Order(Aggregate):
    lines: list[Line] = field(default_factory=list)
    by_shelf: dict[str, Line] = field(default_factory=dict)
    ordered: datetime | None = None
    photo: bytes | None = None

    @command
    def order(self, ordered: Ordered) -> Ordered:
        return ordered

    @applies
    def _ordered(self, event: Ordered) -> None:
        self.lines, self.by_shelf = event.lines, event.by_shelf
        self.ordered, self.photo = event.when, event.photo


def test_nested_data_comes_back_as_it_was_from_events_and_snapshots(place: Place, home: Path) -> None:
    line = Line("apple", Decimal("0.500000000000000001"), "é\n")
    event = Ordered(
        [line, Line("pear", Decimal(1))], {"a": line}, datetime(2026, 1, 31, 1, 2, 3, 4, UTC), b"\xff"
    )
    for every in (None, 1):
        with place.carts(home, Order, snapshot_every=every) as orders:
            order = orders[f"every {every}"]
            order.order(event)
            assert orders[order.id] == order
            assert orders.history(order.id)[0].event == event
            orders.publish()


def declared(home: Path, kind: Any) -> None:
    ps.App("shop", home=home).aggregates("carts", kind)


def test_what_cannot_be_an_aggregate_is_refused_where_it_is_declared(home: Path) -> None:
    class NoDataclass(Aggregate): ...

    @dataclass
    class NoDefault(Aggregate):
        items: dict[str, int]

    @dataclass
    class NoEvents(Aggregate):
        total: int = 0

    @dataclass
    class Taken(Aggregate):
        version: int = 0

    @dataclass
    class Unannotated(Aggregate):
        @applies
        def _added(self, event) -> None: ...  # type: ignore[no-untyped-def]

    @dataclass
    class Strange(Aggregate):
        seen: set[str] = field(default_factory=set)

        @applies
        def _added(self, event: ItemAdded) -> None: ...

    for kind, told in [
        (NoDataclass, "no dataclass"),
        (NoDefault, 'field "items" has no default'),
        (NoEvents, "applies no event"),
        (Taken, 'field "version" is taken'),
        (Unannotated, "does not say which event"),
        (Strange, "no column type"),
        (int, "is no aggregate"),
    ]:
        with pytest.raises(ps.BadDefinition, match=told) as refused:
            declared(home, kind)
        assert refused.value.hint
    assert not home.exists()


@dataclass(frozen=True)
class WithAt:
    at: datetime


@dataclass(frozen=True)
class OtherType:
    item: int


def test_fields_of_events_are_columns_of_one_topic(home: Path) -> None:
    @dataclass
    class Reserved(Aggregate):
        @applies
        def _a(self, event: WithAt) -> None: ...

    @dataclass
    class TwoTypes(Aggregate):
        @applies
        def _a(self, event: ItemAdded) -> None: ...

        @applies
        def _b(self, event: OtherType) -> None: ...

    with pytest.raises(ps.BadDefinition, match='column "at" already'):
        declared(home, Reserved)
    with pytest.raises(ps.BadDefinition, match='field "item" is BIGINT here and STRING'):
        declared(home, TwoTypes)


def test_an_older_version_needs_an_upcast(home: Path) -> None:
    @event(version=2)
    @dataclass(frozen=True)
    class Changed:
        pass

    @dataclass
    class Careless(Aggregate):
        def _changed(self, event: Any) -> None: ...

    Careless._changed.__annotations__["event"] = Changed
    applies(Careless._changed)
    with pytest.raises(ps.BadDefinition, match="cannot read what was stored before"):
        declared(home, Careless)
