"""The queue bench at a size that takes seconds: its form, not its numbers."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.bench import queue, rabbitmq_server
from penstock.bench.queue import Sizes
from penstock.errors import NotSupported

TINY = Sizes(attempts=1, rounds=1, each=20, batched=200, latency=20, per_s=200)
LINES = (
    "publish, one by one",
    "publish, 100 together",
    "get and ack, 1 consumer",
    "get and ack, 4 consumers",
)


def test_everything_is_measured_beside_a_real_rabbitmq(tmp_path: Path) -> None:
    try:
        rabbitmq_server.program()
    except NotSupported as reason:
        pytest.skip(f"RabbitMQ: {reason.message}")
    report = queue.measure(TINY, home=tmp_path / "home", progress=lambda _: None)
    printed = json.loads(json.dumps(report.to_json()))
    assert printed["bench"] == "queue"
    aims = {result.name: result.aim for result in report.results if result.aim is not None}
    assert aims == {f"{line}: times RabbitMQ, pika": 2.0 for line in LINES}
    peers = {(result.name, result.peer) for result in report.results if result.peer}
    latencies = ("publish to consumer, p50", "publish to consumer, p99")
    assert peers == {
        (line, peer) for line in (*LINES, *latencies) for peer in ("RabbitMQ, pika", "RabbitMQ, same API")
    }
    assert all(result.value > 0 for result in report.results)
    assert not (tmp_path / "home").exists()


def test_a_bench_that_is_ended_leaves_no_server_behind(tmp_path: Path) -> None:
    try:
        rabbitmq_server.program()
    except NotSupported as reason:
        pytest.skip(f"RabbitMQ: {reason.message}")
    command = [sys.executable, "-m", "penstock", "bench", "queue", "--quick", "--home", "home"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as bench:
        assert bench.stderr is not None
        told = [line for line in iter(bench.stderr.readline, "") if _ends_it(line, bench)]
        assert any("publish, one by one" in line for line in told), told
    assert bench.returncode == 130
    assert not _processes_of(tmp_path)


def _ends_it(line: str, bench: subprocess.Popen[str]) -> bool:
    if "publish, one by one" in line:  # RabbitMQ runs, from a home that was given relative to the folder
        bench.terminate()
    return True


def _processes_of(folder: Path) -> list[str]:
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"HOME={folder}".encode() in environment.read_bytes():
                found.append(environment.parent.name)
    return found


def test_without_a_rabbitmq_it_measures_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> Path:
        raise NotSupported("there is no RabbitMQ on this machine.")

    monkeypatch.setattr(rabbitmq_server, "program", none)
    told: list[str] = []
    report = queue.measure(TINY, home=tmp_path, progress=told.append)
    assert "without a peer: there is no RabbitMQ on this machine." in told
    assert {result.name for result in report.results} >= {*LINES, "as a log: append, one by one"}
    assert all(result.peer is None for result in report.results)
