"""The examples that relate events to each other give the rows that they promise."""

from __future__ import annotations

from tests.examples.conftest import Again

from examples import (
    failed_logins,
    foreign_purchase,
    impressions,
    order_names,
    profile_ages,
    property_searches,
    search_clicks,
    timeline,
    two_actions,
)
from penstock.testing.flow import Run
from penstock.testing.plugin import Flow

DAY = "2026-11-01"


def test_an_impression_meets_its_click_at_10_02_and_another_is_alone_at_10_15(
    flow: Flow, again_on_kafka: Again
) -> None:
    with flow(impressions.app, day=DAY) as run:
        at = run.time
        shown(run, 1, 123, "A", "10:00")
        clicked(run, 123, "A", "10:02")
        shown(run, 2, 456, "B", "10:05")
        columns = ("ad_id", "user", "shown_at", "clicked_at", "joined_at")
        match = (123, "A", at("10:00"), at("10:02"), at("10:02"))
        assert run.values("outcomes", *columns) == [match]
        run.advance("9 minutes")
        assert run.values("outcomes", *columns) == [match]  # there may be a click yet
        run.advance("5 minutes")
        assert run.values("outcomes", *columns) == [match, (456, "B", at("10:05"), None, at("10:15"))]
        run.verify()
        again_on_kafka(run, impressions)


def test_a_click_that_is_late_is_kept_aside(flow: Flow) -> None:
    with flow(impressions.app, day=DAY) as run:
        shown(run, 1, 123, "A", "10:00")
        shown(run, 2, 123, "B", "10:05")
        clicked(run, 123, "A", "10:04:30")  # half a minute out of order
        clicked(run, 123, "A", "10:03")
        assert run.values("outcomes", "clicked_at") == [(run.time("10:04:30"),)]
        (late,) = run.late("outcomes")
        assert (late["topic"], late["row"]["clicked_at"]) == ("clicks", run.time("10:03"))
        assert late["watermark"] == run.time("10:04")
        run.verify()


def test_the_click_through_rate_counts_each_impression_once(flow: Flow) -> None:
    with flow(impressions.app, day=DAY) as run:
        shown(run, 1, 123, "A", "10:00")
        shown(run, 2, 123, "B", "10:01")
        clicked(run, 123, "A", "10:02")
        clicked(run, 123, "A", "10:03")  # once more
        shown(run, 3, 456, "A", "10:04")
        run.advance("20 minutes")
        assert run.values("click_through", "ad_id", "impressions", "clicked", "rate") == [
            (123, 2, 1, 0.5),
            (456, 1, 0, 0.0),
        ]
        run.verify()


def shown(run: Run, impression: int, ad: int, user: str, at: str) -> None:
    row = {"impression_id": impression, "ad_id": ad, "user": user, "shown_at": at}
    run.feed(impressions.impressions, row)


def clicked(run: Run, ad: int, user: str, at: str) -> None:
    run.feed(impressions.clicks, {"ad_id": ad, "user": user, "clicked_at": at})


def test_a_search_meets_the_clicks_of_its_session_or_nobody(flow: Flow) -> None:
    with flow(search_clicks.app, day=DAY) as run:
        for session, query, searched in [
            ("s1", "spark", "09:00"),
            ("s2", "spark", "09:01"),
            ("s1", "pyspark", "09:02"),
        ]:
            run.feed(search_clicks.searches, {"session_id": session, "query": query, "searched_at": searched})
        for session, query, url, at in [
            ("s1", "pyspark", "/docs", "09:03"),
            ("s2", "spark", "/fire", "09:31:01"),  # a second more than half an hour later
            ("s1", "pyspark", "/api", "09:32"),  # exactly half an hour later
        ]:
            row = {"session_id": session, "query": query, "url": url, "clicked_at": at}
            run.feed(search_clicks.result_clicks, row)
        run.advance("1 hour")
        assert sorted(run.values("searches_with_clicks", "session_id", "query", "url"), key=str) == [
            ("s1", "pyspark", "/api"),
            ("s1", "pyspark", "/docs"),
            ("s1", "spark", None),
            ("s2", "spark", None),
        ]
        assert run.values("queries", "query", "clicks", "fruitless") == [("pyspark", 2, 0), ("spark", 0, 2)]
        run.verify()


def test_two_actions_within_half_an_hour_are_a_pair(flow: Flow) -> None:
    with flow(two_actions.app, day=DAY) as run:
        for user, action, at in [
            (1, "look", "10:00"),
            (2, "look", "10:05"),
            (1, "buy", "10:20"),
            (1, "leave", "10:40"),
            (2, "buy", "10:36"),  # out of order, and 31 minutes after looking
        ]:
            run.feed(two_actions.actions, {"user_id": user, "action": action, "at": at})
        found = run.values("pairs", "user_id", "action", "action_next", "joined_at")
        assert sorted(found) == [
            (1, "buy", "leave", run.time("10:40")),
            (1, "look", "buy", run.time("10:20")),
        ]
        assert run.values("followed_by", "action", "action_next", "times") == [
            ("buy", "leave", 1),
            ("look", "buy", 1),
        ]
        run.verify()


def test_three_failed_logins_within_five_minutes_are_an_alarm(flow: Flow, again_on_kafka: Again) -> None:
    with flow(failed_logins.app, day=DAY) as run:
        for user, ok, address, at in [
            ("ann", False, "::1", "10:00:00"),
            ("bob", False, "::9", "10:00:30"),
            ("ann", True, "::1", "10:01:00"),
            ("ann", False, "::2", "10:05:00"),
            ("ann", False, "::1", "10:04:55"),  # out of order, and still between the others
            ("bob", False, "::9", "10:05:10"),
            ("bob", False, "::9", "10:05:31"),  # five minutes and a second after his first
            ("ann", False, "::3", "10:05:40"),  # the fourth: counting began anew
        ]:
            run.feed(failed_logins.logins, {"user": user, "ok": ok, "address": address, "at": at})
        run.advance("10 minutes")
        assert run.stream("break_ins") == [
            {
                "user": "ann",
                "since": run.time("10:00"),
                "addresses": ["::1", "::1", "::2"],
                "matched_at": run.time("10:05"),
            }
        ]
        run.verify()
        again_on_kafka(run, failed_logins)


def test_a_purchase_in_another_country_than_the_login_is_suspicious(flow: Flow) -> None:
    with flow(foreign_purchase.app, day=DAY) as run:
        login = {"user_id": 1, "country": "US", "at": "10:00"}
        purchases = [
            {"user_id": 2, "country": "CN", "amount": 5.0, "at": "10:01"},  # somebody else
            {"user_id": 1, "country": "US", "amount": 7.0, "at": "10:02"},
            {"user_id": 1, "country": "CN", "amount": 900.0, "at": "10:05"},  # exactly on the limit
        ]
        run.feed(foreign_purchase.logins, login, {**login, "user_id": 3})
        run.feed(foreign_purchase.purchases, *purchases)
        run.feed(foreign_purchase.purchases, {**purchases[0], "user_id": 3, "at": "10:05:01"})
        run.advance("1 minute")
        columns = ("user_id", "logged_in_from", "bought_from", "amount", "matched_at")
        assert run.values("suspicious_purchases", *columns) == [(1, "US", "CN", 900.0, run.time("10:05"))]
        run.verify()


def test_a_purchase_that_arrives_before_its_login_is_found(flow: Flow) -> None:
    with flow(foreign_purchase.app, day=DAY) as run:
        bought = {"user_id": 1, "country": "CN", "amount": 900.0, "at": "10:00:04"}
        run.feed(foreign_purchase.purchases, bought)
        run.feed(foreign_purchase.logins, {"user_id": 1, "country": "US", "at": "10:00:00"})
        run.advance("1 minute")
        assert run.values("suspicious_purchases", "user_id", "matched_at") == [(1, run.time("10:00:04"))]
        run.verify()


def test_an_offer_is_reported_to_the_searches_that_are_saved_when_it_comes(
    flow: Flow, again_on_kafka: Again
) -> None:
    saved = property_searches.saved_searches
    with flow(property_searches.app, day=DAY) as run:
        offer(run, 1, "House with a garden", 500, "09:00")
        save(run, "ann", "garden price:<600", "09:30")
        save(run, "bob", 'title:"sunny flat" OR loft*', "09:31")
        offer(run, 2, "Garden flat", 550, "10:00")
        offer(run, 3, "Lofts by the lake", 900, "10:01")
        assert found(run) == {(2, "ann", 0), (3, "bob", 1)}
        save(run, "ann", "garden lake", "10:30")  # another version of the same search
        saved.delete({"id": "bob"})
        offer(run, 4, "Loft with a garden", 550, "11:00")
        offer(run, 5, "Garden by the lake", 800, "11:01")
        assert found(run) == {(2, "ann", 0), (3, "bob", 1), (5, "ann", 2)}
        run.verify()
        again_on_kafka(run, property_searches)


def test_a_search_that_cannot_be_read_is_told_and_the_others_go_on(flow: Flow) -> None:
    with flow(property_searches.app, day=DAY) as run:
        save(run, "ann", "garden", "09:00")
        save(run, "bob", "(garden", "09:01")
        save(run, "eve", "pryce:5", "09:02")
        offer(run, 1, "House with a garden", 500, "10:00")
        assert found(run) == {(1, "ann", 0)}
        late = sorted(run.late("alerts"), key=lambda each: str(each["offset"]))
        assert [(each["topic"], each["row"]["id"]) for each in late] == [
            ("saved_searches", "bob"),
            ("saved_searches", "eve"),
        ]
        assert '"(" is not closed' in late[0]["reason"]
        assert 'did you mean "price"?' in late[1]["reason"]
        save(run, "bob", "(garden)", "10:30")  # mended
        offer(run, 2, "Another garden", 500, "11:00")
        assert found(run) == {(1, "ann", 0), (2, "ann", 0), (2, "bob", 3)}
        run.verify()


def offer(run: Run, number: int, title: str, price: int, at: str) -> None:
    row = {"offer_id": number, "title": title, "description": "", "price": price, "at": at}
    run.feed(property_searches.offers, row)


def save(run: Run, owner: str, query: str, arriving: str) -> None:
    row = {"id": owner, "owner": owner, "query": query}
    run.feed(property_searches.saved_searches, row, arriving=arriving)


def found(run: Run) -> set[tuple[int, str, int]]:
    return set(run.values("alerts", "offer_id", "query_id", "query_offset"))


def test_a_click_meets_the_age_of_its_own_time(flow: Flow, again_on_kafka: Again) -> None:
    with flow(profile_ages.app, day=DAY) as run:
        run.feed(profile_ages.profiles, {"user_id": 1, "age": 30, "since": None})  # ever since
        run.feed(profile_ages.clicks, {"user_id": 1, "page": "/", "at": "10:00"})
        run.feed(profile_ages.profiles, {"user_id": 1, "age": 31, "since": "10:05"})
        run.feed(profile_ages.clicks, {"user_id": 1, "page": "/cake", "at": "10:05"})
        run.feed(profile_ages.clicks, {"user_id": 1, "page": "/late-to-arrive", "at": "10:04:30"})
        run.feed(profile_ages.clicks, {"user_id": 2, "page": "/unknown", "at": "10:06"})
        run.advance("5 minutes")
        assert sorted(run.values("clicks_with_age", "page", "age", "version_offset"), key=str) == [
            ("/", 30, 0),
            ("/cake", 31, 1),
            ("/late-to-arrive", 30, 0),
            ("/unknown", None, None),
        ]
        run.verify()
        again_on_kafka(run, profile_ages)


def test_a_new_name_changes_all_orders_of_a_user(flow: Flow, again_on_kafka: Again) -> None:
    orders, users = order_names.orders, order_names.users
    with flow(order_names.app, day=DAY) as run:
        users.upsert([{"id": 123, "name": "Alice"}, {"id": 124, "name": "Bob"}])
        orders.upsert([{"order_id": number, "user_id": 123, "amount": 100.0} for number in (1, 2)])
        orders.upsert({"order_id": 3, "user_id": 999, "amount": 5.0})  # of nobody
        columns = ("order_id", "user_id", "name")
        assert run.values("named_orders", *columns) == [(1, 123, "Alice"), (2, 123, "Alice")]
        users.upsert({"id": 123, "name": "Alicia"})
        assert run.values("named_orders", *columns) == [(1, 123, "Alicia"), (2, 123, "Alicia")]
        orders.upsert({"order_id": 2, "user_id": 124, "amount": 100.0})
        orders.delete({"order_id": 1})
        assert run.values("named_orders", *columns) == [(2, 124, "Bob")]
        users.delete({"id": 124})
        assert run.values("named_orders", *columns) == []
        run.verify()
        again_on_kafka(run, order_names)


def test_a_timeline_has_the_posts_of_those_who_are_followed(flow: Flow) -> None:
    posts, follows = timeline.posts, timeline.follows
    with flow(timeline.app, day=DAY) as run:
        follows.upsert([{"follower": who, "author": "ann"} for who in ("bob", "eve")])
        posts.upsert(
            [{"post_id": 1, "author": "ann", "text": "hello"}, {"post_id": 2, "author": "joe", "text": "hi"}]
        )
        columns = ("follower", "post_id", "text")
        assert run.values("timelines", *columns) == [("bob", 1, "hello"), ("eve", 1, "hello")]
        follows.delete({"follower": "bob", "author": "ann"})
        follows.upsert({"follower": "eve", "author": "joe"})
        posts.upsert({"post_id": 1, "author": "ann", "text": "hello all"})
        assert run.values("timelines", *columns) == [("eve", 1, "hello all"), ("eve", 2, "hi")]
        posts.delete({"post_id": 2})
        assert run.values("timelines", *columns) == [("eve", 1, "hello all")]
        run.verify()
