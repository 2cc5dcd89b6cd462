"""A database of a test: its sources, and what a person with a SQL shell sees."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from penstock.capture.postgres_connection import lsn_number
from penstock.capture.postgres_source import PostgresSource


@dataclass(slots=True)
class PostgresDatabase:
    dsn: str
    name: str
    server_dsn: str
    sources: list[PostgresSource] = field(default_factory=list)

    @classmethod
    def create(cls, server_dsn: str) -> PostgresDatabase:
        name = f"d{uuid.uuid4().hex[:10]}"
        with psycopg.connect(server_dsn, autocommit=True) as db:
            db.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        return cls(make_conninfo(server_dsn, dbname=name), name, server_dsn)

    def source(self, **options: Any) -> PostgresSource:
        """Beats often, so that a test sees the end of the WAL soon."""
        made = PostgresSource(self.dsn, **{"name": self.name, "heartbeat_s": 0.05, **options})
        self.sources.append(made)
        return made

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as db:
            for statement in statements:
                db.execute(statement)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as db:
            db.execute("SET TimeZone = 'UTC'")
            return db.execute(statement).fetchall()

    def rows(self, table: str, key: int = 1) -> dict[Any, tuple[Any, ...]]:
        """By the first `key` columns."""
        found = self.query(f"SELECT * FROM {table}")
        return {row[:key] if key > 1 else row[0]: row for row in found}

    def end(self) -> int:
        """Everything committed by now is before it."""
        return lsn_number(self.query("SELECT pg_current_wal_insert_lsn()::text")[0][0])

    def let_go(self) -> None:
        """Nobody is connected any more."""
        for source in self.sources:
            source.close()

    def close(self) -> None:
        self.let_go()
        with psycopg.connect(self.server_dsn, autocommit=True) as db:
            db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (self.name,)
            )
            slots = "FROM pg_replication_slots WHERE database = %s"
            while db.execute(SQL("SELECT 1 " + slots + " AND active"), (self.name,)).fetchone():
                pass
            db.execute(SQL("SELECT pg_drop_replication_slot(slot_name) " + slots), (self.name,))
            db.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(self.name)))
