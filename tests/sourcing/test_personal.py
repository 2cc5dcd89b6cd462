"""Personal fields of events: sealed in the store, in snapshots and in the topic; None once forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from tests.sourcing.carts import Place

import penstock as ps
from penstock.app.aggregates import AppAggregates
from penstock.errors import BadDefinition, BadOption, BadRecord, CommandRefused, SubjectForgotten
from penstock.sourcing import Aggregate, Personal, applies, command, personal
from penstock.testing import find_traces


@dataclass(frozen=True)
class Registered:
    email: Personal[str | None]
    plan: str


@dataclass(frozen=True)
class Visited:
    page: str


@dataclass
class Customer(Aggregate):
    email: str | None = None
    plan: str = ""
    visits: int = 0

    @command
    def register(self, email: str, plan: str = "free") -> Registered:
        return Registered(email, plan)

    @command
    def visit(self, page: str) -> Visited:
        return Visited(page)

    @applies
    def _registered(self, event: Registered) -> None:
        self.email, self.plan = event.email, event.plan

    @applies
    def _visited(self, _event: Visited) -> None:
        self.visits += 1


def forget(customers: AppAggregates[Any], subject: str) -> None:
    customers.app.log.port.keys.destroy(subject)


def test_a_forgotten_aggregate_keeps_everything_but_what_is_personal(place: Place, home: Path) -> None:
    with place.carts(home, Customer, snapshot_every=3) as customers:
        for id in ("ann", "bob"):
            customers[id].register(f"{id}@example.org")
            for number in range(4):
                customers[id].visit(f"/{number}")
        customers.publish()
        assert customers.state("ann").email == "ann@example.org"
        assert [row["email"] for row in customers.topic.revealed().rows()][:1] == ["ann@example.org"]
        forget(customers, "ann")
        now, then = customers.state("ann"), customers.state("ann", version=3)
        assert (now.email, now.plan, now.visits, now.version) == (None, "free", 4, 5)
        assert (then.email, then.visits) == (None, 2)
        assert customers.state("bob").email == "bob@example.org"
        revealed = [row["email"] for row in customers.topic.revealed().rows() if row["event"] == "Registered"]
        assert revealed == [None, "bob@example.org"]
        customers["ann"].visit("/again")  # what is not personal goes on
        with pytest.raises(SubjectForgotten):
            customers["ann"].register("ann@example.org")
        assert customers.state("ann").visits == 5


def test_nothing_personal_is_ever_in_clear_and_once_forgotten_nothing_can_be_read(home: Path) -> None:
    with Place("sqlite").carts(home, Customer, snapshot_every=2) as customers:
        for id in ("ann", "bob"):
            customers[id].register(f"{id}.lastname@example.org")
            customers[id].visit("/")
        customers.publish()
        texts = "ann.lastname", "bob.lastname"
        before = find_traces(home, *texts)
        assert (before.clear, before.unread) == ((), ())
        inside = {trace.inside for trace in before.found if trace.text == 0}
        assert {"sqlite:stored_events", "sqlite:snapshots", "arrow"} <= inside
        forget(customers, "ann")
        assert {trace.text for trace in find_traces(home, *texts).found} == {1}


def test_lost_keys_are_told_with_the_event_that_needs_them_also_where_there_is_a_snapshot(home: Path) -> None:
    place = Place("sqlite")
    with place.carts(home, Customer, snapshot_every=2) as customers:
        customers["ann"].register("ann@example.org")
        customers["ann"].visit("/")
    (home / "keys.db").unlink()
    with place.carts(home, Customer, snapshot_every=2) as customers:
        for look in (customers.get, customers.state):
            with pytest.raises(
                ps.UnreadableEvent, match=r'version 1 of "ann".*not in this key store'
            ) as lost:
                look("ann")
            assert "PENSTOCK_KEYS" in lost.value.hint


def test_an_aggregate_that_was_forgotten_has_no_new_snapshots(home: Path) -> None:
    with Place("sqlite").carts(home, Customer, snapshot_every=2) as customers:
        customers["ann"].register("ann@example.org")
        customers["ann"].visit("/")
        forget(customers, "ann")
        snapshots = customers.book.store.snapshots
        form = customers.kinds.snapshot_form
        before = len(snapshots.select_events(f"{form}:ann"))
        for number in range(4):
            customers["ann"].visit(f"/{number}")
        assert len(snapshots.select_events(f"{form}:ann")) == before == 1
        assert customers.state("ann").visits == 5


@dataclass(frozen=True)
class Invited:
    guest: str | None
    name: Annotated[str | None, personal(of="guest", comparable=True)]


@dataclass
class Party(Aggregate):
    names: list[str] = None  # type: ignore[assignment]

    @command
    def invite(self, guest: str | None, name: str) -> Invited:
        return Invited(guest, name)

    @applies
    def _invited(self, event: Invited) -> None:
        self.names = [*(self.names or []), event.name or "(gone)"]


def test_a_field_may_be_of_somebody_whom_another_field_names(home: Path) -> None:
    with Place("sqlite").carts(home, Party, snapshot_every=None) as parties:
        for guest in ("g1", "g2", "g1"):
            parties["p"].invite(guest, f"name of {guest}")
        forget(parties, "g1")
        assert parties.state("p").names == ["(gone)", "name of g2", "(gone)"]
        parties.publish()
        one, _, same = (row["name"] for row in parties.topic.rows())
        assert one == same
        with pytest.raises(BadRecord, match="names no subject"):
            parties["p"].invite(None, "who?")
    with (
        pytest.raises(BadOption, match="snapshot_every=None"),
        Place("sqlite").carts(home, Party, snapshot_every=9),
    ):
        pass


@dataclass(frozen=True)
class Wrong:
    email: Personal[str]


@dataclass(frozen=True)
class Clear:
    email: str | None


def test_a_personal_field_must_be_able_to_be_none_and_be_personal_everywhere(tmp_path: Path) -> None:
    @dataclass
    class NotNull(Aggregate):
        @applies
        def _wrong(self, event: Wrong) -> None: ...

    @dataclass
    class Both(Aggregate):
        @applies
        def _one(self, event: Registered) -> None: ...

        @applies
        def _other(self, event: Clear) -> None: ...

    app = ps.App("shop", home=tmp_path)
    with pytest.raises(BadDefinition, match=r"Personal\[str \| None\]"):
        app.aggregates("wrong", NotNull)
    with pytest.raises(BadDefinition, match="not as personal"):
        app.aggregates("both", Both)


@dataclass(frozen=True)
class Optional:
    email: Personal[str] | None


def test_none_may_be_said_within_or_beside(home: Path) -> None:
    @dataclass
    class Likewise(Aggregate):
        email: str | None = None

        @command
        def register(self, email: str) -> Optional:
            return Optional(email)

        @applies
        def _registered(self, event: Optional) -> None:
            self.email = event.email

    with Place("sqlite").carts(home, Likewise) as customers:
        customers["ann"].register("ann.lastname@example.org")
        customers.publish()
        found = find_traces(home, "ann.lastname")
        assert (bool(found.found), found.clear) == (True, ())
        assert customers.state("ann").email == "ann.lastname@example.org"


@dataclass(frozen=True)
class Address:
    street: Personal[str | None]


@dataclass(frozen=True)
class Moved:
    to: Address | None


@dataclass(frozen=True)
class Shared:
    emails: list[Personal[str]]


@dataclass(frozen=True)
class Placed:
    total: int


def test_what_is_said_to_be_personal_and_would_not_be_sealed_is_refused(tmp_path: Path) -> None:
    """Who wrote it believes that it is sealed."""

    @dataclass
    class Nested(Aggregate):
        @applies
        def _moved(self, event: Moved) -> None: ...

    @dataclass
    class Several(Aggregate):
        @applies
        def _shared(self, event: Shared) -> None: ...

    @dataclass
    class OfTheState(Aggregate):
        email: Personal[str | None] = None

        @applies
        def _placed(self, event: Placed) -> None: ...

    app = ps.App("shop", home=tmp_path)
    with pytest.raises(BadDefinition, match='Moved: field "to" has something personal inside'):
        app.aggregates("nested", Nested)
    with pytest.raises(BadDefinition, match='Shared: field "emails" has something personal inside'):
        app.aggregates("several", Several)
    with pytest.raises(BadDefinition, match="its state is said to be personal, and no event"):
        app.aggregates("state", OfTheState)


@dataclass
class Careless(Customer):
    @command
    def tell(self, email: str) -> Any:
        return [email]  # which is no event


def test_a_command_that_decides_for_what_is_no_event_is_refused_without_repeating_it(home: Path) -> None:
    with Place("sqlite").carts(home, Careless) as customers:
        with pytest.raises(CommandRefused, match="decided for something of type str") as error:
            customers["ann"].tell("secret@example.org")
        assert "secret" not in str(error.value)


def test_forgetting_renumbers_no_events_and_they_are_published_once(home: Path) -> None:
    with Place("sqlite").carts(home, Customer, snapshot_every=2) as customers:
        for id in ("ann", "bob"):
            customers[id].register(f"{id}@example.org")
            customers[id].visit("/")
        customers.publish()
        assert customers.app.forget("ann").purged  # its file is written anew
        receipt = customers["bob"].visit("/again")
        assert receipt.sequence == 5
        customers.publish()
        published = [(row["sequence"], row["aggregate_id"], row["version"]) for row in customers.topic.rows()]
        assert sorted(published) == [
            (1, "ann", 1), (2, "ann", 2), (3, "bob", 1), (4, "bob", 2), (5, "bob", 3),
        ]  # fmt: skip


def test_errors_do_not_tell_what_is_personal_and_size_is_that_of_what_is_sealed(home: Path) -> None:
    with Place("sqlite").carts(home, Customer, record_bytes_max=2_000) as customers:
        with pytest.raises(BadRecord) as error:
            customers["ann"].register(b"secret@example.org")
        assert "secret" not in str(error.value)
        with pytest.raises(ps.RecordTooLarge):
            customers["ann"].register("x" * 1_700)
        assert customers.book.recorded() == 0
