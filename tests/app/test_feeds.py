"""Feeds: the rows as they are, then every change, for subscribers that come and go. Without Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.app.feeds import START_US, Asked, Model, Subscriber, Write, compact, make_table, store
from tests.flow.world import app_at

import penstock as ps
from penstock.clock import ManualClock

many = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
cities = st.sampled_from(["Bern", "Basel", None])
seconds = st.none() | st.integers(0, 9)
writes = st.builds(Write, st.integers(0, 2), cities, seconds, st.sampled_from([False, False, True]))
asks = st.sampled_from(
    [
        Asked(None, lambda row: True),
        Asked({"city": "Bern"}, lambda row: row["city"] == "Bern"),
        Asked({"city": "Bern"}, lambda row: row["city"] == "Bern", ["city"]),
        Asked({"city": None, "id": 1}, lambda row: row["city"] is None and row["id"] == 1, ["name", "id"]),
        Asked(ps.col("id") > 1, lambda row: row["id"] > 1, ["id"]),
        Asked(lambda row: row["city"] != "Basel", lambda row: row["city"] != "Basel"),
    ]
)
rounds = st.lists(  # what is written, whether it is compacted, after how many changes the subscriber leaves
    st.tuples(st.lists(writes, max_size=6), st.booleans(), st.none() | st.integers(0, 3)), max_size=5
)
Rounds = list[tuple[list[Write], bool, int | None]]
LAST: Rounds = [([], False, None)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_US)


@pytest.fixture
def app(tmp_path: Path, clock: ManualClock) -> Iterator[ps.App]:
    found = app_at("shop", tmp_path, clock)
    yield found
    found.close()


@many
@given(rounds=rounds, asked=asks, timed=st.booleans())
def test_a_subscriber_that_comes_and_goes_is_told_every_change_once(
    app: ps.App, clock: ManualClock, rounds: Rounds, asked: Asked, timed: bool
) -> None:
    table, model = make_table(app, timed=timed), Model(asked, timed)
    subscriber = Subscriber(table, asked)
    began = 0
    for written, _, changes_max in rounds + LAST:
        for write in written:
            store(table, clock, model, write)
        began = len(model.told) if subscriber.position is None else began
        if subscriber.catch_up(changes_max=changes_max):
            assert subscriber.rows == model.rows
    assert subscriber.told == [change for changes in model.told[began:] for change in changes]


@many
@given(rounds=rounds, asked=asks, timed=st.booleans(), history=st.sampled_from([0, 3]))
def test_what_compaction_took_is_missed_by_no_subscriber(
    app: ps.App, clock: ManualClock, rounds: Rounds, asked: Asked, timed: bool, history: int
) -> None:
    """While deletes are kept."""
    table, model = make_table(app, timed=timed, history=history), Model(asked, timed)
    subscriber = Subscriber(table, asked, strict=False)
    for written, compacted, changes_max in rounds + LAST:
        for write in written:
            store(table, clock, model, write)
        if compacted:
            clock.advance(2)
            compact(app, table)
        if subscriber.catch_up(changes_max=changes_max):
            assert subscriber.rows == model.rows
    anew = Subscriber(table, asked)
    assert anew.catch_up()
    assert anew.rows == model.rows


@many
@given(
    before=st.lists(writes, max_size=15),
    after=st.lists(writes, max_size=15),
    asked=asks,
    timed=st.booleans(),
    compacts=st.booleans(),
)
def test_where_deletes_have_gone_a_subscriber_is_right_or_refused(
    app: ps.App,
    clock: ManualClock,
    before: list[Write],
    after: list[Write],
    asked: Asked,
    timed: bool,
    compacts: bool,
) -> None:
    table, model = make_table(app, timed=timed, history=0, tombstone_ms=0), Model(asked, timed)
    subscriber = Subscriber(table, asked, strict=False)
    for write in before:
        store(table, clock, model, write)
    subscriber.catch_up()
    for write in after:
        store(table, clock, model, write)
    clock.advance(120)
    if compacts:
        compact(app, table)
    told = {row["id"]: asked.seen(row) for row in table.current() if asked.holds(row)}
    with contextlib.suppress(ps.PositionLost) if compacts else contextlib.nullcontext():
        subscriber.catch_up()
        assert subscriber.rows == told
    anew = Subscriber(table, asked)
    assert anew.catch_up()
    assert anew.rows == told
