"""A MySQL or MariaDB server: its address, connections to it, what it says of its binlog, and its errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import total_ordering
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql
from pymysql.converters import encoders
from pymysql.cursors import SSCursor

from penstock.capture.pieces import pieces
from penstock.capture.source import Position
from penstock.errors import (
    BadInput,
    BadOption,
    Contended,
    NotAllowed,
    NotSupported,
    PenstockError,
    StorageError,
    Unreachable,
)
from penstock.opening import check_secret
from penstock.schema import did_you_mean

RESNAPSHOT = "penstock capture resnapshot SOURCE"
_CONNECT_S = 10.0
_ANSWER_S = 60.0
_OPTIONS = ("zero_dates", "ssl_ca")
_AWAY = {0, 1040, 1053, 1080, 1158, 1159, 1160, 1161, 1317, 1927, 2002, 2003, 2006, 2013, 2055}
_REFUSED = {1044, 1045, 1142, 1143, 1227, 1251, 1698, 2059}
_ALTERED = {1146, 1412, 1054}  # a table changed its form while it was read
_BINLOG = 1236


@total_ordering
@dataclass(frozen=True, slots=True)
class At:
    """A place in the binlog. Files are counted by the number at the end of their name."""

    file: str
    pos: int

    @classmethod
    def of(cls, position: Position) -> At:
        return cls(str(position["file"]), int(position["pos"]))

    def __lt__(self, other: At) -> bool:
        return self._order() < other._order()

    def __str__(self) -> str:
        return f"{self.file}:{self.pos:010d}"

    def _order(self) -> tuple[int, int]:
        number = self.file.rpartition(".")[2]
        return (int(number) if number.isdigit() else 0, self.pos)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a database is. `str` of it may be shown."""

    host: str
    port: int
    user: str
    database: str
    password: str = field(repr=False, default="")
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, url: str) -> Address:
        """ "mysql://user:password@host:port/database", or "mariadb://…". Raises BadOption."""
        try:
            parts = urlsplit(check_secret(url))
            host, port = parts.hostname, parts.port or 3306
        except ValueError:  # which may repeat the password
            raise _bad_address("the address of the database cannot be read.") from None
        database, options = unquote(parts.path.strip("/")), dict(parse_qsl(parts.query))
        if parts.scheme not in ("mysql", "mariadb") or not host or not parts.username or not database:
            raise _bad_address("the address of the database says no user, no host or no database.")
        for name in options:
            if name not in _OPTIONS:
                raise BadOption(
                    f'the address of the database has an unknown option "{name}".',
                    hint=did_you_mean(name, _OPTIONS),
                )
        return cls(host, port, unquote(parts.username), database, unquote(parts.password or ""), options)

    def __str__(self) -> str:
        return f"mysql://{self.user}@{self.host}:{self.port}/{self.database}"


def _bad_address(message: str) -> BadOption:
    return BadOption(message, hint='write it as "mysql://user:password@host:3306/database"')


def settings(address: Address) -> dict[str, Any]:
    """For pymysql. Values come as the server writes them: text, or bytes."""
    found: dict[str, Any] = {
        "host": address.host, "port": address.port, "user": address.user, "password": address.password,
        "charset": "utf8mb4", "connect_timeout": _CONNECT_S, "read_timeout": _ANSWER_S,
    }  # fmt: skip
    if "ssl_ca" in address.options:
        found["ssl_ca"] = address.options["ssl_ca"]
    return found


class Server:
    """A connection for questions. Reads are committed ones, each for itself, and times are UTC."""

    def __init__(self, address: Address) -> None:
        self.address = address
        with errors(address):
            self.db = pymysql.connect(
                **settings(address), database=address.database, autocommit=True, conv=encoders,
                init_command="SET time_zone = '+00:00', sql_mode = '', net_write_timeout = 3600",
            )  # fmt: skip
            self.is_mariadb = "MariaDB" in self.db.get_server_info()

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with errors(self.address), self.db.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    def run(self, statement: str) -> None:
        self.rows(statement)

    def variable(self, name: str) -> str | None:
        found = self.rows("SHOW GLOBAL VARIABLES LIKE %s", name)
        return str(found[0][1]) if found else None

    def end(self) -> At:
        """Where the binlog ends now."""
        found = self._binlog()
        if not found:
            raise BadInput(
                f"{self.address} writes no binlog.", hint="set log_bin in the server's configuration"
            )
        return At(str(found[0][0]), int(found[0][1]))

    def leaves_out(self, database: str) -> bool:
        """Whether the server is told to keep a database out of its binlog."""
        only, not_these = (str(_text(each) or "").split(",") for each in self._binlog()[0][2:4])
        return database in not_these or (only != [""] and database not in only)

    def _binlog(self) -> list[tuple[Any, ...]]:
        try:
            return self.rows("SHOW MASTER STATUS")
        except StorageError:  # MySQL 8.4 has no words for it but these
            return self.rows("SHOW BINARY LOG STATUS")

    def files(self) -> dict[str, int]:
        """The files of the binlog that are there still, and how long each is."""
        return {str(row[0]): int(row[1]) for row in self.rows("SHOW BINARY LOGS")}

    def gtids(self, at: At) -> str | None:
        """The last transactions before a place in the binlog; None where the server cannot say."""
        if not self.is_mariadb:
            return None
        found = self.rows("SELECT BINLOG_GTID_POS(%s, %s)", at.file, at.pos)[0][0]
        return _text(found)

    def pieces(self, statement: str, count: int) -> Iterator[list[tuple[Any, ...]]]:
        """The rows of a large result, at most so many at once. Close the connection if it is left early."""
        with errors(self.address):
            cursor = self.db.cursor(SSCursor)
            try:
                cursor.execute(statement)
                yield from pieces(cursor, count)
            finally:
                _abandon(cursor)

    def close(self) -> None:
        if self.db.open:
            with suppress(pymysql.err.Error, OSError):
                self.db.close()


def _abandon(cursor: Any) -> None:
    """The driver would read all the rest of a result, even when the connection is gone."""
    if cursor._result is not None:
        cursor._result.unbuffered_active = False
    cursor.connection = None


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


@contextmanager
def errors(address: Address) -> Iterator[None]:
    """What the driver raises becomes ours. None of it shows the password."""
    try:
        yield
    except PenstockError:
        raise
    except (pymysql.err.Error, OSError, EOFError) as error:
        raise _ours(address, error) from None
    except RuntimeError as error:
        if "cryptography" not in str(error):
            raise
        raise NotSupported(
            f"{address} asks for the password in a way that PyMySQL cannot answer alone.",
            hint='pip install "PyMySQL[rsa]", or connect with TLS: mysql://…/database?ssl_ca=FILE',
        ) from None


def _ours(address: Address, error: Exception) -> PenstockError:
    code, reason = _said(error)
    server = f"MySQL ({address})"
    if isinstance(error, OSError | EOFError) or code in _AWAY:
        return Unreachable(server, reason, hint="is it running, and can it be reached from here?")
    if code == 1049:
        return BadOption(f'{address} has no database "{address.database}".', hint="check its name")
    if code in _REFUSED:
        return NotAllowed(server, reason)
    if code in _ALTERED:
        return Contended(f"{address}: {reason}; a table was altered meanwhile.", hint="it is tried again")
    if code == _BINLOG:
        return _no_binlog(address, reason)
    return StorageError(f"{address}: {reason} (error {code}).", hint="see the server's log")


def _said(error: Exception) -> tuple[int, str]:
    args = error.args
    code = args[0] if args and isinstance(args[0], int) else 0
    return code, re.sub(r"\s+", " ", str(args[1] if len(args) > 1 else error)).strip().rstrip(".")


def _no_binlog(address: Address, reason: str) -> BadInput:
    if "max_allowed_packet" in reason:
        return BadInput(
            f"{address} cannot send its binlog: {reason}.", hint="raise the server's max_allowed_packet"
        )
    return lost(address, reason)


def lost(address: Address, reason: str) -> BadInput:
    """Changes are missing for good: to go on silently would be wrong."""
    return BadInput(
        f"{address} does not have the binlog that comes next: {reason}. Changes are missing.",
        hint=f"read the tables again whole: {RESNAPSHOT}; and let the server keep its binlog for longer: "
        "SET GLOBAL expire_logs_days = 7 (MySQL 8: binlog_expire_logs_seconds)",
    )
