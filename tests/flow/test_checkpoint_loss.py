"""Checkpoints and state that are lost or damaged: built anew from log and position, and nothing comes twice.

One app has every kind of state there is. It has run over the first half of its events; each test takes a
copy of that, damages it, appends the second half and runs on. What comes out must be what comes out of a
copy that nobody has damaged.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.flow.kill_points import gaps, outcome

import penstock as ps
from penstock.app.graph import Graph
from penstock.app.runner import Runner
from penstock.app.verify import verify
from penstock.flow.commit import Committer

pytestmark = pytest.mark.timeout(900)  # many small Spark batches, on a machine that may be busy

START = datetime(2026, 11, 1, 10, 0, tzinfo=UTC)
ROWS_MAX = 20
FIRST, SECOND = range(60), range(60, 80)


def declare(home: Path) -> ps.App:
    app = ps.App("every", home=home)
    events = app.topic(
        "events", "id BIGINT, k STRING, v BIGINT, at TIMESTAMP", event_time="at", lateness="2 seconds",
        idle_after="1 day",
    )  # fmt: skip

    def counted(window: Any, **options: Any) -> DataFrame:
        return ps.aggregate(events.stream(), by="k", window=window, n=ps.count(), v=ps.sum("v"), **options)

    tens = ps.tumbling("10 seconds")
    corrected = {"late": "correct", "correct_for": "20 seconds"}
    app.view(key=["k", "window"], name="live")(lambda: counted(tens, **corrected))
    app.view(key=["k", "window"], name="visits")(lambda: counted(ps.session("3 seconds"), emit="live"))
    app.stream(name="closed")(lambda: counted(tens, emit="final"))
    app.stream(name="sessions")(lambda: counted(ps.session("3 seconds")))
    app.stream(name="trailing")(lambda: counted(ps.sliding("7 seconds")))
    app.stream(name="once")(lambda: ps.deduplicate(events.stream(), id="v", within="5 seconds"))
    return app


def feed(app: ps.App, numbers: range) -> None:
    """Two a second, a little out of order; every ninth comes far too late."""
    chance = random.Random(numbers.start)
    for number in numbers:
        behind = 15.0 if number % 9 == 8 else chance.uniform(0, 1.5)
        row = {
            "id": number,
            "k": chance.choice("abc"),
            "v": chance.randrange(8),
            "at": START + timedelta(seconds=number / 2 - behind),
        }
        app.log.topic("events").append(row)


@dataclass(frozen=True, slots=True)
class Ran:
    """What came out after each half of the events, undisturbed."""

    home: Path  # after the first half
    first: dict[str, Any]
    second: dict[str, Any]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Ran:
    folder = tmp_path_factory.mktemp("undisturbed")
    app = declare(folder / "half")
    feed(app, FIRST)
    run(app, spark)
    first = outcome(app)
    app.close()
    shutil.copytree(folder / "half", folder / "whole")
    app = declare(folder / "whole")
    feed(app, SECOND)
    run(app, spark)
    second = outcome(app)
    app.close()
    return Ran(folder / "half", first, second)


def run(app: ps.App, spark: SparkSession) -> Runner:
    runner = Runner(app, Graph(app, spark).analyse(), rows_max=ROWS_MAX)
    runner.once()
    return runner


# ---- what can happen to a checkpoint ---------------------------------------------------------------


def newest(folder: Path) -> Path:
    return max((file for file in folder.iterdir() if file.name.isdigit()), key=lambda file: int(file.name))


def last_commit_removed(checkpoint: Path) -> None:
    newest(checkpoint / "commits").unlink()


def last_offset_and_commit_removed(checkpoint: Path) -> None:
    newest(checkpoint / "commits").unlink()
    newest(checkpoint / "offsets").unlink()


def three_offsets_and_commits_removed(checkpoint: Path) -> None:
    for _ in range(3):
        last_offset_and_commit_removed(checkpoint)


def last_offset_removed(checkpoint: Path) -> None:
    newest(checkpoint / "offsets").unlink()


def last_offset_cut(checkpoint: Path) -> None:
    newest(checkpoint / "commits").unlink()
    file = newest(checkpoint / "offsets")
    file.write_bytes(file.read_bytes()[:40])


def last_offset_and_commit_empty(checkpoint: Path) -> None:
    newest(checkpoint / "offsets").write_bytes(b"")
    newest(checkpoint / "commits").write_bytes(b"")


def all_offsets_removed(checkpoint: Path) -> None:
    for file in (checkpoint / "offsets").iterdir():
        file.unlink()


def checkpoint_removed(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)


def state_removed(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint / "state", ignore_errors=True)


def newest_state_removed(checkpoint: Path) -> None:
    for file in _newest_state(checkpoint):
        file.unlink()


def newest_state_overwritten(checkpoint: Path) -> None:
    for file in _newest_state(checkpoint):
        data = bytearray(file.read_bytes())
        middle = len(data) // 2
        data[middle : middle + 8] = bytes(byte ^ 0xFF for byte in data[middle : middle + 8])
        file.write_bytes(data)


def _newest_state(checkpoint: Path) -> list[Path]:
    """The file of the last version in each of the state's folders."""
    found: dict[Path, Path] = {}
    for file in sorted((checkpoint / "state").rglob("*"), key=_version):
        if file.suffix in (".changelog", ".zip") and _version(file) > 0:
            found[file.parent] = file
    return list(found.values())


def _version(file: Path) -> int:
    number = file.name.split(".")[0].split("_")[0]
    return int(number) if number.isdigit() else -1


DAMAGES: list[Callable[[Path], None]] = [
    last_commit_removed, last_offset_and_commit_removed, three_offsets_and_commits_removed,
    last_offset_removed, last_offset_cut, last_offset_and_commit_empty, all_offsets_removed,
    checkpoint_removed, state_removed, newest_state_removed, newest_state_overwritten,
]  # fmt: skip


# ---- what comes of it ------------------------------------------------------------------------------


def copy_of(ran: Ran, home: Path) -> ps.App:
    shutil.copytree(ran.home, home)
    return declare(home)


def checkpoints(app: ps.App) -> list[Path]:
    return sorted(path for path in (app.home / "flow" / app.name).glob("*/checkpoint-*"))


SWEEP = [pytest.param(turn, marks=pytest.mark.crash) for turn in range(1, len(DAMAGES))]


@pytest.mark.parametrize("turn", [0, *SWEEP])
def test_whatever_a_checkpoint_has_lost_nothing_is_lost_or_said_twice(
    turn: int, undisturbed: Ran, home: Path, spark: SparkSession
) -> None:
    """Each query's checkpoint is damaged in another way; over all turns, each in every way."""
    app = copy_of(undisturbed, home)
    for number, checkpoint in enumerate(checkpoints(app)):
        DAMAGES[(turn + 2 * number) % len(DAMAGES)](checkpoint)
    feed(app, SECOND)
    run(app, spark)
    assert outcome(app) == undisturbed.second
    assert not gaps(app)
    app.close()


def test_without_any_checkpoint_the_state_is_built_anew_and_nothing_is_said_again(
    undisturbed: Ran, home: Path, spark: SparkSession
) -> None:
    app = copy_of(undisturbed, home)
    shutil.rmtree(home / "flow")
    run(app, spark)
    assert outcome(app) == undisturbed.first
    shutil.rmtree(home / "flow")
    feed(app, SECOND)
    run(app, spark)
    assert outcome(app) == undisturbed.second
    assert not gaps(app)
    graph = Graph(app, spark).analyse()
    for name in app.definitions:
        assert verify(app, graph, name).verdict == "equal", name
    app.close()


def test_what_a_batch_left_that_was_never_stored_is_not_taken_for_that_of_the_next(
    home: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark would take its state for that of another batch of the same number, planned once more."""
    app = ps.App("sums", home=home)
    events = app.topic("events", "k STRING, v BIGINT")

    @app.view(key="k")
    def sums() -> DataFrame:
        return ps.aggregate(events.stream(), by="k", v=ps.sum("v"))

    def run(*values: int, failures_max: int = 5) -> None:
        events.append([{"k": "a", "v": value} for value in values])
        Runner(app, graph, failures_max=failures_max).once()

    graph = Graph(app, spark).analyse()
    run(1)
    with monkeypatch.context() as patched:
        patched.setattr(Committer, "_store", _crash)  # the state is written by then
        with pytest.raises(ps.QueryFailed):
            run(10, failures_max=1)
    (offsets,) = home.glob("flow/sums/sums/checkpoint-*/offsets")
    max(offsets.glob("[0-9]*"), key=lambda file: int(file.name)).unlink()  # lost with the power
    run(100, 1_000)
    run(10_000)
    assert [row["v"] for row in app.read("sums")] == [11_111]
    assert verify(app, graph, "sums").verdict == "equal"
    app.close()


def _crash(*_arguments: Any, **_options: Any) -> None:
    raise OSError("the power fails")
