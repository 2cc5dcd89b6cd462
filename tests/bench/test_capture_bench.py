"""The capture bench at a size that takes seconds: its form, not its numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.bench import capture, debezium_peer, postgres_server, redis_server
from penstock.bench.capture import Sizes
from penstock.errors import NotSupported

TINY = Sizes(rows=2_000, changes=1_000, transaction=100, commits=10)
BESIDE = {
    "PostgreSQL snapshot",
    "PostgreSQL changes",
    "PostgreSQL latency p50",
    "PostgreSQL latency p99",
    "PostgreSQL memory, the most",
}
PLACES = ("SQLite", "PostgreSQL", "Redis", "a search index", "Delta Lake", "Parquet")


def test_everything_is_measured_beside_a_real_debezium(tmp_path: Path) -> None:
    for server in (postgres_server, redis_server):
        try:
            server.program()
        except NotSupported as reason:
            pytest.skip(reason.message)
    if not debezium_peer.installed():
        pytest.skip("Debezium's engine is not installed")
    report = capture.measure(TINY, home=tmp_path / "home", tell=lambda _: None)
    printed = json.loads(json.dumps(report.to_json()))
    assert printed["bench"] == "capture"
    found = {result["name"]: result for result in printed["results"]}
    assert {name for name, result in found.items() if result["peer"]} == BESIDE
    assert {name for name, result in found.items() if result["aim"]} == {
        "PostgreSQL snapshot", "PostgreSQL changes", "PostgreSQL latency p50",
    }  # fmt: skip
    assert found["PostgreSQL changes"]["aim"] == pytest.approx(
        5 * found["PostgreSQL changes"]["peer_value"], rel=0.01
    )
    assert found.keys() - BESIDE == {
        "SQLite, more time to write", "SQLite changes", *(f"followed into {place}" for place in PLACES),
    }  # fmt: skip
    assert all(found[f"followed into {place}"]["value"] > 0 for place in PLACES)
