"""A database to be captured, as a program declares it: by its address alone, or with options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.capture.source import Source
from penstock.clock import duration_ms
from penstock.errors import BadOption, NotSupported
from penstock.opening import check_kafka, check_postgres, check_secret, is_postgres

_SQLITE = "sqlite:///"
_MYSQL = ("mysql://", "mariadb://")


@dataclass(frozen=True, slots=True)
class Database:
    """Nothing is connected to until it is opened."""

    kind: str
    place: str  # what to call it: the database's name
    open: Callable[[str], Source] = field(repr=False)  # for the capture of this name


def source_at(address: str | Path, *, tables: Sequence[str] | None = None) -> Database:
    """What an address names: "postgresql://…", "mysql://…", "mariadb://…", "sqlite:///path" or a path."""
    text = str(address)
    if is_postgres(text):
        return postgres(text, tables=tables)
    if text.startswith(_MYSQL):
        return mysql(text, tables=tables)
    if "://" in text and not text.startswith(_SQLITE):
        raise BadOption(
            f'nothing can be captured from addresses like "{text.partition("://")[0]}://".',
            hint='use "postgresql://user@host/database", "mysql://user@host/database", "sqlite:///path" '
            "or a path",
        )
    return sqlite(text, tables=tables)


def sqlite(
    path: str | Path, *, tables: Sequence[str] | None = None, types: Mapping[str, str] | None = None
) -> Database:
    """A SQLite database. `tables`: all that have a key. `types`: {"orders.paid_at": "TIMESTAMP"}."""
    place = str(path).removeprefix(_SQLITE)
    if not place:
        raise BadOption("the path of a database is empty.", hint='give a path, or "sqlite:///path"')
    here = Path(place).absolute()

    def make(name: str) -> Source:
        from penstock.capture.sqlite_source import SQLiteSource

        return SQLiteSource(here, name=name, tables=tables, types=types)

    return Database("sqlite", here.stem, make)


def postgres(
    url: str,
    *,
    tables: Sequence[str] | None = None,
    slot: str | None = None,
    publication: str | None = None,
    heartbeat: str | float = "10 seconds",
    as_text: Sequence[str] = (),
) -> Database:
    """A PostgreSQL database, by its write-ahead log. `tables`: all that have a key.

    `as_text`: columns ("orders.due") to be captured as PostgreSQL prints them.
    """
    heartbeat_s = duration_ms(heartbeat) / 1_000

    def make(name: str) -> Source:
        check_postgres()
        from penstock.capture.postgres_source import PostgresSource

        return PostgresSource(
            url, name=name, tables=tables, slot=slot, publication=publication, heartbeat_s=heartbeat_s,
            as_text=as_text,
        )  # fmt: skip

    return Database("postgresql", _database(url), make)


def mysql(url: str, *, tables: Sequence[str] | None = None, server_id: int | None = None) -> Database:
    """A MySQL or MariaDB database, by its binlog. `tables`: all that have a key."""

    def make(name: str) -> Source:
        try:
            from penstock.capture.mysql_source import MySQLSource
        except ImportError as error:
            raise NotSupported(
                f"the MySQL driver is not installed ({error}).",
                hint='install it with: pip install "penstock[mysql]"',
            ) from error
        return MySQLSource(url, name=name, tables=tables, server_id=server_id)

    return Database("mysql", _database(url), make)


def debezium(
    connector: str,
    properties: Mapping[str, Any],
    *,
    tables: Sequence[str] | Mapping[str, str] | None = None,
    types: Mapping[str, str] | None = None,
    memory_mb: int = 512,
) -> Database:
    """Whatever Debezium supports, through its engine. `connector`: "mysql", "oracle", … or a class.

    `properties` are the connector's own. `tables`: all; names as Debezium has them ("public.orders"), or
    with columns, {"public.orders": "id BIGINT NOT NULL, note STRING"}, for programs that ask for them before
    the first row: those, with NOT NULL for the key. `types`: {"orders.note": "STRING"}.
    """

    def make(name: str) -> Source:
        from penstock.capture.debezium_source import DebeziumSource

        return DebeziumSource(
            connector, properties, name=name, tables=tables, types=types, memory_mb=memory_mb
        )

    place = properties.get("database.dbname") or properties.get("topic.prefix") or connector
    return Database("debezium", str(place), make)


def debezium_topics(
    url: str,
    *,
    topics: Sequence[str] = (),
    prefix: str = "",
    tables: Mapping[str, str] | None = None,
    flat: bool = False,
) -> Database:
    """Topics on "kafka://host:port" that a Debezium server fills with JSON.

    `tables`: columns of those whose messages have no schema, {"orders": "id BIGINT NOT NULL, note STRING"},
    NOT NULL for the key. `flat`: rows without an envelope, as ExtractNewRecordState writes them.
    """

    def make(_name: str) -> Source:
        check_kafka()
        from penstock.capture.debezium_json import declared_tables
        from penstock.capture.debezium_topics_source import DebeziumTopicsSource

        return DebeziumTopicsSource(
            url, topics=topics, prefix=prefix, declared=declared_tables(tables or {}), flat=flat
        )

    place = prefix or (topics[0] if topics else "topics")
    return Database("debezium topics", place.partition(".")[0], make)


def _database(url: str) -> str:
    return check_secret(url).partition("://")[2].partition("?")[0].rpartition("/")[2] or "postgres"
