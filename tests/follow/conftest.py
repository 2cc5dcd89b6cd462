"""Every store under one name: SQLite, and a real PostgreSQL where there is one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from tests.follow.backends import Backend, PostgresBackend, SQLiteBackend
from tests.servers import Postgres


@pytest.fixture(params=["sqlite", "postgres"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """Opens stores on one fresh place."""
    if request.param == "sqlite":
        made: Backend = SQLiteBackend(tmp_path / "views.db")
    else:
        server: Postgres = request.getfixturevalue("postgres")
        name = f"follow_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(server.dsn, autocommit=True) as db:
            db.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        made = PostgresBackend(server.dsn, name)
    yield made
    made.close()
