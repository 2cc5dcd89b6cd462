"""`penstock doctor`: it finds what is wrong, and says so with its exit code."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Command

import penstock as ps
from penstock.cli import log_checks, machine_checks


def _wrong(cli: Command, *args: str) -> list[dict[str, Any]]:
    told = cli.json("doctor", *args, code=1)
    assert told["ok"] is False
    return [one for one in told["findings"] if one["state"] == "problem"]


@pytest.fixture
def topic(log: ps.Log) -> ps.Topic:
    """Three sealed segments and an active one."""
    topic = log.create_topic("t", "n BIGINT, text STRING", segment_bytes=1_500)
    for number in range(4):
        topic.append({"n": number, "text": "x" * 1_200})
    return topic


def _segments(home: Path) -> list[Path]:
    return sorted((home / "topics/t/0").glob("*.arrows"))


def test_a_machine_and_a_log_in_order(cli: Command, topic: ps.Topic) -> None:
    told = cli.json("doctor", "--deep")
    states = {one["name"]: one["state"] for one in told["findings"]}
    assert told["ok"] is True
    assert states["pyarrow"] == states["fsync"] == states["t"] == "ok"
    assert "every record read and checked" in cli("doctor", "--deep").stdout


def test_every_optional_thing_that_is_missing_says_how_to_get_it(cli: Command) -> None:
    findings = cli.json("doctor")["findings"]
    assert all(one["todo"] for one in findings if one["state"] != "ok")


def test_a_missing_segment_is_found(cli: Command, topic: ps.Topic, home: Path) -> None:
    _segments(home)[1].unlink()
    (wrong,) = _wrong(cli)
    assert wrong["name"] == "t/0"
    assert "is missing (offsets 1 to 1)" in wrong["told"]


def test_a_segment_that_was_cut_is_found(cli: Command, topic: ps.Topic, home: Path) -> None:
    segment = _segments(home)[0]
    segment.write_bytes(segment.read_bytes()[:-100])
    (wrong,) = _wrong(cli)
    assert segment.name in wrong["told"]


def test_damage_inside_a_segment_is_found_by_reading_everything(
    cli: Command, topic: ps.Topic, home: Path
) -> None:
    for segment in (_segments(home)[0], _segments(home)[2]):
        segment.write_bytes(segment.read_bytes().replace(b"xxxx", b"xyxx", 1))
    assert cli.json("doctor")["ok"] is True
    assert [one["told"].count("offsets") for one in _wrong(cli, "--deep")] == [1, 1]


def test_a_topic_whose_settings_cannot_be_read_is_found(cli: Command, topic: ps.Topic, home: Path) -> None:
    (home / "topics/t/topic.json").write_text("{")
    (wrong,) = _wrong(cli)
    assert wrong["name"] == "t"


def test_a_folder_left_by_an_interrupted_create_is_a_warning(cli: Command, log: ps.Log, home: Path) -> None:
    (home / "topics/half").mkdir()
    findings = cli.json("doctor")["findings"]
    assert [one["state"] for one in findings if one["name"] == "half"] == ["warning"]


def test_a_lock_that_is_held_too_long_is_found(
    cli: Command, topic: ps.Topic, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_checks, "_LOCK_WAIT_S", 0.05)
    with (home / "topics/t/0/lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        (wrong,) = _wrong(cli)
    assert wrong["name"] == "topics/t/0/lock"
    assert "process" in wrong["told"]


def test_a_log_of_another_format_is_found(cli: Command, log: ps.Log, home: Path) -> None:
    (home / "log.json").write_text('{"format": 99}')
    (wrong,) = _wrong(cli)
    assert "format 99" in wrong["told"]


def test_a_package_that_is_missing_is_required_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine_checks._required("no-such-package").wrong
    assert not machine_checks._optional("no-such-package", "why").wrong


def test_memory_is_no_place_for_a_log() -> None:
    if machine_checks.file_system_of(Path("/dev/shm")) != "tmpfs":
        pytest.skip("no /dev/shm here")
    assert machine_checks._file_system(Path("/dev/shm")).state == "warning"
