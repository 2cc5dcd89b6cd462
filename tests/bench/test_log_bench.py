"""The log bench at a size that takes seconds: its form, not its numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.bench import log, workbench
from penstock.bench.report import COLUMNS, Report, Result
from penstock.bench.workbench import Sizes
from penstock.errors import NotSupported, StorageError

TINY = Sizes(
    attempts=1, sample_events=2_000, row_events=2_000, arrow_events=4_000, spark_events=2_000,
    writer_events=1_000, latency_events=50, open_batches=200, stall_events=1_000, memory_bytes=1_000_000,
    batch_rows=1_000,
)  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return log.measure(TINY, home=tmp_path_factory.mktemp("home"), progress=lambda _: None)


def test_prints_the_form_that_every_bench_has(report: Report) -> None:
    printed = json.loads(json.dumps(report.to_json()))
    assert list(printed) == ["bench", "machine", "results"]
    assert printed["bench"] == "log"
    form = ["name", "value", "unit", "aim", "holds", "peer", "peer_value", "ratio", "settings"]
    assert [list(result) for result in printed["results"]] == [form] * len(report.results)


def test_says_what_it_ran_on(report: Report) -> None:
    assert {"cores", "memory_gb", "python", "pyarrow", "kernel", "fsync_ms_median", "file_system"} == set(
        report.machine
    )


def test_measures_everything_the_log_promises(report: Report) -> None:
    names = {result.name for result in report.results}
    assert {result.name for result in report.results if result.aim is not None} == {
        "append dicts, fsync",
        "append dicts, os",
        "append Arrow, os",
        "read as Arrow",
        "read as rows (dicts)",
        "append to consumer, p99",
        "open, long topic : short topic",
        "memory to append Arrow, 0.001 GB",
        "memory to read as Arrow, 0.001 GB",
        "memory to read as rows, 0.001 GB",
    }
    assert "4 processes append dicts to one topic" in names
    assert all(result.value > 0 for result in report.results if result.unit == "events/s")


def test_everything_is_measured_beside_a_real_kafka(tmp_path: Path) -> None:
    try:
        found = log.measure(TINY, home=tmp_path, progress=lambda _: None, against="kafka")
    except (NotSupported, StorageError) as reason:
        pytest.skip(f"Kafka: {reason.message}")
    aims = {result.name: result.aim for result in found.results if result.aim is not None}
    assert aims == {
        "append dicts, os: times Kafka": 2.0,
        "append Arrow, os: times Kafka": 20.0,
        "append dicts, fsync: times Kafka": 2.0,
        "append Arrow, fsync: times Kafka": 20.0,
        "read as rows: times Kafka": 3.0,
        "read as Arrow: times Kafka": 20.0,
        "window count: times Kafka": 5.0,
    }
    assert all(result.value > 0 for result in found.results)


def test_leaves_nothing_behind(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with workbench.scratch(home) as folder:
        assert folder.parent == home
    assert not home.exists()


def test_an_aim_is_held_or_missed() -> None:
    rate = Result("rate", 7.0, "events/s")
    assert rate.at_least(7.0).holds
    assert not rate.at_least(8.0).holds
    assert rate.at_most(8.0).holds
    assert not rate.at_most(6.0).holds
    assert rate.holds is None
    assert not Report("x", {}, [rate, rate.at_least(8.0)]).holds
    assert Report("x", {}, [rate, rate.at_least(7.0)]).holds


def test_the_table_says_which_way_an_aim_points() -> None:
    rate = Result("rate", 1_234_567.0, "events/s")
    wanted = COLUMNS.index("aim#")
    assert rate.row()[wanted] == ""
    assert rate.at_least(1_000_000).row()[wanted] == "≥ 1,000,000"
    assert rate.at_least(2_000_000).row()[wanted] == "≥ 2,000,000"
    assert rate.at_most(2_000_000).row()[wanted] == "≤ 2,000,000"
    assert rate.at_most(1_000_000).row()[wanted] == "≤ 1,000,000"


def test_a_peer_gives_a_ratio() -> None:
    found = Result("rate", 10.0, "events/s").beside("somebody", 4.0)
    assert (found.peer, found.peer_value, found.ratio) == ("somebody", 4.0, 2.5)
    assert found.row() == ("rate", "10", "events/s", "", "", "somebody", "4", "2.5")
