"""The sourcing bench at a size that takes seconds: its form, not its numbers."""

from __future__ import annotations

import json
from pathlib import Path

from penstock.bench import sourcing
from penstock.bench.sourcing import Sizes


def test_measures_commands_publication_and_loading(tmp_path: Path) -> None:
    tiny = Sizes(commands=20, published=200, long=1_000, loads=3)
    report = sourcing.measure(tiny, home=tmp_path, progress=lambda _: None)
    printed = json.loads(json.dumps(report.to_json()))
    found = {result["name"]: result for result in printed["results"]}
    assert found["commands, SQLite"]["peer"] == "eventsourcing alone"
    assert found["events published"]["value"] > 0
    assert found["load, long history : short history"]["aim"] == 2.0
    assert not list(tmp_path.iterdir())
