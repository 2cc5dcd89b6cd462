"""What a run tells other processes about itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.test_watching import STATUS
from tests.waiting import wait_until

import penstock as ps
from penstock.app import proofs, published
from penstock.app.explain import Plan
from penstock.app.published import Published
from penstock.app.status import CaptureStatus, Phases
from penstock.app.verify import Verified

PHASES = Phases(7, "2026-11-01T10:02:10.000Z", 240, 140, 12, 20, 90, 18)
PLAN = Plan("per_minute", ("views",), "event", 5_000, ("page",), "page STRING", ({"name": "tumbling"},), True)
TOLD = Published(
    replace(STATUS, captures=(CaptureStatus("db", "live", 3, None),)),
    pid=1,
    phases={"per_minute": (PHASES,)},
    plans={"per_minute": PLAN},
)


def test_another_process_reads_what_was_told(home: Path) -> None:
    app = ps.App("shop", home=home)
    assert published.last(app) is None
    published._write(app, TOLD)
    assert published.last(ps.App("shop", home=home)) == TOLD


@pytest.mark.parametrize("text", ["", "{", "[]", '{"status": {}}', '{"pid": 1}'])
def test_what_another_version_wrote_is_as_if_nothing_was_told(home: Path, text: str) -> None:
    app = ps.App("shop", home=home)
    published._write(app, TOLD)
    published._path(app).write_text(text)
    assert published.last(app) is None


def test_an_app_that_is_starting_says_so_until_it_runs(home: Path) -> None:
    app = ps.App("shop", home=home)
    topic = app.topic("views", "page STRING")
    app.view(key="page", name="per_page")(topic.stream)
    with published.Starting(app):
        wait_until(lambda: published.last(app) is not None, what="the first word", timeout_s=60)
        told = published.last(app)
    assert told is not None
    assert told.is_live(told.status.at_us)
    assert [(query.name, query.state) for query in told.status.queries] == [("per_page", "starting")]


def test_what_feeds_what_is_known_while_an_app_starts_again(home: Path) -> None:
    app = ps.App("shop", home=home)
    topic = app.topic("views", "page STRING")
    app.view(key="page", name="per_minute")(topic.stream)
    published._write(app, TOLD)
    with pytest.raises(RuntimeError), published.Starting(app):
        raise RuntimeError
    told = published.last(app)
    assert told is not None
    assert told.plans == {"per_minute": TOLD.plans["per_minute"]}  # and no definition that is gone


def test_a_run_that_is_silent_or_has_ended_is_not_live() -> None:
    now_us = STATUS.at_us + 1_000_000
    running = replace(TOLD.status.queries[0], state="running")
    told = replace(TOLD, status=replace(TOLD.status, queries=(running,)))
    assert told.is_live(now_us)
    assert not told.is_live(now_us + 10_000_000)
    assert not replace(told, ended=True).is_live(now_us)


def test_a_run_is_live_while_it_starts_a_query_in_silence() -> None:
    starting = replace(TOLD.status.queries[0], state="waits to start again")
    told = replace(TOLD, status=replace(TOLD.status, queries=(starting,)))
    assert told.is_live(STATUS.at_us + 20_000_000)
    assert not told.is_live(STATUS.at_us + 60_000_000)


def test_a_start_that_fails_is_over_at_once(home: Path) -> None:
    app = ps.App("shop", home=home)
    with pytest.raises(RuntimeError), published.Starting(app):
        raise RuntimeError
    told = published.last(app)
    assert told is not None
    assert not told.is_live(told.status.at_us)


def test_the_last_verdict_is_kept(home: Path) -> None:
    app = ps.App("shop", home=home)
    assert proofs.last(app, "per_minute") is None
    proofs.record(app, Verified("per_minute", "different", differing=2), now_us=1)
    told = proofs.record(app, Verified("per_minute", "equal", rows=3, batch=7), now_us=2)
    assert proofs.last(ps.App("shop", home=home), "per_minute") == told
    assert (told.verdict, told.rows, told.at_us) == ("equal", 3, 2)
