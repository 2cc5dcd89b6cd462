"""A real schema registry for the tests of a process, beside their Kafka."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kafka.elsewhere import Elsewhere
from tests.kafka.registry import Running, running, with_registry
from tests.servers import Unavailable

from penstock.errors import NotSupported, StorageError
from penstock.kafka.cluster import Cluster, State


@pytest.fixture
def cluster(kafka: State, tmp_path: Path) -> Iterator[Cluster]:
    """A broker of its own, to be killed. `kafka`: where that cannot be had, neither can this."""
    made = Cluster(tmp_path / "cluster")
    made.up(port=0)
    yield made
    made.down(delete=True)


@pytest.fixture
def three_brokers(kafka: State, tmp_path: Path) -> Iterator[Cluster]:
    """Each holds everything."""
    made = Cluster(tmp_path / "three")
    made.up(brokers=3, port=0)
    yield made
    made.down(delete=True)


@pytest.fixture(scope="session")
def registry() -> Iterator[Running]:
    with tempfile.TemporaryDirectory(prefix="penstock-registry-") as folder:
        try:
            with running(Path(folder)) as found:
                yield found
        except (Unavailable, NotSupported, StorageError) as reason:
            pytest.skip(str(reason))


@pytest.fixture(scope="session")
def url(kafka: State, registry: Running) -> str:
    return with_registry(kafka, registry.url)


@pytest.fixture(scope="session")
def elsewhere(kafka: State, registry: Running) -> Elsewhere:
    return Elsewhere(kafka, registry)
