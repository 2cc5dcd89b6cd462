"""The same examples on Kafka."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import penstock as ps
from penstock.app import reading
from penstock.app.graph import Graph
from penstock.app.loading import load
from penstock.app.runner import Runner
from penstock.app.verify import verify
from penstock.kafka.log import KafkaLog
from penstock.log.port import LogPort, to_us
from penstock.log.topic import WATERMARKS
from penstock.opening import open_log
from penstock.testing.flow import Run

Again = Callable[[Run, ModuleType], None]


@pytest.fixture
def again_on_kafka(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Again:
    """Assert that the file of an example, with the events of a run, gives the same rows on Kafka.

    Kafka is asked for at the end: where it cannot be had, the run itself has been tested.
    """

    def again(run: Run, example: ModuleType) -> None:
        url = request.getfixturevalue("kafka").url
        monkeypatch.setenv("PENSTOCK_HOME", url)
        app = load(str(example.__file__)).app
        app.home = tmp_path / "on-kafka"
        with open_log(url) as log:
            for name in inputs(run.app):
                copy(run.app.log.port, log.port, name)
        graph = Graph(app, run.graph.session).analyse()
        Runner(app, graph, now_us=to_us(run.now)).once()
        for name in app.definitions:
            assert rows(app, name) == rows(run.app, name)
            assert late(app, name) == late(run.app, name)
            assert verify(app, graph, name).verdict == "equal"
        app.close()

    return again


def inputs(app: ps.App) -> list[str]:
    there = app.log.topics()
    return [part for name in app.topics for part in (name, f"{name}{WATERMARKS}") if part in there]


def copy(source: LogPort, target: LogPort, name: str) -> None:
    """With its append times, which are virtual."""
    assert isinstance(target, KafkaLog)
    settings = target.create_topic(replace(source.settings(name), version=1), dated=True)
    with target.restoring(settings):
        for partition in range(settings.partitions):
            start, _ = source.bounds(name, partition)
            for batch in source.read(name, partition, start):
                target.restore(settings, partition, batch)


def rows(app: ps.App, name: str) -> list[dict[str, Any]]:
    """Without how often they changed, and in what order they came: that depends on when somebody looked."""
    is_view = app.definition(name).kind == "view"
    found = app.read(name) if is_view else app.log.topic(name).rows()
    return sorted(({key: row[key] for key in row if key != "revision"} for row in found), key=str)


def late(app: ps.App, name: str) -> list[Any]:
    return [(pair["row"], pair["window_start"], pair["reason"]) for pair in reading.late(app, name)]
