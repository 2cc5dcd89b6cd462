"""`penstock demo`: what it claims is checked against the log, and it leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.cli.command import Command
from tests.waiting import wait_until

import penstock as ps
from penstock.cli.demo import latency, proof, shop
from penstock.cli.demo.stage import Place


def test_it_runs_shows_a_takeover_and_proves_that_nothing_was_lost(cli: Command, tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    done = cli.shell(f"export TMPDIR='{temporary}'; {_without_home()} demo --log-only --for 3 --json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["holds"] is True
    assert told["stored"]["acknowledged"] == told["stored"]["in_log"] > 0
    assert [group["lost"] for group in told["groups"]] == [0, 0]
    assert told["taken_over_s"] is not None
    mails = told["mails"]
    assert mails["once"] == mails["published"] > 0
    assert mails["poison"] == mails["given_up"] == mails["mended"] > 0
    assert list(temporary.iterdir()) == []


def test_without_a_terminal_it_prints_plain_lines_and_keeps_what_it_is_told_to_keep(cli: Command) -> None:
    done = cli.run("demo", "--log-only", "--for", 2, "--keep")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "was killed with SIGKILL" in done.stdout
    assert "All of it holds." in done.stdout
    with ps.open_log(cli.home) as log:
        assert {"imported", "page_views", "purchases", "carts", "database.customers"} <= set(log.topics())


@pytest.mark.timeout(900)
def test_the_whole_shop_is_on_a_page_and_everything_it_shows_is_proved(cli: Command) -> None:
    """The one run with all of it: queries, page, capture, carts, mail."""
    with cli.start("demo", "--for", 20, "--port", 0, "--json") as process:
        address = _address_of(process)
        with urllib.request.urlopen(address, timeout=60) as page:
            assert page.status == 200
        out, said = process.communicate(timeout=800)
    assert process.returncode == 0, f"{out}\n{said}"
    told = json.loads(out)
    assert told["holds"] is True
    assert told["page"] == address
    assert set(told["views"]) == set(shop.app.definitions)
    assert {found["verdict"] for found in told["views"].values()} == {"equal"}
    assert told["queries"] == len(told["views"]) >= 12
    assert told["events_per_second"] > 0
    assert told["latency_p99_ms"] > 0
    assert told["memory_bytes_max"] < 6 * 2**30
    assert not cli.home.exists()


def _address_of(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if "the page: " in line:
            return line.split("the page: ")[1].strip()
    raise AssertionError("it ended before the page answered")


def test_a_home_that_somebody_uses_is_left_alone(cli: Command) -> None:
    cli.run("topic", "create", "mine")
    done = cli.run("demo", "--log-only", "--for", 1)
    assert done.returncode == 2
    assert "wants a home of its own" in done.stderr


def _without_home() -> str:
    return f"'{sys.executable}' -m penstock"


# ---- the proof is one ---------------------------------------------------------------------------


@pytest.fixture
def topic(log: ps.Log) -> ps.Topic:
    return log.create_topic("page_views", "producer INT, number BIGINT, user_id BIGINT")


def _append(topic: ps.Topic, *numbers: int, producer: int = 1) -> None:
    topic.append([{"producer": producer, "number": number, "user_id": 1} for number in numbers])


def test_a_lost_record_is_seen(topic: ps.Topic) -> None:
    _append(topic, 0, 1, 3)
    assert proof.stored(topic, {1: 4}).lost == 1
    assert proof.stored(topic, {1: 2, 2: 5}).lost == 5


def test_a_record_stored_twice_and_one_out_of_order_are_seen(topic: ps.Topic) -> None:
    _append(topic, 0, 1, 1, 3, 2)
    found = proof.stored(topic, {1: 4})
    assert (found.lost, found.twice, found.out_of_order) == (0, 1, 1)


def test_what_was_stored_but_not_acknowledged_is_no_loss(topic: ps.Topic) -> None:
    _append(topic, 0, 1, 2)
    assert proof.stored(topic, {1: 2}).lost == 0


def test_gaps_and_repeats_of_a_group_are_seen() -> None:
    found = proof.delivered("g", {0: 10, 1: 3}, [(0, 0, 4), (0, 2, 8), (1, 0, 3)])
    assert (found.delivered, found.lost, found.repeated) == (13, 2, 2)


def test_percentiles_are_right_within_a_tenth() -> None:
    times_us = np.arange(1, 10_001) * 10
    buckets = Counter(latency.bucket_of(time) for time in times_us.tolist())
    assert latency.percentile_ms(buckets, 50) == pytest.approx(50, rel=0.1)
    assert latency.percentile_ms(buckets, 99) == pytest.approx(99, rel=0.1)
    assert latency.percentile_ms(Counter(), 50) is None


def test_no_process_outlives_a_demo_that_is_killed(cli: Command) -> None:
    with cli.start("demo", "--log-only") as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until(lambda: len(children.read_text().split()) == 6, what="six processes", timeout_s=60)
        actors = children.read_text().split()
        process.kill()
        process.wait(60)
        wait_until(lambda: not any(map(_runs, actors)), what="their end", timeout_s=60)


def test_what_a_killed_spark_puts_aside_is_in_the_folder_that_goes(tmp_path: Path) -> None:
    scratch = str(tmp_path / "a demo's")
    found = Place(tmp_path / "home", str(tmp_path / "home"), Path(scratch)).surroundings()
    assert found["TMPDIR"] == found["SPARK_LOCAL_DIRS"] == scratch
    assert found["JAVA_TOOL_OPTIONS"].endswith(f'"-Djava.io.tmpdir={scratch}"')


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_is_told_to_end_leaves_nothing_behind(cli: Command, number: signal.Signals) -> None:
    with cli.start("demo", "--log-only") as process:
        wait_until((cli.home / "topics/imported/topic.json").exists, what="the stage", timeout_s=60)
        process.send_signal(number)
        assert process.wait(60) == 128 + number
    assert not cli.home.exists()


def _runs(pid: str) -> bool:
    try:
        return b"penstock.cli.demo.actors" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
