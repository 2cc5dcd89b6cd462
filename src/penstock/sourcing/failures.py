"""What databases say through the `eventsourcing` library, as errors of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from eventsourcing.persistence import (
    ConnectionPoolClosedError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    PersistenceError,
)

from penstock.errors import DiskFull, LockTimeout, StorageError, Unreachable


@contextmanager
def told(store: str, *, server: bool) -> Iterator[None]:
    """Meanwhile. A conflict of versions stays an IntegrityError: the caller knows what to do with it."""
    try:
        yield
    except IntegrityError:
        raise
    except ConnectionPoolClosedError as error:
        raise StorageError("the app of these aggregates was closed.", hint="open it anew") from error
    except PersistenceError as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if "locked" in reason or "lock timeout" in reason:
            raise LockTimeout(store, waited_s=LOCK_S) from error
        if "is full" in reason:
            raise DiskFull(store) from error
        if server and isinstance(error, OperationalError | InterfaceError):
            raise Unreachable(store, reason) from error
        raise StorageError(f"{store} says: {reason}.", hint="nothing was recorded; look at it") from error


LOCK_S = 30
"""How long anybody waits for another who writes."""
