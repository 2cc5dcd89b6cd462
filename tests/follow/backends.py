"""How tests open, look into and take away each kind of store, and the changelogs they feed it."""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import SQL, Identifier

import penstock as ps
from penstock.follow import Store, TableSpec, spec_of
from penstock.follow.postgres import PostgresStore
from penstock.follow.sqlite import SQLiteStore
from penstock.follow.store import Watch, unwatched

SYSTEM_DDL = "_op STRING, _batch BIGINT, _revision INT, _closed TIMESTAMP"


class Backend(Protocol):
    address: str

    def open(self, *, watch: Watch = unwatched) -> Store: ...

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """What a person with a SQL shell sees."""

    def down(self) -> AbstractContextManager[None]:
        """Within it, nobody can apply anything."""

    def close(self) -> None: ...


class SQLiteBackend:
    def __init__(self, path: Path) -> None:
        self.path, self.address = path, str(path)
        self._opened: list[Store] = []

    def open(self, *, watch: Watch = unwatched) -> Store:
        self._opened.append(SQLiteStore(self.path, busy_s=5.0, watch=watch))
        return self._opened[-1]

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self.path)) as db, db:
            return db.execute(statement).fetchall()

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            yield
            db.execute("ROLLBACK")

    def close(self) -> None:
        for store in self._opened:
            store.close()


class PostgresBackend:
    @classmethod
    def create(cls, server_dsn: str) -> PostgresBackend:
        """With a fresh database."""
        name = f"follow_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(server_dsn, autocommit=True) as db:
            db.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        return cls(server_dsn, name)

    def __init__(self, server_dsn: str, database: str) -> None:
        self._server, self._database = server_dsn, database
        self.address = make_conninfo(server_dsn, dbname=database)
        self._opened: list[Store] = []

    @property
    def url(self) -> str:
        known = conninfo_to_dict(self.address)
        place = urlencode({name: str(known[name]) for name in ("host", "port")})
        return f"postgresql://{known['user']}@/{known['dbname']}?{place}"

    def open(self, *, watch: Watch = unwatched) -> Store:
        self._opened.append(PostgresStore(self.address, watch=watch))
        return self._opened[-1]

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.address, autocommit=True) as db:
            cursor = db.execute(SQL(statement))
            return cursor.fetchall() if cursor.description else []

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Connections are cut and no new ones let in."""
        allow = SQL("ALTER DATABASE {} WITH ALLOW_CONNECTIONS {}")
        with psycopg.connect(self._server, autocommit=True) as db:
            db.execute(allow.format(Identifier(self._database), SQL("false")))
            self._cut(db)
            try:
                yield
            finally:
                db.execute(allow.format(Identifier(self._database), SQL("true")))

    def close(self) -> None:
        for store in self._opened:
            store.close()
        with psycopg.connect(self._server, autocommit=True) as db:
            db.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(self._database)))

    def _cut(self, db: psycopg.Connection[Any]) -> None:
        db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (self._database,)
        )


def changelog(log: ps.Log, name: str, columns: str, key: tuple[str, ...]) -> tuple[ps.Topic, TableSpec]:
    topic = log.create_topic(name, f"{columns}, {SYSTEM_DDL}")
    return topic, spec_of(topic.schema.arrow, key, name=name)


def record(operation: str, *, batch: int = 0, revision: int = 0, **values: Any) -> dict[str, Any]:
    closed = values.pop("closed", None)
    return {**values, "_op": operation, "_batch": batch, "_revision": revision, "_closed": closed}


def upsert(**values: Any) -> dict[str, Any]:
    return record("u", **values)


def delete(**values: Any) -> dict[str, Any]:
    return record("d", **values)


def plain(store: Store, spec: TableSpec, **options: Any) -> list[dict[str, Any]]:
    """The rows, without revisions where they are all 0."""
    rows = store.rows(spec, **options)[0].to_pylist()
    return [{name: value for name, value in row.items() if name != "_revision" or value} for row in rows]
