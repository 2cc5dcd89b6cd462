"""A real Kafka of one broker, and a real schema registry, for the tests of a process."""

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


@pytest.fixture(scope="session")
def kafka() -> Iterator[State]:
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
