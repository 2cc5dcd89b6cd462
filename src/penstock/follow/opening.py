"""A store by its address."""

from __future__ import annotations

from pathlib import Path

from penstock.errors import BadOption
from penstock.follow.store import Store
from penstock.opening import check_postgres, is_postgres

_SQLITE = "sqlite:///"


def open_store(address: str | Path) -> Store:
    """PostgreSQL for "postgresql://…", SQLite for "sqlite:///path" or a path."""
    text = str(address)
    if is_postgres(text):
        check_postgres()
        from penstock.follow.postgres import PostgresStore

        return PostgresStore(text)
    if "://" in text and not text.startswith(_SQLITE):
        raise BadOption(
            f'there is no store for addresses like "{text.partition("://")[0]}://".',
            hint='use "postgresql://user@host/database", "sqlite:///path" or a path',
        )
    if not text.removeprefix(_SQLITE):
        raise BadOption("the address of a store is empty.", hint='give a path, or "sqlite:///path"')
    from penstock.follow.sqlite import SQLiteStore

    return SQLiteStore(Path(text.removeprefix(_SQLITE)))
