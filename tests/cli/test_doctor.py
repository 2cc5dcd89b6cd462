"""`penstock doctor`: it finds what is wrong, and says so with its exit code."""

from __future__ import annotations

import fcntl
import importlib.metadata
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Command

import penstock as ps
from penstock.cli import log_checks, machine_checks, spark_checks
from penstock.cli.doctor import Finding


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


# ---- the spark extra ---------------------------------------------------------------------------------


def _script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def _spark(name: str, **environment: str) -> Finding:
    (found,) = (one for one in spark_checks.spark({"PATH": "/nowhere", **environment}) if one.name == name)
    assert not found.wrong, "the log works without Spark"
    assert found.state == "ok" or found.todo
    return found


def test_doctor_looks_at_the_spark_extra_and_not_at_a_backend_that_is_not_there(cli: Command) -> None:
    names = [one["name"] for one in cli.json("doctor")["findings"]]
    assert {"pyspark", "java"} <= set(names)
    assert not any("kafka" in name for name in names)


def test_the_pyspark_of_this_environment_is_imported() -> None:
    found = _spark("pyspark")
    assert (found.state, found.told) == ("ok", importlib.metadata.version("pyspark"))


@pytest.mark.parametrize(
    ("source", "state", "says"),
    [
        ("__version__ = '3.5.1'", "warning", "3.5.1, where Penstock works with 4.3"),
        ("__version__ = '4.30.0'", "warning", "4.30.0, where Penstock works with 4.3"),
        ("__version__ = '4.3.2'", "ok", "4.3.2"),
        ("import no_py4j", "warning", "cannot be imported (ModuleNotFoundError: No module named 'no_py4j')"),
        ("raise ModuleNotFoundError(\"No module named 'pyspark'\")", "missing", "not installed, and not"),
    ],
)
def test_a_pyspark_is_judged_by_importing_it(tmp_path: Path, source: str, state: str, says: str) -> None:
    (tmp_path / "pyspark.py").write_text(source)
    found = _spark("pyspark", PYTHONPATH=str(tmp_path))
    assert (found.state, says in found.told) == (state, True), found
    assert "penstock[spark]" in found.todo or state == "ok"


@pytest.mark.parametrize(
    ("script", "state", "says"),
    [
        ("""echo 'openjdk version "17.0.15" 2025-04-15' >&2""", "ok", "17.0.15 from"),
        ("""echo Picked up JAVA_TOOL_OPTIONS: -X >&2; echo 'openjdk version "25-ea"' >&2""", "ok", "25-ea"),
        ("""echo 'openjdk version "11.0.2" 2019-01-15' >&2""", "warning", "11.0.2 from"),
        ("""echo 'java version "1.8.0_292"' >&2""", "warning", "is too old"),
        ("""echo what? >&2""", "warning", "unknown version"),
        ("""echo no such module >&2; exit 1""", "warning", "does not start"),
    ],
)
@pytest.mark.parametrize("place", ["JAVA_HOME", "PATH"])
def test_java_has_to_be_17_or_newer(tmp_path: Path, place: str, script: str, state: str, says: str) -> None:
    _script(tmp_path / "bin" / "java", script)
    found = _spark("java", **{place: str(tmp_path if place == "JAVA_HOME" else tmp_path / "bin")})
    assert (found.state, says in found.told, f"from {place}" in found.told) == (state, True, True), found


def test_a_java_home_without_java_is_told_even_where_the_path_has_one(tmp_path: Path) -> None:
    """Spark looks nowhere else once JAVA_HOME is set."""
    _script(tmp_path / "bin" / "java", """echo 'openjdk version "21"' >&2""")
    found = _spark("java", PATH=str(tmp_path / "bin"), JAVA_HOME=str(tmp_path / "gone"))
    assert (found.state, "JAVA_HOME" in found.told) == ("warning", True)


def test_no_java_at_all_is_missing() -> None:
    assert _spark("java").state == "missing"


def test_memory_is_no_place_for_a_log() -> None:
    if machine_checks.file_system_of(Path("/dev/shm")) != "tmpfs":
        pytest.skip("no /dev/shm here")
    assert machine_checks._file_system(Path("/dev/shm")).state == "warning"
