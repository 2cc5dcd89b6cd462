"""Feeds that follow: beside writers in threads and processes, closed, deleted under; and those of views."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import environment
from tests.follow.backends import SYSTEM_DDL, delete, record, upsert
from tests.waiting import wait_until

import penstock as ps
from penstock.app.table import AppTable

SCHEMA = "id BIGINT, n BIGINT, city STRING"


@pytest.fixture
def app(home: Path) -> Iterator[ps.App]:
    found = ps.App("shop", home=home)
    yield found
    found.close()


def _table(app: ps.App, *, partitions: int = 3) -> AppTable:
    return app.table("users", SCHEMA, key="id", partitions=partitions, durability="os")


def _apply(rows: dict[int, dict[str, Any]], change: ps.Change) -> None:
    """What is told fits what is there."""
    key = change.key["id"]
    assert change.before == rows.get(key)
    assert (change.op == "insert") == (key not in rows)
    rows.pop(key, None)
    if change.op != "delete":
        rows[key] = change.row


WRITER = """
import sys
import penstock as ps

first, home = int(sys.argv[1]), sys.argv[2]
app = ps.App("shop", home=home)
users = app.table("users", "id BIGINT, n BIGINT, city STRING", key="id", partitions=3, durability="os")
for n in range(120):
    key = first + n % 7
    if n % 11 == 10:
        users.delete({"id": key})
    else:
        users.upsert({"id": key, "n": n, "city": ("Bern", "Basel")[n % 3 == 0]})
app.close()
"""


def _expected(first: int) -> dict[int, dict[str, Any]]:
    rows: dict[int, dict[str, Any]] = {}
    for n in range(120):
        key = first + n % 7
        rows.pop(key, None)
        if n % 11 != 10 and n % 3:
            rows[key] = {"id": key, "n": n, "city": "Bern"}
    return rows


def test_subscribers_beside_several_processes_miss_and_repeat_nothing(app: ps.App, home: Path) -> None:
    """One follows all the time, one comes back again and again."""
    table = _table(app)
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(first), str(home)], env=environment())
        for first in (100, 200)
    ]
    final = {**_expected(100), **_expected(200)}
    staying: dict[int, dict[str, Any]] = {}
    coming: dict[int, dict[str, Any]] = {}
    position = None
    with table.subscribe(where={"city": "Bern"}, timeout="20 seconds") as feed:
        for change in feed:
            if change.op != "current":
                _apply(staying, change)
            for missed in table.subscribe(where={"city": "Bern"}, after=position, follow=False):
                if missed.op != "current":
                    _apply(coming, missed)
                position = missed.position
            if staying == final:  # the last write of every key shows
                break
    assert [writer.wait(20) for writer in writers] == [0, 0]
    assert staying == coming == final


def test_a_writer_beside_new_subscribers_leaves_no_gap(app: ps.App) -> None:
    table, stop = _table(app, partitions=1), threading.Event()

    def write() -> None:
        n = 0
        while not stop.is_set():
            table.upsert({"id": n % 5, "n": n, "city": "Bern"})
            n += 1
            stop.wait(0.002)  # each subscriber reads all of it

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(15):
            rows: dict[int, dict[str, Any]] = {}
            told = 0
            for change in table.subscribe():
                if change.op != "current":
                    _apply(rows, change)
                    told += change.op == "update"
                if told == 5:
                    break
            # The writer replaces row after row, so what is missing would show as a step of more than one.
            numbers = sorted(row["n"] for row in rows.values())
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    finally:
        stop.set()
        writer.join()


def test_a_feed_can_be_closed_by_another_thread(app: ps.App) -> None:
    feed = _table(app).subscribe()
    assert next(feed).op == "current"
    rest: list[ps.Change] = []
    reader = threading.Thread(target=lambda: rest.extend(feed))
    reader.start()
    feed.close()
    reader.join(20)
    assert (reader.is_alive(), rest) == (False, [])


def test_a_feed_ends_after_so_long_without_a_change(app: ps.App) -> None:
    table = _table(app)
    feed = table.subscribe(where={"city": "Bern"}, timeout=0.05)
    assert next(feed).op == "current"
    table.upsert({"id": 1, "n": 1, "city": "Basel"})
    assert list(feed) == []
    anew = table.subscribe(where={"city": "Bern"}, after=feed.position, timeout=0.05)
    assert [change.op for change in anew] == ["current"]


def test_a_topic_that_is_deleted_ends_its_feeds_with_an_error(app: ps.App) -> None:
    feed = _table(app).subscribe()
    assert next(feed).op == "current"
    app.log.delete_topic("users")
    with pytest.raises(ps.UnknownTopic):
        next(feed)


def test_another_topic_of_the_same_name_ends_them_too(app: ps.App) -> None:
    table = _table(app)
    feed = table.subscribe()
    assert next(feed).op == "current"
    app.log.delete_topic("users")
    app.log.port.create_topic(table.declared)
    table.upsert({"id": 1, "n": 1, "city": "Bern"})
    with pytest.raises(ps.PositionLost, match="another of that name"):
        next(feed)


# ---- views -----------------------------------------------------------------------------------------


def _view(app: ps.App, *records: dict[str, Any], **options: Any) -> ps.Topic:
    """A view that has run, without running it."""

    @app.view(key="page")
    def per_page() -> None:
        raise AssertionError("a feed runs no definition")

    columns = "page STRING, views BIGINT"
    topic = app.log.create_topic("per_page", f"{columns}, {SYSTEM_DDL}", key="page", **options)
    for one in records:
        topic.append(one)
    return topic


def test_the_feed_of_a_view_tells_its_changes(app: ps.App) -> None:
    topic = _view(app, upsert(page="/", views=1), upsert(page=None, views=7), record("w"))
    feed = app.subscribe("per_page")
    assert [(change.op, change.row) for change in (next(feed), next(feed), next(feed))] == [
        ("insert", {"page": "/", "views": 1}),
        ("insert", {"page": None, "views": 7}),
        ("current", {}),
    ]
    topic.append([upsert(page="/", views=2), record("w"), delete(page=None, views=None)])
    assert (next(feed).before, next(feed).row) == ({"page": "/", "views": 1}, {"page": None})
    assert feed.position is not None
    topic.append([upsert(page="/", views=3), upsert(page="/b", views=3)])
    missed = app.subscribe("per_page", after=feed.position, follow=False)
    assert [(change.op, change.row.get("views")) for change in missed] == [
        ("update", 3),
        ("insert", 3),
        ("current", None),
    ]


def test_a_view_can_be_subscribed_to_by_what_its_rows_hold(app: ps.App) -> None:
    topic = _view(app, upsert(page="/", views=1))
    found = app.subscribe("per_page", where=ps.col("views") > 1, columns=["page"], timeout=5)
    assert next(found).op == "current"
    topic.append([upsert(page="/", views=2), upsert(page="/", views=3), upsert(page="/", views=0)])
    assert [(change.op, change.row) for change in (next(found), next(found))] == [
        ("insert", {"page": "/"}),
        ("delete", {"page": "/"}),
    ]


def test_a_record_that_no_definition_wrote_is_refused(app: ps.App) -> None:
    _view(app, record("x", page="/", views=1))
    with pytest.raises(ps.BadRecord, match="'x'"):
        next(app.subscribe("per_page"))


def test_a_view_that_has_not_run_has_no_feed_yet(app: ps.App) -> None:
    @app.view(key="page")
    def per_page() -> None: ...

    with pytest.raises(ps.UnknownView, match="has not run yet"):
        per_page.subscribe()


def test_a_changelog_whose_beginning_is_gone_cannot_tell_the_rows(app: ps.App) -> None:
    topic = _view(app, *(upsert(page="/", views=n) for n in range(50)), retention_bytes=1, segment_bytes=1)
    wait_until(lambda: topic.bounds()[0][0] > 0, what="retention")
    with pytest.raises(ps.RecordsLost, match="removed by retention"):
        list(app.subscribe("per_page", follow=False))


def test_a_feed_needs_no_spark(home: Path) -> None:
    code = f"""
import json, sys
import penstock as ps
app = ps.App("shop", home={str(home)!r})
users = app.table("users", "id BIGINT", key="id")
users.upsert({{"id": 1}})
told = [change.op for change in users.subscribe(where=ps.col("id") == 1, follow=False)]
print(json.dumps([told, "pyspark" in sys.modules, "py4j" in sys.modules]))
"""
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
        timeout=60,
    )
    assert json.loads(found.stdout) == [["insert", "current"], False, False]
