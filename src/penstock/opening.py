"""Opening a log by its address: a folder on this machine, or a Kafka cluster."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.erasure.keys import KeyStore
from penstock.erasure.opening import open_keys
from penstock.errors import BadOption, NotSupported, StorageError
from penstock.log.embedded import EmbeddedLog
from penstock.log.log import Log, home_of

if TYPE_CHECKING:
    from penstock.kafka.log import KafkaLog

KAFKA = "kafka://"
_POSTGRES = ("postgresql://", "postgres://")


def open_log(home: str | Path | None = None, *, keys: str | Path | None = None) -> Log:
    """Open the log under the folder `home` (default: $PENSTOCK_HOME or ./.penstock), or on "kafka://host:port".

    A folder is created if need be. `keys`: the file with the keys of subjects, for personal columns (default:
    $PENSTOCK_KEYS, else in the folder).

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
        return Log(_kafka(address, open_keys(keys)))
    try:
        found = open_keys(keys, beside=Path(address))
        return Log(EmbeddedLog(Path(address), keys=found, upkeep_beside=True))
    except PermissionError as error:
        raise StorageError(
            f"{address} cannot be written: {error.strerror}.", hint="choose another --home or PENSTOCK_HOME"
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


def check_secret(address: str) -> str:
    """Raises BadOption where a / ? or # in a password would be taken for its end, and the rest be shown."""
    rest = address.partition("://")[2]
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    behind = rest[len(authority) :].partition("=")[0]  # an option may have any character
    host, _, port = authority.rpartition("@")[2].rpartition(":")
    is_port = port.isdecimal() or not port or not host or "]" in port or "," in host
    if ("@" in behind and "@" not in authority) or authority.count("@") > 1 or not is_port:
        raise BadOption(
            "the address cannot be read: a password has a character that ends it.",
            hint="write / as %2F, ? as %3F, # as %23, @ as %40 and : as %3A in it",
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


def _kafka(url: str, keys: KeyStore) -> KafkaLog:
    check_kafka()
    from penstock.kafka.log import KafkaLog

    return KafkaLog(url, keys=keys)
