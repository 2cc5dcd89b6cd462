"""The sentence that a page begins with, and what it lists as needing somebody."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.gateway.counting import Counting, publish
from tests.gateway.stage import declare
from tests.waiting import wait_until

import penstock as ps
from penstock.app import failures, proofs, reading
from penstock.app.failures import Failure
from penstock.app.published import Starting, last
from penstock.app.verify import Verified
from penstock.gateway.pages import batches, health, watcher
from penstock.gateway.pages.look import GroupLook, Look
from penstock.gateway.pages.watcher import Watcher
from penstock.log.port import GroupInfo, to_us


@pytest.fixture
def app(home: Path) -> Iterator[ps.App]:
    made = declare(home)
    yield made
    made.close()


def _said(look: Look) -> str:
    return "".join(piece.text for piece in health.overview(look))


def _counted(app: ps.App) -> list[Counting]:
    """Both views, current, told by a run."""
    now = datetime.now(UTC)
    app.log.topic("page_views").append({"user_id": 1, "page": "/", "at": now})
    app.log.topic("clicks").append({"ad": "a", "at": now})
    views = [
        Counting(app, "per_5s", "page_views", "page", timedelta(seconds=5)),
        Counting(app, "per_ad", "clicks", "ad", timedelta(minutes=1)),
    ]
    for view in views:
        view.step()
    publish(app, views, began=0.0)
    return views


def test_an_app_that_nobody_runs_says_so(app: ps.App) -> None:
    look = Watcher(app).look()
    assert _said(look).startswith("Nobody runs it")
    assert [need.kind for need in health.needs(look)] == ["stopped"]


@pytest.mark.parametrize(
    "operator, standing", [("tumbling", "waiting"), ("pattern", "waiting"), ("join_tables", "live")]
)
def test_only_what_the_watermark_can_hold_back_waits_for_it(
    app: ps.App, operator: str, standing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, _ = _counted(app)
    publish(app, [view], began=0.0, operator=operator)
    monkeypatch.setattr(watcher, "QUIET_S", 0)
    assert Watcher(app).look().views[view.view].standing == standing


def test_what_a_query_shows_to_kafka_of_its_place_is_no_group_that_needs_somebody(app: ps.App) -> None:
    app.log.topic("clicks").append({"ad": "a", "at": datetime.now(UTC)})
    info = GroupInfo("flow.shop.per_ad", "clicks", (), ())
    look = replace(Watcher(app).look(), groups=(GroupLook(info, 9, 300.0, ()),))
    assert "lag" not in [need.kind for need in health.needs(look)]
    other = replace(look, groups=(GroupLook(replace(info, group="mailer"), 9, 300.0, ()),))
    assert "lag" in [need.kind for need in health.needs(other)]


def test_nobody_but_the_first_waits_for_a_log_that_answers_slowly(
    app: ps.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = Watcher(app)
    first = watcher.look()
    asked, answer = threading.Event(), threading.Event()
    slow = watcher._look

    def slowly() -> Look:
        asked.set()
        assert answer.wait(60)
        return slow()

    monkeypatch.setattr(watcher, "_look", slowly)
    looking = threading.Thread(target=lambda: watcher.look(age_s=0.0))
    looking.start()
    assert asked.wait(60)
    assert watcher.look(age_s=0.0) is first
    answer.set()
    looking.join(60)
    assert watcher.look() is not first


def test_a_slow_log_is_looked_at_by_the_watcher_alone(app: ps.App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.gateway.pages.watcher._SLOW_S", 0.0)
    watcher = Watcher(app)
    first = watcher.look()
    watcher.start()
    try:
        wait_until(lambda: watcher.look(age_s=0.0) is not first, what="its look", timeout_s=60)
    finally:
        watcher.close()
    assert {thread.name for thread in threading.enumerate()}.isdisjoint({"watcher"})


def test_an_app_that_spark_is_still_starting_for_says_so(app: ps.App) -> None:
    with Starting(app):
        wait_until(lambda: last(app) is not None, what="the run to say so")
        look = Watcher(app).look()
    assert _said(look).startswith("It is coming up.")
    assert health.needs(look) == ()


def test_all_is_well_when_everything_is_read(app: ps.App) -> None:
    _counted(app)
    look = Watcher(app).look()
    assert _said(look).startswith("All 2 views and streams are current.")
    assert health.needs(look) == ()


def test_a_failed_view_is_named_with_the_reason(app: ps.App) -> None:
    _counted(app)
    failures.record(app, ["per_5s"], Failure("per_5s", "no such luck", 1, 5, given_up=True, stored=0))
    look = Watcher(app).look()
    assert _said(look) == "1 of 2 views are current. per_5s failed and was given up: no such luck"
    assert [(need.kind, need.about) for need in health.needs(look)] == [("failed", "per_5s")]


def test_a_view_that_is_not_what_the_log_says_needs_somebody(app: ps.App) -> None:
    _counted(app)
    proofs.record(app, Verified("per_ad", "different", differing=3, batch=0), now_us=1)
    (need,) = health.needs(Watcher(app).look())
    assert (need.kind, need.colour) == ("differs", "fail")
    assert need.why == "3 rows differ, as of batch 0."


def test_late_rows_are_told_and_keep_nobody_awake(app: ps.App) -> None:
    views = _counted(app)
    app.log.topic("page_views").append(
        {"user_id": 1, "page": "/", "at": datetime.now(UTC) - timedelta(minutes=1)}
    )
    views[0].step()
    (need,) = health.needs(Watcher(app).look())
    assert (need.text, need.blocks) == ("1 row came too late for per_5s", False)


def test_late_rows_of_the_last_hour_are_all_counted(app: ps.App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of batches that are no longer kept for the page; those of an hour ago are not."""
    monkeypatch.setattr(batches, "KEPT", 2)
    view = _counted(app)[0]
    for _ in range(5):
        at = datetime.now(UTC) - timedelta(minutes=1)
        app.log.topic("page_views").append({"user_id": 1, "page": "/", "at": at})
        view.step()
    assert Watcher(app).look().late_hour == 5
    later_us = to_us(datetime.now(UTC) + timedelta(seconds=1))
    assert reading.late_since(app, "per_5s", later_us) == 0


def test_rates_come_from_what_was_appended_between_looks(app: ps.App) -> None:
    watcher = Watcher(app)
    assert watcher.look().events.now == 0
    app.log.topic("clicks").append([{"ad": "a", "at": datetime.now(UTC)}] * 10)
    look = watcher.look(age_s=0.0)
    assert look.topics["clicks"].rate.now > 0
    assert look.events.now == pytest.approx(look.topics["clicks"].rate.now)


def test_looking_goes_on_after_a_look_that_failed(app: ps.App, caplog: pytest.LogCaptureFixture) -> None:
    looks: list[Look] = []

    def fails_once(look: Look) -> None:
        looks.append(look)
        if len(looks) == 1:
            raise RuntimeError("an alert that cannot be told")

    watcher = Watcher(app, on_look=fails_once)
    watcher.start()
    wait_until(lambda: len(looks) >= 2, timeout_s=60, what="another look")
    watcher.close()
    assert "an alert that cannot be told" in caplog.text


def test_a_view_whose_batches_take_long_reads_all_the_time() -> None:
    now_us = 1_000_000_000
    known = batches.Batches("visits")
    stored_us = now_us - 20_000_000
    known.kept.append(batches.Batch(0, 1, stored_us, 28_000, 5, 0, 40_000, None, ("page_views",), None))
    assert known.rate(now_us) == 700
    assert known.rate(now_us + 60_000_000) == 0


def test_many_views_that_are_behind_are_one_line_at_a_glance(app: ps.App) -> None:
    _counted(app)
    look = Watcher(app).look()
    (like, *_) = look.views.values()
    slow = {
        f"v{n}": replace(like, name=f"v{n}", standing="behind", lag_s=float(n), lag_records=10 * n)
        for n in range(1, 5)
    }
    two = dict(list(slow.items())[:2])
    assert [need.about for need in health.at_a_glance(replace(look, views=two))] == ["v1", "v2"]
    (need,) = health.at_a_glance(replace(look, views=slow))
    assert (need.text, need.href) == ("4 of 4 views are behind", "/views")
    assert need.why == "v4 the most: 4.0 s, 40 records."
    assert len(health.needs(replace(look, views=slow))) == 4  # on the page of alerts each has its own line
