"""The examples give the numbers that they promise."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tests.examples.conftest import Again

from examples import (
    backlog,
    devices,
    hopping_windows,
    page_views,
    profiles,
    response_times,
    tumbling_windows,
    watermark,
)
from penstock.testing.plugin import Flow

DAY = "2026-11-01"


def test_page_views_are_counted_in_the_minute_in_which_they_happened(
    flow: Flow, again_on_kafka: Again
) -> None:
    with flow(page_views.app, day=DAY) as run:
        at = run.time
        for user, page, seen in [
            (1, "/", "10:00:05"),
            (2, "/", "10:00:58"),
            (2, "/cart", "10:01:02"),
            (1, "/", "10:00:59"),  # three seconds out of order
            (1, "/", "10:01:30"),
            (3, "/", "10:00:40"),  # by now that minute is over
        ]:
            run.feed(page_views.page_views, {"user_id": user, "page": page, "at": seen})
        assert run.values("views_per_minute", "page", "window_start", "views") == [
            ("/", at("10:00"), 3),
            ("/", at("10:01"), 1),
            ("/cart", at("10:01"), 1),
        ]
        (late,) = run.late("views_per_minute")
        assert (late["row"]["user_id"], late["window_start"]) == (3, at("10:00"))
        run.verify()
        again_on_kafka(run, page_views)


def test_the_average_response_time_of_an_endpoint_is_that_of_its_last_hour(
    flow: Flow, again_on_kafka: Again
) -> None:
    with flow(response_times.app, day=DAY) as run:
        at = run.time
        for endpoint, took_ms, answered in [
            ("/pay", 900.0, "09:00"),
            ("/pay", 100.0, "09:45"),
            ("/list", 10.0, "09:50"),
            ("/pay", 200.0, "10:00"),  # the one at 09:00 has just left the hour
            ("/pay", 300.0, "10:30"),
        ]:
            run.feed(response_times.requests, {"endpoint": endpoint, "took_ms": took_ms, "at": answered})
        run.advance("10 minutes")
        assert sorted(run.values("last_hours", "endpoint", "at", "requests", "mean_ms")) == [
            ("/list", at("09:50"), 1, 10.0),
            ("/pay", at("09:00"), 1, 900.0),
            ("/pay", at("09:45"), 2, 500.0),
            ("/pay", at("10:00"), 2, 150.0),
            ("/pay", at("10:30"), 3, 200.0),
        ]
        assert run.values("response_times_now", "endpoint", "requests", "mean_ms") == [
            ("/list", 1, 10.0),
            ("/pay", 3, 200.0),
        ]
        run.verify()
        again_on_kafka(run, response_times)


def test_five_events_in_tumbling_windows_are_two_two_and_one(flow: Flow) -> None:
    with flow(tumbling_windows.app, day=DAY) as run:
        for moment in ("10:00:15", "10:00:45", "10:01:10", "10:01:50", "10:02:20"):
            run.feed(tumbling_windows.ticks, {"at": moment})
        assert run.values("ticks_per_minute", "window_start", "ticks") == [
            (run.time("10:00"), 2),
            (run.time("10:01"), 2),
            (run.time("10:02"), 1),
        ]
        run.verify()


def test_three_events_in_hopping_windows_are_one_two_two_and_one(flow: Flow) -> None:
    with flow(hopping_windows.app, day=DAY) as run:
        for moment in ("10:00:15", "10:00:45", "10:01:10"):
            run.feed(hopping_windows.ticks, {"at": moment})
        assert run.values("ticks_per_last_minute", "window_start", "window_end", "ticks") == [
            (run.time("09:59:30"), run.time("10:00:30"), 1),
            (run.time("10:00:00"), run.time("10:01:00"), 2),
            (run.time("10:00:30"), run.time("10:01:30"), 2),
            (run.time("10:01:00"), run.time("10:02:00"), 1),
        ]
        run.verify()


def test_an_event_of_10_00_08_is_late_after_the_watermark_of_10_00_10(
    flow: Flow, again_on_kafka: Again
) -> None:
    topic = watermark.measurements
    with flow(watermark.app, day=DAY) as run:
        at = run.time
        run.feed(topic, {"sensor": "a", "at": "10:00:00"}, {"sensor": "a", "at": "10:00:05"})
        topic.watermark(at("10:00:10"))
        run.feed(topic, {"sensor": "b", "at": "10:00:08"}, {"sensor": "a", "at": "10:00:12"})
        topic.watermark(at("10:00:15"))
        assert run.values("measurements_per_10_seconds", "window_start", "measured", "final") == [
            (at("10:00:00"), 2, True),
            (at("10:00:10"), 1, False),
        ]
        (late,) = run.late("measurements_per_10_seconds")
        assert (late["row"]["at"], late["watermark"]) == (at("10:00:08"), at("10:00:10"))
        run.verify()
        again_on_kafka(run, watermark)


def test_a_backlog_is_a_spike_in_processing_time_and_none_in_event_time(flow: Flow) -> None:
    with flow(backlog.app, day=DAY) as run:
        at = run.time
        placed = [{"order_id": n, "at": f"10:0{n // 6}:{n % 6 * 10:02}"} for n in range(30)]
        run.feed(backlog.orders, *placed[:6])
        run.process()
        run.feed(backlog.orders, *placed[6:])  # nobody processes
        run.wait_until("10:05:30")
        run.process()
        assert run.values("orders_as_processed", "window_start", "orders") == [
            (at("10:00"), 6),
            (at("10:05"), 24),
        ]
        assert run.values("orders_as_placed", "window_start", "orders", "per_second") == [
            (at(f"10:0{minute}"), 6, 0.1) for minute in range(5)
        ]
        assert run.late("orders_as_placed") == []
        run.verify("orders_as_placed")


def test_a_device_with_a_wrong_clock_that_was_offline_is_counted_when_it_measured(
    flow: Flow, again_on_kafka: Again
) -> None:
    with flow(devices.app, day=DAY) as run:
        at = run.time
        for hour in range(6, 13):
            moment = f"{hour:02}:00"
            reading = {"device": "roof", "celsius": 5.0, "occurred_at": moment, "sent_at": moment}
            run.feed(devices.readings, reading, arriving=moment)
        # Back at 12:30 after a morning offline, with a clock that is an hour fast.
        back = {"device": "cellar", "sent_at": "13:30"}
        run.feed(
            devices.readings,
            {**back, "celsius": 8.0, "occurred_at": "07:10"},
            {**back, "celsius": 10.0, "occurred_at": "07:50"},
            {**back, "celsius": 99.0, "occurred_at": "23:00"},  # sent before it was taken
            arriving="12:30",
        )
        cellar = run.view("readings_per_hour", where={"device": "cellar"})
        assert [(row["window_start"], row["readings"], row["celsius"]) for row in cellar] == [
            (at("06:00"), 2, 9.0)
        ]
        assert cellar[0]["revision"] == 2
        assert [(late["row"]["celsius"], late["reason"]) for late in run.late("readings_per_hour")] == [
            (99.0, "no usable event time")
        ]
        run.verify()
        again_on_kafka(run, devices)


def test_a_profile_is_what_its_newest_change_says(flow: Flow, again_on_kafka: Again) -> None:
    topic = profiles.profile_updates
    with flow(profiles.app, day=DAY) as run:
        run.feed(
            topic,
            {"user_id": 1, "name": "Ann", "country": "NO", "at": "10:00"},
            {"user_id": 2, "name": "Bob", "country": "PE", "at": "10:01"},
            {"user_id": 1, "name": "Ann", "country": "IS", "at": "10:05"},
        )
        assert run.values("profiles", "user_id", "country") == [(1, "IS"), (2, "PE")]
        run.feed(topic, {"user_id": 1, "name": "Ann", "country": "SE", "at": "10:03"})  # overtaken
        run.feed(topic, {"user_id": 2, "name": "Bo", "country": "PE", "at": "10:06"})
        assert run.values("profiles", "user_id", "name", "country") == [(1, "Ann", "IS"), (2, "Bo", "PE")]
        run.verify()
        again_on_kafka(run, profiles)


def test_all_examples_can_share_one_log() -> None:
    folder = Path(str(page_views.__file__)).parent
    names = [
        (name, file.stem)
        for file in sorted(folder.glob("*.py"))
        for app in [getattr(import_module(f"examples.{file.stem}"), "app", None)]
        if app is not None  # one is a program of its own
        for name in (*app.topics, *app.definitions)
    ]
    assert len({name for name, _ in names}) == len(names)
