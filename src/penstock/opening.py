"""Opening a log by its address: a folder on this machine, or a Kafka cluster."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import BadOption, NotSupported, StorageError
from penstock.log.embedded import EmbeddedLog
from penstock.log.log import Log, home_of

if TYPE_CHECKING:
    from penstock.kafka.log import KafkaLog

KAFKA = "kafka://"
_POSTGRES = ("postgresql://", "postgres://")


def open_log(home: str | Path | None = None) -> Log:
    """Open the log under the folder `home` (default: $PENSTOCK_HOME or ./.penstock), or on "kafka://host:port".

    A folder is created if need be.

    >>> import tempfile
    >>> log = open_log(tempfile.mkdtemp())
    >>> clicks = log.create_topic("clicks", "user STRING, page STRING", key="user")
    >>> clicks.append({"user": "ann", "page": "/"}).offset
    0
    >>> [event["page"] for event in clicks.events()]
    ['/']
    """
    address = address_of(home)
    if is_kafka(address):
        return Log(_kafka(address))
    try:
        return Log(EmbeddedLog(Path(address)))
    except PermissionError as error:
        raise StorageError(
            f"{address} cannot be written.", hint="choose another --home or PENSTOCK_HOME"
        ) from error


def address_of(home: str | Path | None = None) -> str:
    """`home`, else $PENSTOCK_HOME, else ./.penstock."""
    chosen = checked(str(home or os.environ.get("PENSTOCK_HOME") or ""))
    return chosen if is_kafka(chosen) else str(home_of(home))


def checked(address: str) -> str:
    """Raises BadOption for what would become a folder and was surely meant for a server."""
    alike = "://" in address or re.fullmatch(r"[\w.-]+:\d+", address)
    if alike and not is_kafka(address) and not Path(address).exists():
        place = address.rpartition("//")[2].rpartition("@")[2]
        raise BadOption(
            "a log is in a folder or on Kafka, and this address names neither.",
            hint=f"for Kafka, and for all that speaks like it: {KAFKA}{place}",
        )
    return address


def is_kafka(address: object) -> bool:
    return isinstance(address, str) and address.startswith(KAFKA)


def is_postgres(address: str) -> bool:
    return address.startswith(_POSTGRES)


def check_postgres() -> None:
    """Raises NotSupported where the driver is not installed."""
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise NotSupported(
            f"the PostgreSQL driver is not installed ({error}).",
            hint='install it with: pip install "penstock[postgres]"',
        ) from error


def check_kafka() -> None:
    """Raises NotSupported where the client is not installed."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as error:
        raise NotSupported(
            "Kafka is spoken with confluent-kafka, which is not installed.",
            hint='pip install "penstock[kafka]"',
        ) from error


def _kafka(url: str) -> KafkaLog:
    check_kafka()
    from penstock.kafka.log import KafkaLog

    return KafkaLog(url)
