"""`penstock bench capture` at a size that takes seconds: what it measures, not its numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.bench import capture, postgres_server, redis_server
from penstock.bench.capture import Sizes
from penstock.errors import NotSupported

TINY = Sizes(rows=2_000, changes=1_000, transaction=100, commits=20)


def test_everything_is_measured_beside_debezium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for server in (postgres_server, redis_server):
        try:
            server.program()
        except NotSupported as reason:
            pytest.skip(reason.message)
    monkeypatch.setattr(capture, "QUICK", TINY)
    steps: list[str] = []
    report = capture.run(quick=True, home=tmp_path / "home", progress=steps.append)
    assert [(each.name, each.aim is not None, each.peer is not None) for each in report.results] == [
        ("PostgreSQL snapshot", True, True),
        ("PostgreSQL changes", True, True),
        ("PostgreSQL latency p50", True, True),
        ("PostgreSQL latency p99", False, True),
        ("PostgreSQL memory, the most", False, True),
        ("SQLite, more time to write", False, False),
        ("SQLite changes", False, False),
        ("followed into SQLite", False, False),
        ("followed into PostgreSQL", False, False),
        ("followed into Redis", False, False),
        ("followed into a search index", False, False),
        ("followed into Delta Lake", False, False),
        ("followed into Parquet", False, False),
    ]
    assert all(each.value > 0 for each in report.results if each.name != "SQLite, more time to write")
    assert not list((tmp_path / "home").iterdir())
