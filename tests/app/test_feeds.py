"""Feeds: the rows as they are, then every change, for subscribers that come and go. Without Spark."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections import deque
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.app.feeds import Asked, Model, Subscriber, Write, compact, make_table, store

import penstock as ps
from penstock.app.table import AppTable
from penstock.clock import ManualClock
from penstock.follow.token import FeedPosition
from penstock.log.embedded import EmbeddedLog

many = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
        Asked({"id": 1}, lambda row: row["id"] == 1),
        Asked(lambda row: row["city"] != "Basel", lambda row: row["city"] != "Basel"),
    ]
)
rounds = st.lists(  # what is written, whether it is compacted, after how many changes the subscriber leaves
    st.tuples(st.lists(writes, max_size=6), st.booleans(), st.none() | st.integers(0, 3)), max_size=5
)
Rounds = list[tuple[list[Write], bool, int | None]]
LAST: Rounds = [([], False, None)]


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
@given(old=st.lists(writes, max_size=8), rounds=rounds, asked=asks, timed=st.booleans())
def test_within_the_history_every_change_is_told_also_beside_compaction(
    app: ps.App, clock: ManualClock, old: list[Write], rounds: Rounds, asked: Asked, timed: bool
) -> None:
    table = make_table(app, timed=timed, history="1 day", tombstone_ms=30 * 86_400_000)
    model, subscriber = Model(asked, timed), Subscriber(table, asked)
    for write in old:
        store(table, clock, model, write)
    clock.advance(2 * 86_400)
    subscriber.catch_up()
    for written, compacted, changes_max in rounds + LAST:
        for write in written:
            store(table, clock, model, write)
        if compacted:
            compact(app, table)
        if subscriber.catch_up(changes_max=changes_max):
            assert subscriber.rows == model.rows
    assert subscriber.told == [change for changes in model.told[len(old) :] for change in changes]


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


# ---- one case at a time ----------------------------------------------------------------------------


def _users(app: ps.App, **options: Any) -> AppTable:
    table = app.table("users", "id BIGINT, name STRING, city STRING", key="id", durability="os", **options)
    for key, (name, city) in enumerate([("Ann", "Bern"), ("Bob", "Basel"), ("Cem", None)]):
        table.upsert({"id": key, "name": name, "city": city})
    return table


def _told(feed: ps.Feed) -> list[tuple[str, Any, Any]]:
    return [(change.op, change.row, change.before) for change in feed]


def _position(feed: ps.Feed) -> str:
    """Where it is at its end."""
    deque(feed, maxlen=0)
    assert feed.position is not None
    return feed.position


def test_the_rows_come_first_then_that_they_are_complete(app: ps.App) -> None:
    feed = _users(app).subscribe(where={"city": "Bern"}, columns=["name"], follow=False)
    assert feed.position is None
    row, current = feed
    assert row == ps.Change("insert", {"id": 0}, {"name": "Ann"}, None, None)
    assert (current.op, current.position) == ("current", feed.position)
    assert feed.is_current


def test_rows_enter_and_leave_as_they_begin_and_cease_to_match(app: ps.App) -> None:
    table = _users(app)
    since = _position(table.subscribe(where={"city": "Bern"}, columns=["id", "name"], follow=False))
    table.upsert({"id": 1, "name": "Bob", "city": "Bern"})
    table.upsert({"id": 1, "name": "Bobby", "city": "Bern"})
    table.upsert({"id": 0, "name": "Ann", "city": "Thun"})
    table.delete({"id": 1})
    table.delete({"id": 2})
    feed = table.subscribe(where={"city": "Bern"}, columns=["id", "name"], after=since, follow=False)
    assert _told(feed)[:-1] == [
        ("insert", {"id": 1, "name": "Bob"}, None),
        ("update", {"id": 1, "name": "Bobby"}, {"id": 1, "name": "Bob"}),
        ("delete", {"id": 0}, {"id": 0, "name": "Ann"}),
        ("delete", {"id": 1}, {"id": 1, "name": "Bobby"}),
    ]


def test_an_update_that_shows_nothing_new_says_nothing(app: ps.App) -> None:
    table = app.table("readings", "id BIGINT, value DOUBLE, note STRING", key="id", durability="os")
    table.upsert({"id": 1, "value": float("nan"), "note": "a"})
    since = _position(table.subscribe(columns=["value"], follow=False))
    table.upsert({"id": 1, "value": float("nan"), "note": "b"})
    feed = table.subscribe(columns=["value"], after=since, follow=False)
    assert [change.op for change in feed] == ["current"]
    assert feed.position != since


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ({"city": None}, [2]),
        ({"city": "Bern", "id": 1}, []),
        ((ps.col("id") > 0) & ~ps.col("city").is_null(), [1]),
        (lambda row: row["name"] < "C", [0, 1]),
    ],
    ids=["null", "both", "expression", "function"],
)
def test_rows_can_be_chosen_in_several_ways(app: ps.App, where: Any, ids: list[int]) -> None:
    feed = _users(app).subscribe(where=where, follow=False)
    assert [change.key["id"] for change in feed if change.op == "insert"] == ids


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"where": {"town": "Bern"}}, 'no column "town"'),
        ({"where": {"id": "one"}}, "is no BIGINT"),
        ({"where": {"id": 1.5}}, "is no BIGINT"),
        ({"where": "city"}, "is no condition"),
        ({"where": ps.col("id")}, "no condition"),
        ({"where": ps.step("x").id > 1}, "for patterns"),
        ({"columns": ["nam"]}, 'no column "nam"'),
        ({"after": "yesterday"}, "no position"),
        ({"after": "AAAA"}, "no position"),
    ],
    ids=str,
)
def test_what_cannot_be_subscribed_to_is_refused(app: ps.App, options: dict[str, Any], said: str) -> None:
    table = _users(app)
    with pytest.raises(ps.BadInput, match=said):
        table.subscribe(**options)


def test_only_tables_and_views_have_feeds(app: ps.App) -> None:
    app.topic("clicks", "page STRING")
    with pytest.raises(ps.BadOption, match="no table and no view"):
        app.subscribe("clicks")
    with pytest.raises(ps.UnknownView, match="users"):
        _users(app)
        app.subscribe("usrs")


def test_none_and_the_text_none_are_two_conditions(app: ps.App) -> None:
    table = _users(app)
    since = _position(table.subscribe(where={"city": None}, follow=False))
    with pytest.raises(ps.BadOption, match="another where= or columns="):
        table.subscribe(where={"city": "None"}, after=since)


def test_a_position_of_another_condition_is_refused(app: ps.App) -> None:
    table = _users(app)
    since = _position(table.subscribe(where={"city": "Bern"}, follow=False))
    with pytest.raises(ps.BadOption, match="another where= or columns="):
        table.subscribe(where={"city": "Basel"}, after=since)
    with pytest.raises(ps.BadOption, match="another where= or columns="):
        table.subscribe(where={"city": "Bern"}, columns=["id"], after=since)


def test_a_position_in_a_topic_that_was_deleted_is_refused(app: ps.App) -> None:
    since = _position(_users(app).subscribe(follow=False))
    app.log.delete_topic("users")
    app.topics.clear()
    with pytest.raises(ps.PositionLost, match="deleted"):
        _users(app).subscribe(after=since)


def test_a_position_that_the_log_does_not_reach_is_refused(app: ps.App) -> None:
    table = _users(app)
    position = FeedPosition.decode(_position(table.subscribe(follow=False)))
    ahead = replace(position, ends=(position.ends[0] + 1,)).encode()
    with pytest.raises(ps.PositionLost, match="does not reach"):
        table.subscribe(after=ahead)


def test_a_delete_that_compaction_has_taken_refuses_the_position(app: ps.App, clock: ManualClock) -> None:
    table = _users(app, history=0, tombstone_ms=3_600_000)
    since = _position(table.subscribe(follow=False))
    table.delete({"id": 0})
    clock.advance(3_000)
    compact(app, table)
    assert ("delete", {"id": 0}) in [(c.op, c.row) for c in table.subscribe(after=since, follow=False)]
    clock.advance(3_000)
    compact(app, table)
    with pytest.raises(ps.PositionLost, match="deletes"):
        list(table.subscribe(after=since, follow=False))
    assert [change.key for change in table.subscribe(follow=False)] == [{"id": 1}, {"id": 2}, {}]


def test_who_was_there_lately_is_not_refused(app: ps.App, clock: ManualClock) -> None:
    """Nothing was written for long, so the time in the position decides, not that of the last record."""
    table = _users(app, history=0, tombstone_ms=3_600_000)
    clock.advance(10 * 3_600)
    since = _position(table.subscribe(follow=False))
    for name in ("Anna", "Anne"):
        clock.advance(60)
        table.upsert({"id": 0, "name": name, "city": "Bern"})
    clock.advance(60)
    compact(app, table)
    feed = table.subscribe(after=since, follow=False)
    assert [(c.op, c.row.get("name")) for c in feed] == [("insert", "Anne"), ("current", None)]


def test_only_the_wanted_rows_are_held(app: ps.App) -> None:
    table = app.table("users", "id BIGINT, city STRING", key="id", durability="os")
    table.upsert([{"id": key, "city": "Bern" if key < 3 else "Basel"} for key in range(2_000)])
    feed = table.subscribe(where={"city": "Bern"}, follow=False)
    assert len(list(feed)) == 4
    assert len(feed._reading.rows) == 3


def test_of_a_table_with_event_times_only_wanted_keys_are_held_where_the_key_decides(app: ps.App) -> None:
    table = make_table(app, timed=True)
    table.upsert([{"id": key, "name": "a", "city": "Bern", "at": None} for key in range(2_000)])
    feed = table.subscribe(where=ps.col("id") < 3, follow=False)
    assert len(list(feed)) == 4
    assert len(feed._reading.rows) == 3


@pytest.mark.parametrize("back", [False, True], ids=["anew", "after a position"])
def test_a_feed_that_is_closed_on_the_way_does_not_call_itself_current(app: ps.App, back: bool) -> None:
    closing: list[ps.Feed] = []

    def where(row: dict[str, Any]) -> bool:
        for feed in closing:
            feed.close()
        return False

    table = app.table("users", "id BIGINT", key="id", durability="os")
    since = _position(table.subscribe(where=where, follow=False))
    table.upsert([{"id": key} for key in range(5)])
    closing.append(table.subscribe(where=where, after=since if back else None))
    assert [change.op for change in closing[0]] == []
    assert not closing[0].is_current
    assert closing[0].position == (since if back else None)


def test_a_feed_that_is_dropped_ends_at_once_and_holds_nothing_of_the_log_open(app: ps.App) -> None:
    """A cycle would be cleared at any moment, also by a thread that holds a lock of the log."""
    table = _users(app)
    feed = table.subscribe(after=_position(table.subscribe(follow=False)))
    table.upsert([{"id": 8, "name": "Dan", "city": None}, {"id": 9, "name": "Eva", "city": None}])
    assert next(feed).op == "current"
    assert next(feed).key == {"id": 8}
    assert isinstance(app.log.port, EmbeddedLog)
    assert len(app.log.port._topic("users")._readers[0]) == 1  # given back
    dropped = weakref.ref(feed)
    gc.disable()
    try:
        del feed
        assert dropped() is None
    finally:
        gc.enable()
