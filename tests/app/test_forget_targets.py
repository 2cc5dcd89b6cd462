"""`app.forget` and what `to=` has written on this machine: sealed as in the log, searched and purged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.app.test_targets import without_spark

import penstock as ps
from penstock.testing import find_traces

ANN, BOB = "ann.example@example.org", "bob.example@example.org"
TARGETS: dict[str, Callable[[Path], Any]] = {
    "sqlite": lambda path: ps.to.sqlite(path / "copy.db"),
    "search": lambda path: ps.to.search(path, every="0 seconds"),
    "delta": lambda path: ps.to.delta(path, every="0 seconds"),
    "parquet": lambda path: ps.to.parquet(path, every="0 seconds"),
}
INSIDE = {"sqlite": "sqlite:customers__rows", "search": "search", "delta": "parquet", "parquet": "parquet"}


def shop(home: Path, to: Any, **options: Any) -> ps.App:
    app = ps.App("shop", home=home)
    customers = app.table("customers", "id BIGINT, email STRING", key="id", to=to, **options)
    customers.append([{"id": 17, "email": ANN}, {"id": 18, "email": BOB}])
    without_spark(app).once()
    return app


@pytest.mark.parametrize("kind", TARGETS)
def test_what_was_sent_to_a_place_outside_the_home_is_sealed_and_unreadable_once_forgotten(
    home: Path, tmp_path: Path, kind: str
) -> None:
    place = tmp_path / "sent"
    app = shop(home, TARGETS[kind](place), personal={"email": "id"})
    keys = app.log.port.keys.store
    before = find_traces(place, ANN, BOB, keys=[keys])
    assert (before.clear, before.unread) == ((), ())
    assert {(trace.text, trace.inside) for trace in before.found} >= {(0, INSIDE[kind]), (1, INSIDE[kind])}
    done = app.forget(17)
    assert (done.complete, done.left) == (True, ())
    after = find_traces(place, ANN, BOB, keys=[app.log.port.keys.store])
    assert {trace.text for trace in after.found} == {1}
    app.close()


@pytest.mark.parametrize("kind", TARGETS)
def test_what_was_sent_there_in_clear_is_found(home: Path, tmp_path: Path, kind: str) -> None:
    place = tmp_path / "sent"
    app = shop(home, TARGETS[kind](place))
    app.topic("sealed", "id BIGINT, email STRING", personal={"email": "id"}).append({"id": 17, "email": ANN})
    done = app.forget(17)
    assert not done.complete
    assert (INSIDE[kind], 1) in {(each.inside, each.values) for each in done.clear if str(place) in each.path}
    app.close()


def test_a_sqlite_file_outside_the_home_is_rid_of_deleted_rows(home: Path, tmp_path: Path) -> None:
    app = shop(home, TARGETS["sqlite"](tmp_path / "sent"), personal={"email": "id"})
    done = app.forget(17)
    assert str(tmp_path / "sent" / "copy.db") in done.purged
    app.close()
