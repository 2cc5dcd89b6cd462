"""Commands become events, or are refused; and what an aggregate was is never lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from eventsourcing.persistence import OperationalError
from eventsourcing.sqlite import SQLiteCursor
from tests.sourcing.carts import Cart, CheckedOut, ItemAdded, ItemRemoved, Place

import penstock as ps
from penstock.app.aggregates import AppAggregates
from penstock.sourcing import Aggregate, applies, command
from penstock.sourcing.book import _Snapshots

Carts = AppAggregates[Cart]


def test_a_command_records_an_event_and_the_aggregate_shows_it(carts: Carts) -> None:
    cart = carts.get("7", by="ann")
    receipt = cart.add("apple", quantity=2)
    assert (cart.items, cart.version, receipt.version) == ({"apple": 2}, 1, 1)
    (entry,) = carts.history("7")
    assert (entry.event, entry.by, entry.version) == (ItemAdded("apple", 2), "ann", 1)
    assert (entry,) == receipt.entries
    assert carts["7"] == cart


def test_a_refused_command_records_nothing(carts: Carts) -> None:
    cart = carts["7"]
    cart.check_out()
    with pytest.raises(ps.CommandRefused, match="checked out") as refused:
        cart.add("apple")
    assert refused.value.hint == "begin a new cart"
    assert carts["7"].version == cart.version == 2


def test_events_of_one_command_are_recorded_together(carts: Carts) -> None:
    receipt = carts["7"].check_out()
    assert receipt.events == (ItemAdded("sweet", 1), CheckedOut())
    assert len({(entry.command_id, entry.at) for entry in receipt.entries}) == 1


def test_a_command_that_finds_nothing_to_do_records_nothing(carts: Carts) -> None:
    cart = carts["7"]
    before = cart.add("apple")
    receipt = cart.remove("pear")
    assert (receipt.entries, receipt.version, receipt.sequence) == ((), 1, before.sequence)


def test_an_argument_of_the_wrong_type_is_refused_before_anything_is_recorded(carts: Carts) -> None:
    with pytest.raises(ps.BadRecord, match=r'event "ItemAdded" of "7".*quantity'):
        carts["7"].add("apple", quantity="two")  # type: ignore[arg-type]
    assert carts["7"].version == 0


def test_an_event_that_could_not_be_published_is_not_recorded(place: Place, home: Path) -> None:
    with place.carts(home, record_bytes_max=1_000) as carts:
        with pytest.raises(ps.RecordTooLarge):
            carts["7"].add("x" * 2_000)
        assert carts["7"].version == 0


def test_a_past_state_takes_no_commands(carts: Carts) -> None:
    carts["7"].add("apple")
    with pytest.raises(ps.NotSupported, match="past state"):
        carts.state("7", version=1).add("apple")


def test_every_past_version_equals_a_replay_of_its_events(place: Place, home: Path) -> None:
    """With snapshots in between, and without any."""
    with place.carts(home, snapshot_every=7) as carts:
        cart = carts["7"]
        for number in range(40):
            cart.add(f"item {number % 9}", number) if number % 4 else cart.remove(f"item {(number - 1) % 9}")
        replayed = Cart()
        versions = []
        for entry in carts.history("7"):
            getattr(replayed, carts.kinds.by_type[type(entry.event)].handler)(entry.event)
            versions.append((dict(replayed.items), replayed.open))
        found = [carts.state("7", version=number + 1) for number in range(len(versions))]
        assert [(state.items, state.open) for state in found] == versions
        assert [state.version for state in found] == list(range(1, cart.version + 1))
        assert len(versions) > 30


def test_the_state_as_of_a_time_is_that_of_the_last_event_by_then(
    carts: Carts, monkeypatch: pytest.MonkeyPatch
) -> None:
    noon = datetime(2026, 11, 18, 12, tzinfo=UTC)
    times = iter(noon + timedelta(minutes=minute) for minute in (0, 5, 5, 30))
    monkeypatch.setattr(carts.book, "_now", lambda: next(times))
    cart = carts["7"]
    for item in "abcd":
        cart.add(item)

    def items(minute: int) -> str:
        return "".join(carts.state("7", as_of=noon + timedelta(minutes=minute)).items)

    assert [items(0), items(4), items(5), items(29), items(30), items(90)] == [
        "a", "a", "abc", "abc", "abcd", "abcd",
    ]  # fmt: skip
    with pytest.raises(ps.UnknownAggregate, match="as of") as unknown:
        items(-1)
    assert "12:00" in unknown.value.hint


def test_times_of_an_aggregate_do_not_go_back_when_a_clock_does(
    carts: Carts, monkeypatch: pytest.MonkeyPatch
) -> None:
    noon = datetime(2026, 11, 18, 12, tzinfo=UTC)
    times = iter([noon, noon - timedelta(hours=1)])
    monkeypatch.setattr(carts.book, "_now", lambda: next(times))
    cart = carts["7"]
    cart.add("a")
    cart.add("b")
    assert [entry.at for entry in carts.history("7")] == [noon, noon]


def test_unknown_aggregates_and_versions_are_told(carts: Carts) -> None:
    for look in (carts.state, carts.history):
        with pytest.raises(ps.UnknownAggregate, match='no "9" in carts'):
            look("9")
    carts["7"].add("apple")
    for version in (0, 2, -1):
        with pytest.raises(ps.VersionOutOfRange, match=f"no version {version}") as refused:
            carts.state("7", version=version)
        assert refused.value.hint == "it has versions 1 to 1"


def test_an_id_that_is_no_text_is_refused_whatever_is_asked(carts: Carts) -> None:
    for id in ("", "a\0b", "\udcff", "x" * 501):  # the third is an argument of a command that is no UTF-8
        for look in (carts.get, carts.state, carts.history, carts.book.stored):
            with pytest.raises(ps.BadOption, match="no id"):
                look(id)


def test_aggregates_are_listed_by_their_ids(carts: Carts) -> None:
    for id in ("b", "a", "c", "a"):
        carts[id].add("apple")
    assert [(each.id, each.version) for each in carts.list()] == [("a", 2), ("b", 1), ("c", 1)]
    assert [each.id for each in carts.list(limit=2)] == ["a", "b"]
    assert carts.book.store.count() == 3


@dataclass
class Fragile(Aggregate):
    """With an event that cannot always be applied."""

    items: list[str] = field(default_factory=list)

    @command
    def take(self, item: str) -> ItemRemoved:
        return ItemRemoved(item)

    @command
    def swap(self, item: str) -> list[Any]:
        return [ItemAdded("new", 1), ItemRemoved(item)]

    @applies
    def _added(self, event: ItemAdded) -> None:
        self.items.append(event.item)

    @applies
    def _removed(self, event: ItemRemoved) -> None:
        self.items.remove(event.item)


def test_an_event_that_its_aggregate_cannot_apply_is_not_recorded(place: Place, home: Path) -> None:
    with place.carts(home, Fragile) as carts:
        cart = carts["7"]
        for wrong in (cart.take, cart.swap):
            with pytest.raises(ValueError, match="not in list"):
                wrong("apple")
            assert (cart.items, cart.version, carts["7"].version) == ([], 0, 0)
        assert cart.swap("new").version == 2


@pytest.mark.parametrize("reason", ["database or disk is full", "database is locked"])
def test_a_command_whose_snapshot_fails_has_been_recorded(
    place: Place, home: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    def fails(*_: object) -> None:
        raise OperationalError(reason)

    with place.carts(home, snapshot_every=2) as carts:
        monkeypatch.setattr(_Snapshots, "keep", fails)
        cart = carts["7"]
        assert [cart.add("apple").version for _ in range(5)] == [1, 2, 3, 4, 5]
        assert carts["7"].items == {"apple": 5}


@dataclass(frozen=True)
class Paid:
    amount: float


@dataclass
class Account(Aggregate):
    total: int = 0  # as somebody thought

    @command
    def pay(self, amount: float) -> Paid:
        return Paid(amount)

    @applies
    def _paid(self, event: Paid) -> None:
        self.total += event.amount  # type: ignore[assignment]


def test_a_state_that_does_not_fit_its_class_has_no_snapshots_and_its_commands_are_recorded(
    home: Path,
) -> None:
    with Place("sqlite").carts(home, Account, snapshot_every=2) as accounts:
        account = accounts["7"]
        assert [account.pay(0.5).version for _ in range(4)] == [1, 2, 3, 4]
        assert accounts["7"].total == 2.0


def test_a_closed_app_takes_no_commands(place: Place, home: Path) -> None:
    with place.carts(home) as carts:
        cart = carts["7"]
        cart.add("apple")
    with pytest.raises(ps.PenstockError):
        cart.add("apple")


def test_an_interrupt_as_a_transaction_begins_hinders_nobody_after_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = SQLiteCursor.execute

    def interrupted(cursor: SQLiteCursor, statement: str, *values: object) -> None:
        really(cursor, statement, *values)
        if statement == "BEGIN":
            raise KeyboardInterrupt

    with Place("sqlite").carts(home) as carts:
        cart = carts["7"]
        with monkeypatch.context() as patched:
            patched.setattr(SQLiteCursor, "execute", interrupted)
            with pytest.raises(KeyboardInterrupt):
                cart.add("apple")
        assert cart.add("pear").version == 1


def test_after_a_store_that_failed_an_aggregate_goes_on_from_what_is_recorded(
    carts: Carts, monkeypatch: pytest.MonkeyPatch
) -> None:
    cart = carts["7"]
    cart.add("apple")
    with monkeypatch.context() as broken:
        for name in ("insert_events", "select_events"):
            broken.setattr(type(cart._decides.store.recorder), name, _out_of_reach)  # type: ignore[union-attr]
        with pytest.raises(ps.StorageError):
            cart.add("apple")
    assert cart.add("bread").version == 2
    assert cart.items == {"apple": 1, "bread": 1}


def _out_of_reach(*_: object, **__: object) -> None:
    raise OperationalError("disk I/O error")
