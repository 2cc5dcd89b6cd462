"""A connection to PostgreSQL that comes back: opened when it is needed, and again after it broke.

Every wait on the server is bounded: for a connection, for a lock, and for an answer of the network.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psycopg
from psycopg import Connection
from psycopg.errors import ProgramLimitExceeded
from psycopg.sql import SQL, Composable, Identifier

from penstock.errors import BadRecord, StorageError
from penstock.follow.table import TableSpec

Answer = TypeVar("Answer")
_LOCK_S = 10
_CONNECT_S = 5
# A commit need not wait for the disk: what a crash of the server takes back goes together with its
# offset, and is read from the log again.
_SESSION = (("TimeZone", "UTC"), ("lock_timeout", f"{_LOCK_S}s"), ("synchronous_commit", "off"))


class Session:
    """One PostgreSQL connection, opened when it is needed and again when it broke."""

    def __init__(self, url: str, schema: str) -> None:
        self._url, self._schema = url, schema
        self._mutex = threading.Lock()
        self._db: Connection[Any] | None = None
        self._stages: dict[TableSpec, Identifier] = {}

    @contextmanager
    def transaction(self) -> Iterator[Connection[Any]]:
        with self._mutex:
            try:
                db = self._opened()
                with db.transaction():
                    yield db
            except (psycopg.DataError, ProgramLimitExceeded) as error:
                self._stages.clear()
                raise BadRecord(
                    f"PostgreSQL cannot hold a value: {_line(error)}.",
                    hint="it takes no zero characters in text, and no more than some 2,700 bytes in a key; "
                    "clean that column in the view",
                ) from error
            except psycopg.Error as error:
                self._forget()
                raise StorageError(
                    f"PostgreSQL: {_line(error)}.", hint="check that it runs, its address and its permissions"
                ) from error
            except BaseException:
                self._stages.clear()  # the transaction that made one may be rolled back
                raise

    def ask(self, question: Callable[[Connection[Any]], Answer]) -> Answer:
        """Read in a transaction; once more if the connection was cut since it was last used."""
        was_open = self._db is not None
        try:
            with self.transaction() as db:
                return question(db)
        except StorageError:
            if not was_open:
                raise
        with self.transaction() as db:
            return question(db)

    def stage_of(self, db: Connection[Any], spec: TableSpec, columns: Composable) -> Identifier:
        """A temporary table for changes of such a table; the session keeps it and each commit empties it."""
        if spec not in self._stages:
            name = f"penstock_stage_{len(self._stages)}"
            stage = Identifier("pg_temp", name)
            db.execute(SQL("DROP TABLE IF EXISTS {}").format(stage))  # forgotten after a failure
            made = SQL("CREATE TEMP TABLE {} ({}) ON COMMIT DELETE ROWS")
            db.execute(made.format(Identifier(name), columns))
            self._stages[spec] = stage
        return self._stages[spec]

    def close(self) -> None:
        with self._mutex:
            self._forget()

    def _opened(self) -> Connection[Any]:
        if self._db is None or self._db.closed:
            self._forget()
            # Rows are copied in UTF-8, whatever the encoding of the database, or PGCLIENTENCODING, is.
            db = psycopg.connect(
                self._url, autocommit=True, connect_timeout=_CONNECT_S, tcp_user_timeout=_LOCK_S * 1_000,
                client_encoding="utf8",
            )  # fmt: skip
            self._db = db
            for name, value in _SESSION:
                db.execute("SELECT set_config(%s, %s, false)", (name, value))
            db.execute(SQL("SET search_path TO {}").format(Identifier(self._schema)))
        return self._db

    def _forget(self) -> None:
        if self._db is not None:
            with suppress(Exception):
                self._db.close()
        self._db = None
        self._stages.clear()


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
