"""A PostgreSQL that can be captured, and a fresh database in it for every test."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.capture.postgres_database import PostgresDatabase
from tests.servers import Postgres, Unavailable, start_postgres

LOGICAL = ["wal_level=logical", "max_replication_slots=20", "max_wal_senders=20"]


@pytest.fixture(scope="module")
def logical_postgres() -> Iterator[Postgres]:
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        try:
            server = start_postgres(Path(folder), options=LOGICAL)
        except Unavailable as reason:
            pytest.skip(str(reason))
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture
def database(logical_postgres: Postgres) -> Iterator[PostgresDatabase]:
    made = PostgresDatabase.create(logical_postgres.dsn)
    yield made
    made.close()
