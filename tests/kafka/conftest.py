"""A real Kafka of one broker for the tests of a process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

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
