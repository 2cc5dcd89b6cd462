"""Many queries on a small machine: they come up a few at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.app.graph import Graph
from penstock.app.runner import Runner, Supervised


class _Running:
    """Spark's side of a query."""

    isActive = True

    def __init__(self, error: str | None = None) -> None:
        self._error = error

    def exception(self) -> str | None:
        return self._error


class _Query:
    """A query that comes up when the test says so."""

    stored = position = None
    members: tuple[Any, ...] = ()
    stateful = False

    def __init__(self, name: str) -> None:
        self.name, self.is_up = name, False
        self.running: _Running | None = None

    def start(self, **options: object) -> None:
        self.is_up, self.running = False, _Running()

    def fail(self, error: str) -> None:
        self.running = _Running(error)
        self.running.isActive = False
        self.is_up = True

    def look(self, *, last: bool = False) -> None:
        """Nothing to hold."""

    def can_replay(self) -> bool:
        return False


@pytest.fixture
def queries() -> list[_Query]:
    return [_Query(name) for name in "abcde"]


@pytest.fixture
def runner(home: Path, queries: list[Any]) -> Runner:
    app = ps.App("shop", home=home)
    return Runner(app, Graph(app, None), supervised=[Supervised(query, 0) for query in queries])


def _running(queries: list[_Query]) -> str:
    return "".join(query.name for query in queries if query.running is not None)


def test_two_come_up_at_a_time_in_order(runner: Runner, queries: list[_Query]) -> None:
    runner.look()
    assert _running(queries) == "ab"
    runner.look()
    assert _running(queries) == "ab"
    queries[1].is_up = True
    runner.look()
    assert _running(queries) == "abc"
    queries[0].is_up = queries[2].is_up = True
    runner.look()
    assert _running(queries) == "abcde"


def test_where_the_machine_is_too_slow_it_is_one_at_a_time_and_with_more_patience(
    runner: Runner, queries: list[_Query]
) -> None:
    runner.failures_max = 1
    runner.look()
    for query in queries[:2]:
        query.fail("Python worker failed to connect back.")
    runner.look()
    assert _running(queries) == "c"
    assert not any(each.given_up for each in runner.supervised)
    assert "the machine is busy" in (runner.supervised[0].last_error or "")


def test_another_failure_counts_as_it_did(runner: Runner, queries: list[_Query]) -> None:
    runner.failures_max = 1
    runner.look()
    queries[0].fail("something is wrong with it")
    runner.look()
    assert [each.given_up for each in runner.supervised][:2] == [True, False]
