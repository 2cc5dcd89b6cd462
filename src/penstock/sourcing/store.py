"""The port of event stores: recorders of the `eventsourcing` library, and what else we ask of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from penstock.errors import BadOption, NotSupported
from penstock.opening import check_postgres, is_postgres

if TYPE_CHECKING:
    from eventsourcing.persistence import AggregateRecorder, ApplicationRecorder


@dataclass(frozen=True, slots=True)
class Listed:
    """An aggregate in a list."""

    id: str
    version: int


class Waker(Protocol):
    """Tells that something was recorded, also by other processes. Used by one thread."""

    def wait(self, timeout_s: float) -> None:
        """Until something may have been recorded since the last call, or for so long."""

    def close(self) -> None: ...


class Store(Protocol):
    """Where the events of one kind of aggregate are. Thread-safe, and safe for many processes.

    The order of the notifications of `recorder` is the order of the commits: whoever has read up to one of
    them has missed none before it.
    """

    address: str  # for people: without a password
    is_server: bool

    @property
    def recorder(self) -> ApplicationRecorder: ...

    @property
    def snapshots(self) -> AggregateRecorder: ...

    def list(self, *, after: str, limit: int) -> list[Listed]:
        """Aggregates in the order of their ids."""

    def count(self) -> int:
        """How many aggregates there are."""

    def waker(self) -> Waker: ...

    def close(self) -> None: ...


def check_address(address: str | None) -> None:
    """Raises BadOption for a place where no events can be stored."""
    if address is not None and "://" in address and not is_postgres(address):
        raise BadOption(
            f'events cannot be stored at addresses like "{address.partition("://")[0]}://".',
            hint='use "postgresql://user@host/database", or leave it out for a SQLite file',
        )


def open_store(address: str | None, *, path: Path, table: str) -> Store:
    """The store at an address, with its tables in it; without one, the SQLite file at `path`."""
    try:
        import eventsourcing  # noqa: F401
    except ImportError as error:
        raise NotSupported(
            "event sourcing needs the eventsourcing library, which is not installed.",
            hint='install it with: pip install "penstock[sourcing]"',
        ) from error
    if address is not None and is_postgres(address):
        check_postgres()
        _check_pool()
        from penstock.sourcing.postgres_store import PostgresStore

        return PostgresStore(address, table=table)
    from penstock.sourcing.sqlite_store import SQLiteStore

    return SQLiteStore(Path(address) if address is not None else path)


def _check_pool() -> None:
    try:
        import psycopg_pool  # noqa: F401
    except ImportError as error:
        raise NotSupported(
            f"connections to PostgreSQL cannot be pooled ({error}).",
            hint='install what is missing with: pip install "penstock[postgres]"',
        ) from error
