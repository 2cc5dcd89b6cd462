"""The app that the tests of run, view, late, verify, rebuild and explain share, and what it is fed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import penstock as ps

APP = """
import penstock as ps

app = ps.App("shop")
views = app.topic("views", "page STRING, at TIMESTAMP", event_time="at", lateness="5 seconds")


@app.view(key=["page", "window"])
def per_minute():
    return ps.aggregate(views.stream(), by="page", window=ps.tumbling("1 minute"), views=ps.count())


@app.stream()
def starts():
    return views.stream().where("page = '/'")


@app.view(key=["page", "window"])
def nothing():
    none = views.stream().where("page = 'no such page'")
    return ps.aggregate(none, by="page", window=ps.tumbling("1 minute"), views=ps.count())
"""

SECONDS = (0, 30, 61, 70, 130)
START = datetime(2026, 11, 1, 10, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def write(folder: Path, text: str = APP) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "shop.py"
    path.write_text(text)
    return path


def append(home: Path, *events: tuple[str, float]) -> None:
    """(page, seconds after the start), one append each."""
    with ps.open_log(home) as log:
        if "views" not in log.topics():
            log.create_topic("views", "page STRING, at TIMESTAMP", event_time="at", lateness="5 seconds")
        for page, seconds in events:
            log.topic("views").append({"page": page, "at": at(seconds)})


def fill(home: Path) -> None:
    """Two minutes and a bit, and one row that is late."""
    append(home, *(("/", seconds) for seconds in SECONDS), ("/late", 1))
