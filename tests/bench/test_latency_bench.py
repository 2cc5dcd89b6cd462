"""The latency bench at a size that takes seconds: its form, not its numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import NotSupported, StorageError
from penstock.kafka import jars

# In a process of its own: a Spark session that runs already cannot get the connector.
_RUN = """
import json, sys
from pathlib import Path
from penstock.bench import latency

if __name__ == "__main__":
    sizes = latency.Sizes(warm_s=0.2, measured_s=0.5)
    print(json.dumps(latency.measure(sizes, home=Path(sys.argv[1]), progress=lambda _: None).to_json()))
"""


def test_every_way_is_measured_and_real_time_has_aims(tmp_path: Path) -> None:
    try:
        jars.folder_of(jars.BROKER)
        jars.connector()
    except (NotSupported, StorageError) as reason:
        pytest.skip(f"Kafka: {reason.message}")
    command = [sys.executable, "-c", _RUN, str(tmp_path / "home")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    results = json.loads(done.stdout.splitlines()[-1])["results"]
    ways = ("embedded, micro-batches", "Kafka, micro-batches", "Kafka, real-time")
    jobs = ("stateless", "windowed count")
    assert [result["name"] for result in results] == [
        f"{way}, {job}, {quantile}" for way in ways for job in jobs for quantile in ("p50", "p99")
    ]
    assert {result["name"]: result["aim"] for result in results if result["aim"]} == {
        "Kafka, real-time, stateless, p99": 20.0,
        "Kafka, real-time, windowed count, p99": 75.0,
    }
    assert all(result["value"] > 0 and result["settings"]["events"] > 0 for result in results)
    assert not (tmp_path / "home").exists()
