"""Events in a PostgreSQL database.

The library locks the table for whoever records, so that numbers are given in the order of the commits: a
reader that follows them passes over nothing that becomes visible later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
from eventsourcing.postgres import PostgresAggregateRecorder, PostgresApplicationRecorder, PostgresDatastore
from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import SQL, Identifier

from penstock import fork
from penstock.errors import BadOption, Unreachable
from penstock.fork import Forking
from penstock.sourcing.failures import LOCK_S, told
from penstock.sourcing.store import Listed

_of_parents: list[object] = []
_CONNECTIONS_MAX = 10
_CONNECT_S = 10.0
_NAME_MAX = 36  # 63 less what is put behind it for tables and indexes
_LOCK = 0x70656E73746F636B >> 1  # of whoever creates tables; any number will do

_LIST = SQL(
    "SELECT originator_id, MAX(originator_version) AS version FROM public.{table} "
    "WHERE originator_id > %s GROUP BY originator_id ORDER BY originator_id LIMIT %s"
)
_COUNT = SQL("SELECT COUNT(DISTINCT originator_id) AS count FROM public.{table}")


class PostgresStore(Forking):
    """Tables `<table>_events` and `<table>_snapshots` in the schema `public`."""

    is_server = True

    def __init__(self, url: str, *, table: str) -> None:
        if len(table.encode()) > _NAME_MAX:
            raise BadOption(
                f'"{table}" is too long for the name of a table.',
                hint=f"app and aggregates may have {_NAME_MAX - 1} letters together",
            )
        given = conninfo_to_dict(url)
        self.address = f"postgresql://{given.get('host', '')}/{given.get('dbname', '')}"
        self._url = url
        self._events = f"{table}_events"
        self._datastore = _datastore(given)
        try:
            with told(self.address, server=True):
                self._open(f"{table}_snapshots")
        except BaseException:
            self._datastore.close()
            raise
        fork.tell(self)

    def after_fork_in_child(self) -> None:
        # Two who talk over one connection read each other's answers. The parent's are left alone: to close
        # them here would be to take leave for the parent.
        _of_parents.append(self._datastore.pool)
        made = _datastore(conninfo_to_dict(self._url))
        self._datastore.pool = made.pool
        del made.pool  # which it would close when it goes

    def _open(self, snapshots: str) -> None:
        # Two who create the same table at the same moment get in each other's way. And a server that is away
        # is told at once here, where the pool would go on trying.
        with self._connected() as db:
            db.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
            try:
                self.recorder = PostgresApplicationRecorder(self._datastore, events_table_name=self._events)
                self.snapshots = PostgresAggregateRecorder(self._datastore, events_table_name=snapshots)
                # A function that is not used here, and that each recorder would make its own of.
                del self.recorder.sql_create_statements[self.recorder.create_insert_function_statement_index]
                self.recorder.create_table()
                self.snapshots.create_table()
            finally:
                db.execute("SELECT pg_advisory_unlock(%s)", (_LOCK,))

    @contextlib.contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        with _unreachable(self.address):
            db = psycopg.connect(self._url, autocommit=True, connect_timeout=int(_CONNECT_S))
        with db:
            yield db

    def list(self, *, after: str, limit: int) -> list[Listed]:
        statement = _LIST.format(table=Identifier(self._events))
        with told(self.address, server=True), self._datastore.cursor() as cursor:
            cursor.execute(statement, (after, limit))
            return [Listed(row["originator_id"], row["version"]) for row in cursor.fetchall()]

    def count(self) -> int:
        with told(self.address, server=True), self._datastore.cursor() as cursor:
            cursor.execute(_COUNT.format(table=Identifier(self._events)))
            found = cursor.fetchone()
            return int(found["count"]) if found else 0

    def waker(self) -> PostgresWaker:
        return PostgresWaker(self._url, self.recorder.channel_name, self.address)

    def close(self) -> None:
        self._datastore.close()


class PostgresWaker:
    """Listens on a connection of its own; whoever records, notifies."""

    def __init__(self, url: str, channel: str, address: str) -> None:
        self._address = address
        with _unreachable(address):
            self._db = psycopg.connect(url, autocommit=True, connect_timeout=int(_CONNECT_S))
            self._db.execute(SQL("LISTEN {}").format(Identifier(channel)))

    def wait(self, timeout_s: float) -> None:
        with _unreachable(self._address):
            for _ in self._db.notifies(timeout=timeout_s, stop_after=1):
                return

    def close(self) -> None:
        self._db.close()


@contextlib.contextmanager
def _unreachable(address: str) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise Unreachable(address, str(error).strip().splitlines()[0]) from error


def _datastore(given: dict[str, Any]) -> PostgresDatastore:
    named = {name: str(given.pop(name, default) or default) for name, default in _PLACE.items()}
    made = PostgresDatastore(
        **named,  # type: ignore[arg-type]
        connect_timeout=_CONNECT_S,
        pool_size=1,
        max_overflow=_CONNECTIONS_MAX - 1,
        lock_timeout=LOCK_S,
        originator_id_type="text",
    )
    assert isinstance(made.pool.kwargs, dict)
    made.pool.kwargs.update(given)  # sslmode and the like
    return made


_PLACE = {"dbname": "", "host": "", "port": "", "user": "", "password": ""}
