"""Exactly once into a program's own database: the effect and the progress in one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.errors import BadOption
from penstock.log.event import Event

TABLE = "penstock_progress"

_CREATE = f"""CREATE TABLE IF NOT EXISTS {TABLE} (
    consumer_group TEXT NOT NULL, topic TEXT NOT NULL, topic_id TEXT NOT NULL, part INTEGER NOT NULL,
    next_offset BIGINT NOT NULL, PRIMARY KEY (consumer_group, topic, topic_id, part))"""

_Place = tuple[str, str, str, int]


@contextmanager
def once(connection: Any, event: Event) -> Iterator[bool]:
    """Run the body's effect and record the event as processed, in one transaction of `connection`.

    Yields True the first time. When the event was processed before (redelivered after a
    crash, or by a member that has lost its partition) it yields False, and whatever the
    body did on `connection` is rolled back. So a replay (`seek`, `group reset`) repeats no effect
    either: to run effects again, use another group.

        for event in topic.consume(group="mailer", delivery="exactly_once"):
            with ps.once(connection, event) as first:
                if first:
                    connection.execute("UPDATE ...")

    `connection` is an open sqlite3, psycopg or psycopg2 connection without a transaction under way.
    """
    dialect = _dialect_of(connection)
    group = event.group or "(no group)"
    # A topic that was deleted and created again begins anew, and so does its progress.
    place = (group, event.topic, event.topic_id, event.partition)
    dialect.begin(connection)
    try:
        done = dialect.next_offset(connection, place)
        first = event.offset >= done
        yield first
        if first:
            dialect.store(connection, place, event.offset + 1)
    except BaseException:
        connection.rollback()
        raise
    if first:
        connection.commit()
    else:
        connection.rollback()


class _Sqlite:
    def begin(self, connection: Any) -> None:
        if connection.in_transaction:
            raise _open_transaction()
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name=?", (TABLE,)).fetchone():
            connection.execute(_CREATE)
            connection.commit()
        connection.execute("BEGIN IMMEDIATE")

    def next_offset(self, connection: Any, place: _Place) -> int:
        found = connection.execute(
            f"SELECT next_offset FROM {TABLE} WHERE consumer_group=? AND topic=? AND topic_id=? AND part=?",
            place,
        ).fetchone()
        return found[0] if found else 0

    def store(self, connection: Any, place: _Place, offset: int) -> None:
        connection.execute(
            f"INSERT INTO {TABLE} VALUES (?, ?, ?, ?, ?) ON CONFLICT (consumer_group, topic, topic_id, part) "
            "DO UPDATE SET next_offset = excluded.next_offset",
            (*place, offset),
        )


class _Postgres:
    """psycopg and psycopg2 share the calls used here."""

    def begin(self, connection: Any) -> None:
        if connection.autocommit:
            raise BadOption(
                "this connection commits every statement by itself.", hint="open it with autocommit off"
            )
        if connection.info.transaction_status != 0:  # IDLE
            raise _open_transaction()
        with connection.cursor() as cursor:
            cursor.execute("SELECT to_regclass(%s)", (TABLE,))
            if cursor.fetchone()[0] is None:
                # IF NOT EXISTS alone is an error for all but one of those who try at the same time.
                cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (TABLE,))
                cursor.execute(_CREATE)
                connection.commit()

    def next_offset(self, connection: Any, place: _Place) -> int:
        with connection.cursor() as cursor:
            # The row must exist to be locked, so that a second instance waits here instead of doing it twice.
            cursor.execute(f"INSERT INTO {TABLE} VALUES (%s, %s, %s, %s, 0) ON CONFLICT DO NOTHING", place)
            cursor.execute(
                f"SELECT next_offset FROM {TABLE} "
                "WHERE consumer_group=%s AND topic=%s AND topic_id=%s AND part=%s FOR UPDATE",
                place,
            )
            return int(cursor.fetchone()[0])

    def store(self, connection: Any, place: _Place, offset: int) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                f"UPDATE {TABLE} SET next_offset=%s "
                "WHERE consumer_group=%s AND topic=%s AND topic_id=%s AND part=%s",
                (offset, *place),
            )


_DIALECTS: dict[str, _Sqlite | _Postgres] = {
    "sqlite3": _Sqlite(),
    "psycopg": _Postgres(),
    "psycopg2": _Postgres(),
}


def _dialect_of(connection: Any) -> _Sqlite | _Postgres:
    for base in type(connection).__mro__:
        found = _DIALECTS.get(base.__module__.partition(".")[0])
        if found:
            return found
    raise BadOption(
        f"{type(connection).__name__} is no connection that once() knows.",
        hint="pass an open sqlite3, psycopg or psycopg2 connection",
    )


def _open_transaction() -> BadOption:
    return BadOption(
        "a transaction is under way on this connection.", hint="commit or roll it back before ps.once(...)"
    )
