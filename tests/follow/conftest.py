"""Every store under one name: SQLite, and a real PostgreSQL where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.follow.backends import Backend, PostgresBackend, SQLiteBackend
from tests.servers import Postgres


@pytest.fixture(params=["sqlite", "postgres"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """Opens stores on one fresh place."""
    if request.param == "sqlite":
        made: Backend = SQLiteBackend(tmp_path / "views.db")
    else:
        server: Postgres = request.getfixturevalue("postgres")
        made = PostgresBackend.create(server.dsn)
    yield made
    made.close()
