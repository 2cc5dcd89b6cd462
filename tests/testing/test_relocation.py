"""Declaring an app touches nothing; a test can move a declared app into a log of its own."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

import penstock as ps

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)


def shop(home: Path) -> ps.App:
    app = ps.App("shop", home=home)
    app.topic("views", "page STRING, at TIMESTAMP", event_time="at")
    return app


def test_declaring_a_topic_writes_nothing(home: Path) -> None:
    shop(home)
    assert not home.exists()


def test_the_first_use_creates_every_declared_topic(home: Path) -> None:
    app = shop(home)
    app.topic("carts", "user STRING")
    assert app.topics["views"].append({"page": "/", "at": NOON}).offset == 0
    assert app.log.topics() == ["carts", "views"]
    app.close()


def test_a_topic_declared_after_the_first_use_is_created_too(home: Path) -> None:
    app = shop(home)
    assert app.log.topics() == ["views"]
    app.topic("carts", "user STRING")
    assert app.log.topics() == ["carts", "views"]
    app.close()


def test_a_wrong_declaration_is_refused_where_it_stands(home: Path) -> None:
    app = ps.App("shop", home=home)
    with pytest.raises(ps.BadSchema):
        app.topic("views", "page STRING, at STRING", event_time="at")


def test_a_topic_that_cannot_become_what_is_declared_is_refused_at_every_use(home: Path) -> None:
    shop(home).topics["views"].append({"page": "/", "at": NOON})
    app = ps.App("shop", home=home)
    changed = app.topic("views", "page BIGINT, at TIMESTAMP", event_time="at")
    for _ in range(2):
        with pytest.raises(ps.IncompatibleSchema):
            changed.append({"page": 7, "at": NOON})


def test_a_relocated_app_and_its_topics_live_elsewhere_and_come_back(home: Path, tmp_path: Path) -> None:
    app = shop(home)
    views = app.topics["views"]
    views.append({"page": "/mine", "at": NOON})
    elsewhere = tmp_path / "elsewhere"
    with app.relocated(ps.open_log(elsewhere), elsewhere):
        views.append({"page": "/test", "at": NOON})
        assert [row["page"] for row in views.rows()] == ["/test"]
        assert app.home == elsewhere
    assert [row["page"] for row in views.rows()] == ["/mine"]
    assert app.home == home
    app.close()


def test_a_relocated_app_keeps_its_views_away_from_its_real_store(tmp_path: Path) -> None:
    real = tmp_path / "real.db"
    app = ps.App("shop", home=tmp_path / "home", views=str(real))
    elsewhere = tmp_path / "elsewhere"
    with app.relocated(ps.open_log(elsewhere), elsewhere):
        app.store.progress("anything")
    assert not real.exists()
    assert app.views == str(real)
