"""What Debezium leaves behind in PostgreSQL, removed."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.errors import Unreachable
from penstock.opening import check_postgres


def drop(properties: Mapping[str, str]) -> None:
    """The slot, which would keep the write-ahead log for ever, and the publication."""
    check_postgres()
    import psycopg
    from psycopg import sql

    names = {"host": "hostname", "port": "port", "user": "user", "password": "password", "dbname": "dbname"}
    where = {name: properties.get(f"database.{told}") for name, told in names.items()}
    try:
        with psycopg.connect(**where, autocommit=True) as db:  # type: ignore[arg-type]
            db.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s",
                (properties["slot.name"],),
            )
            publication = sql.Identifier(properties["publication.name"])
            db.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(publication))
    except psycopg.Error as error:
        raise Unreachable(
            f"PostgreSQL at {where['host']}", str(error).strip(), hint="is a capture of it still running?"
        ) from error
