"""What every test may ask for: a folder for a log, an open log, a throwaway server."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[1]
if str(ROOT) not in sys.path:  # so that tests can share modules as tests.<name>
    sys.path.insert(0, str(ROOT))

from tests.flow.world import START_US, app_at  # noqa: E402
from tests.servers import (  # noqa: E402
    Postgres,
    RabbitMQ,
    Redis,
    Unavailable,
    start_postgres,
    start_rabbitmq,
    start_redis,
)

import penstock as ps  # noqa: E402
from penstock.clock import ManualClock  # noqa: E402

if TYPE_CHECKING:
    from penstock.kafka.cluster import State


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where a log may be made; nothing is there yet."""
    return tmp_path / "home"


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk in memory, where there is one.

    For kill -9, which leaves alone what the system was given to write: a real disk only makes it slower.
    """
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="penstock-") as folder:
        yield Path(folder)


@pytest.fixture
def log(home: Path) -> Iterator[ps.Log]:
    with ps.open_log(home) as opened:
        yield opened


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_US)


@pytest.fixture
def app(tmp_path: Path, clock: ManualClock) -> Iterator[ps.App]:
    """Its log goes by the clock."""
    found = app_at("shop", tmp_path, clock)
    yield found
    found.close()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests of a process, with the settings that the product runs with."""
    from penstock.flow.session import start_session

    session = start_session("tests")
    yield session
    session.stop()


@pytest.fixture
def report(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Lines for the end of the run: what a test counted or measured."""
    return lambda line: record_property("figures", line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits long for a server comes first: at the end, nobody should wait for one slow test."""
    items.sort(key=lambda item: "kafka" not in item.path.parts)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [each for kind in ("passed", "failed") for each in terminalreporter.stats.get(kind, [])]
    lines = [value for each in reports for name, value in each.user_properties if name == "figures"]
    if lines:
        terminalreporter.section("figures")
    for line in lines:
        terminalreporter.line(str(line))


Server = TypeVar("Server", Postgres, RabbitMQ, Redis)


def _throwaway(start: Callable[[Path], Server]) -> Iterator[Server]:
    # Not under pytest's own folder: only root may enter that, and a socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        try:
            server = start(Path(folder))
        except Unavailable as reason:
            pytest.skip(str(reason))
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL of its own for this run."""
    yield from _throwaway(start_postgres)


@pytest.fixture(scope="session")
def redis() -> Iterator[Redis]:
    """A Redis of its own for this run."""
    yield from _throwaway(start_redis)


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQ]:
    """A RabbitMQ of its own for this run."""
    yield from _throwaway(start_rabbitmq)


@pytest.fixture(scope="session")
def kafka() -> Iterator[State]:
    """A real Kafka of one broker, for the tests of a process."""
    from penstock.errors import NotSupported, StorageError
    from penstock.kafka.cluster import Cluster

    with tempfile.TemporaryDirectory(prefix="penstock-kafka-") as folder:
        cluster = Cluster(Path(folder))
        try:
            state = cluster.up(port=0)
        except (NotSupported, StorageError) as reason:
            pytest.skip(f"Kafka: {reason.message}")
        try:
            yield state
        finally:
            cluster.down()
