"""`penstock run`: to the end, until told to stop, and refusing what cannot run."""

from __future__ import annotations

import json
import signal
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from statistics import median
from subprocess import Popen
from typing import Any

from pyspark.sql import SparkSession
from tests.cli import shop
from tests.cli.command import Command, error_of
from tests.cli.conftest import Shop
from tests.waiting import wait_until

import penstock as ps

_WRONG = """
import penstock as ps

app = ps.App("shop")
views = app.topic("views", "page STRING, at TIMESTAMP", event_time="at")


@app.view(key="page")
def fine():
    return ps.latest(views.stream(), by="page")


@app.view(key="pgae")
def wrong():
    return ps.latest(views.stream(), by="page")
"""

_FAILING = """
import penstock as ps

app = ps.App("shop")
views = app.topic("views", "page STRING, at TIMESTAMP", event_time="at", lateness="5 seconds")


@app.stream()
def copied():
    return views.stream()


@app.view(key="page")
def failing():
    from pyspark.sql import functions as F

    return ps.latest(views.stream().where(F.raise_error(F.lit("no such luck")).isNull()), by="page")
"""


_TIMED, _, _ = _FAILING.partition("@app.view")


class Lines:
    """The JSON lines of a running command, read as they come."""

    def __init__(self, process: Popen[str]) -> None:
        self.seen: list[dict[str, Any]] = []
        self._process = process
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self.seen.extend(json.loads(line) for line in self._process.stdout)

    def any(self, wanted: Callable[[dict[str, Any]], bool]) -> bool:
        return any(wanted(line) for line in self.seen)

    def end(self) -> None:
        self._thread.join(timeout=30)


def _views(home: Path, file: Path) -> list[tuple[str, int]]:
    result = Command(home).json("view", file, "per_minute")
    return [(row["page"], row["views"]) for row in result["rows"]]


def test_once_delivers_everything_that_is_there(ran: Shop) -> None:
    """The run itself was made by the fixture; what it left is seen from other commands."""
    assert _views(ran.cli.home, ran.file) == [("/", 2), ("/", 2), ("/", 1)]
    assert len(ran.cli.lines("consume", "starts")) == len(shop.SECONDS)


def test_once_again_has_nothing_to_do_and_says_so(changed: Shop, spark: SparkSession) -> None:
    *_, summary = changed.cli.lines("run", changed.file, "--once")
    assert (summary["kind"], summary["outcome"]) == ("summary", "done")
    told = {query["name"]: query for query in summary["queries"]}
    assert set(told) == {"per_minute", "starts", "nothing"}
    assert {query["rows"] for query in told.values()} == {0}
    assert {query["lag_records"] for query in told.values()} == {0}
    assert told["per_minute"]["late"] == 1
    assert told["per_minute"]["watermark"] == "2026-11-01T10:02:05Z"
    assert told["per_minute"]["held_back"]["kind"] == "newer event"


def test_a_run_in_a_process_of_its_own_stops_between_batches_on_ctrl_c(
    home: Path, tmp_path: Path, report: Callable[[str], None]
) -> None:
    one_view, _, _ = shop.APP.partition("@app.stream")
    file, cli = shop.write(tmp_path / "app", one_view), Command(home)
    shop.fill(home)
    with cli.start("run", file, "--json") as process:
        lines = Lines(process)
        waited = wait_until(lambda: _rows(home) or process.poll(), timeout_s=240, what="a first result")
        assert process.poll() is None, process.stderr and process.stderr.read()
        report(f"penstock run: first result after {waited:.1f} s")
        # Far ahead: on a slow machine the topic has gone idle meanwhile, and its windows have closed.
        before = _rows(home)
        shop.append(home, ("/", 86_400))
        wait_until(lambda: _rows(home) == before + 1, timeout_s=120, what="a change")
        wait_until(lambda: lines.any(lambda line: line["queries"][0]["rows"] == 7), timeout_s=60)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 0
        lines.end()
    assert [line["kind"] for line in lines.seen[-2:]] == ["status", "summary"]
    assert lines.seen[-1]["outcome"] == "interrupted"
    assert {query["last_error"] for query in lines.seen[-1]["queries"]} == {None}
    assert [follower["view"] for follower in lines.seen[-1]["followers"]] == ["per_minute"]


def _rows(home: Path) -> int:
    """Looked at from outside: the store is only there once the app runs."""
    path = home / "views" / "shop.db"
    if not path.exists():
        return 0
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
        try:
            return int(store.execute("SELECT count(*) FROM per_minute").fetchone()[0])
        except sqlite3.OperationalError:  # it is being made
            return 0


def test_a_wrong_definition_is_refused_before_anything_starts(
    cli: Command, tmp_path: Path, spark: SparkSession
) -> None:
    file = shop.write(tmp_path / "app", _WRONG)
    result = cli("run", file, "--once", "--json")
    error = error_of(result)
    assert (result.exit_code, error["type"]) == (2, "BadDefinition")
    assert (error["file"], error["line"]) == (str(file), 13)
    assert 'did you mean "page"?' in error["hint"]
    with ps.open_log(cli.home) as log:
        assert log.port.producer_position("flow.shop.fine").position is None


def test_an_app_without_definitions_is_refused(cli: Command, tmp_path: Path, spark: SparkSession) -> None:
    file = shop.write(tmp_path / "app", 'import penstock as ps\napp = ps.App("shop")\n')
    result = cli("run", file)
    assert result.exit_code == 2
    assert "nothing to run" in result.stderr


def test_a_query_that_is_given_up_ends_the_run_and_is_explained(
    cli: Command, tmp_path: Path, spark: SparkSession
) -> None:
    file = shop.write(tmp_path / "app", _FAILING)
    shop.fill(cli.home)
    result = cli("run", file, "--json")
    assert (result.exit_code, error_of(result)["type"]) == (1, "QueryFailed")
    summary = json.loads(result.stdout.splitlines()[-1])
    told = {query["name"]: query for query in summary["queries"]}
    assert (summary["outcome"], told["failing"]["state"]) == ("failed", "given up")
    assert "no such luck" in told["failing"]["last_error"]
    assert (told["copied"]["last_error"], told["copied"]["rows"]) == (None, 6)
    (explained,) = cli.json("explain", file, "failing")["definitions"]
    failed, not_run = explained["reasons"]
    assert (failed["kind"], not_run["kind"]) == ("failed", "not run")
    assert failed["facts"]["given_up"]
    assert "no such luck" in failed["text"]
    assert cli.json("explain", file, "copied")["definitions"][0]["flows"]


def test_a_run_to_the_end_that_cannot_get_there_says_so(
    cli: Command, tmp_path: Path, spark: SparkSession
) -> None:
    file = shop.write(tmp_path / "app", _FAILING)
    shop.fill(cli.home)
    result = cli("run", file, "--once", "--json")
    error = error_of(result)
    assert (result.exit_code, error["type"]) == (1, "QueryFailed")
    assert "no such luck" in error["message"]
    assert json.loads(result.stdout.splitlines()[-1])["outcome"] == "failed"


def test_an_interval_is_kept(cli: Command, tmp_path: Path, spark: SparkSession) -> None:
    file = shop.write(tmp_path / "app", _TIMED)
    shop.append(cli.home, ("/", 0))
    done = threading.Event()

    def feed() -> None:
        """Faster than the interval, until there were some batches; then Ctrl-C."""
        with ps.open_log(cli.home) as log:
            for seconds in range(1, 1_000):
                shop.append(cli.home, ("/", seconds))
                if done.wait(0.1):
                    return
                if "copied.batches" in log.topics() and log.topic("copied.batches").bounds()[0][1] > 5:
                    break
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=feed)
    thread.start()
    result = cli("run", file, "--every", "1 second", "--json")
    done.set()
    thread.join()
    assert result.exit_code == 0, result.output
    with ps.open_log(cli.home) as log:
        stored = [event.timestamp.timestamp() for event in log.topic("copied.batches").events()]
    pauses = [after - before for before, after in pairwise(stored)]
    assert len(pauses) >= 3
    assert median(pauses) > 0.5  # the first may come sooner: intervals begin with the clock's own seconds


def test_an_interval_that_is_none_is_refused(cli: Command, tmp_path: Path) -> None:
    file = shop.write(tmp_path / "app")
    result = cli("run", file, "--every", "soon")
    assert (result.exit_code, "is no duration" in result.stderr) == (2, True)
