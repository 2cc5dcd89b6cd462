"""Whether a MySQL or MariaDB database can be captured: every problem at once, before anything is begun."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.capture import mysql_types, outbox
from penstock.capture.mysql_server import Server
from penstock.capture.mysql_types import Column
from penstock.capture.source import Table
from penstock.errors import BadOption, NotAllowed
from penstock.schema import did_you_mean

_SETTINGS = {
    "log_bin": ("ON", "set log_bin=binlog in the server's configuration (under [mysqld]), and restart it"),
    "binlog_format": ("ROW", "SET GLOBAL binlog_format = 'ROW', and connect the writers anew"),
    "binlog_row_image": ("FULL", "SET GLOBAL binlog_row_image = 'FULL', and connect the writers anew"),
    "binlog_row_metadata": ("FULL", "SET GLOBAL binlog_row_metadata = 'FULL'"),
    "log_bin_compress": ("OFF", "SET GLOBAL log_bin_compress = OFF"),
    "binlog_transaction_compression": ("OFF", "SET GLOBAL binlog_transaction_compression = OFF"),
    "binlog_row_value_options": ("", "SET GLOBAL binlog_row_value_options = ''"),
}
_OPTIONAL = {"log_bin_compress", "binlog_transaction_compression", "binlog_row_value_options"}
_SPECIAL = (mysql_types.UUID, mysql_types.INET4, mysql_types.INET6)
_CASCADE = re.compile(
    r"CONSTRAINT `([^`]+)` FOREIGN KEY .*? ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT)"
)
_VERSIONED = re.compile(r" WITH SYSTEM VERSIONING$", re.M)
_WIDE = ("ucs2", "utf16", "utf16le", "utf32")


@dataclass(frozen=True, slots=True)
class Described:
    """A table as information_schema has it."""

    table: Table
    columns: tuple[Column, ...]

    @property
    def special(self) -> dict[str, str]:
        """Columns that the binlog does not tell from BINARY."""
        return {column.name: column.kind for column in self.columns if column.kind in _SPECIAL}


@dataclass(frozen=True, slots=True)
class Problem:
    what: str
    remedy: str
    is_right: bool = False  # something that the user may not do


_LEFT_OUT = Problem(
    "the database is not in the binlog",
    "take binlog_do_db and binlog_ignore_db out of the server's configuration, and restart it",
)


def checked(server: Server, wanted: Sequence[str] | None) -> dict[str, Described]:
    """The tables to capture. Raises BadOption, or NotAllowed, with everything that is in the way."""
    problems = [*_settings(server), *_rights(server)]
    if not problems and server.leaves_out(server.address.database):
        problems.append(_LEFT_OUT)
    there = names(server)
    for name in wanted or ():
        if name not in there:
            remedy = did_you_mean(name, there or ["none"])
            problems.append(Problem(f'there is no table "{name}", or it may not be read', remedy))
    found, more = _described(server, there, wanted)
    problems += more
    if outbox.TABLE in found:
        problems += _outbox_problems(server)
    if problems:
        _refuse(server, problems)
    if not found:
        raise BadOption(
            f"{server.address} has no table with a primary key that {server.address.user} may read.",
            hint=f"GRANT SELECT ON `{server.address.database}`.* TO {server.address.user}",
        )
    return found


def described(server: Server, wanted: Sequence[str] | None) -> dict[str, Described]:
    """The tables as they are now."""
    found, problems = _described(server, names(server), wanted)
    if problems:
        _refuse(server, problems)
    return found


def described_new(server: Server, name: str) -> Described | None:
    """A table that was made meanwhile; None where it is gone. Raises BadOption where it cannot be told."""
    found, problems = _described(server, [each for each in names(server) if each == name], None)
    if problems:
        _refuse(server, problems)
    return found.get(name)


def names(server: Server) -> list[str]:
    rows = server.rows(
        "SELECT TABLE_NAME FROM information_schema.TABLES "
        "WHERE TABLE_SCHEMA = %s AND TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY TABLE_NAME",
        server.address.database,
    )
    return [str(row[0]) for row in rows]


def keyless(server: Server) -> list[str]:
    """Tables that are not captured, since nothing tells their rows apart."""
    keys = _keys(server)
    return [name for name in names(server) if not keys.get(name)]


def quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _refuse(server: Server, problems: Sequence[Problem]) -> None:
    what = "; ".join(problem.what for problem in problems)
    remedies = "; ".join(dict.fromkeys(problem.remedy for problem in problems))
    if all(problem.is_right for problem in problems):
        raise NotAllowed(f"MySQL ({server.address})", what, hint=remedies)
    raise BadOption(f"{server.address} cannot be captured as it is: {what}.", hint=remedies)


def _settings(server: Server) -> Iterator[Problem]:
    for name, (needed, remedy) in _SETTINGS.items():
        value = server.variable(name)
        if value is None and name in _OPTIONAL:
            continue
        if value is None or value.upper() != needed:
            told = (
                "missing (MySQL 8.0.14 or MariaDB 10.5 has it)" if value is None else f"{value}, not {needed}"
            )
            yield Problem(f"{name} is {told}", remedy)


def _rights(server: Server) -> Iterator[Problem]:
    grants = [str(row[0]).upper() for row in server.rows("SHOW GRANTS")]
    everywhere = " ".join(line.partition(" ON *.* ")[0] for line in grants if " ON *.* " in line)
    if "ALL PRIVILEGES" in everywhere:
        return
    watching = "BINLOG MONITOR" if server.is_mariadb else "REPLICATION CLIENT"
    needed = {"REPLICATION SLAVE": ("REPLICATION SLAVE", "REPLICATION REPLICA"), watching: (watching,)}
    if not server.is_mariadb:
        needed["RELOAD"] = ("RELOAD",)  # a moment of FLUSH TABLES WITH READ LOCK, for the snapshot
    missing = [right for right, said in needed.items() if not any(word in everywhere for word in said)]
    if missing:
        listed = ", ".join(missing)
        yield Problem(
            f"{server.address.user} lacks {listed}",
            f"GRANT {listed} ON *.* TO {server.address.user}",
            is_right=True,
        )


def _outbox_problems(server: Server) -> Iterator[Problem]:
    """What is published is removed from there. Rights are checked also where nothing is deleted."""
    try:
        server.run(f"DELETE FROM {outbox.TABLE} WHERE FALSE")
    except NotAllowed:
        yield Problem(
            f'{server.address.user} may not delete from "{outbox.TABLE}", where what is published is removed',
            f"GRANT DELETE ON `{server.address.database}`.{outbox.TABLE} TO {server.address.user}",
            is_right=True,
        )


def _described(
    server: Server, there: Sequence[str], wanted: Sequence[str] | None
) -> tuple[dict[str, Described], list[Problem]]:
    columns, keys = _columns(server), _keys(server)
    found, problems = {}, []
    for name in there:
        if wanted is not None and name not in wanted:
            continue
        key = keys.get(name)
        if not key:
            if wanted is not None:
                problems.append(_no_key(name))
            continue
        own = [*_unmapped(name, columns.get(name, [])), *_key_problems(name, key, columns.get(name, []))]
        problems += (own := [*own, *_untold(server, name)])
        if not own:
            mapped = tuple(column for column, _ in columns[name] if column is not None)
            schema = pa.schema([pa.field(column.name, column.dtype) for column in mapped])
            found[name] = Described(Table(name, schema, tuple(key)), mapped)
    return found, problems


def _columns(server: Server) -> dict[str, list[tuple[Column | None, str]]]:
    """By table: the columns, None where the log has no type, and how each was declared."""
    rows = server.rows(
        "SELECT TABLE_NAME, COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, NUMERIC_PRECISION, NUMERIC_SCALE, "
        "DATETIME_PRECISION, CHARACTER_SET_NAME, COLLATION_NAME FROM information_schema.COLUMNS "
        "WHERE TABLE_SCHEMA = %s ORDER BY TABLE_NAME, ORDINAL_POSITION",
        server.address.database,
    )
    found: dict[str, list[tuple[Column | None, str]]] = {}
    for table, name, base, whole, digits, scale, fraction, charset, collation in rows:
        column = mysql_types.declared(
            name, str(base).lower(), str(whole).lower(), digits=int(digits or 0),
            scale=int(scale or fraction or 0), charset=charset,
        )  # fmt: skip
        if column is not None and not _is_readable(column, str(whole), str(collation or "")):
            column = None
        said = f"{name} {whole}" + (f" CHARACTER SET {charset}" if charset else "")
        found.setdefault(str(table), []).append((column, said))
    return found


def _is_readable(column: Column, whole: str, collation: str) -> bool:
    """The binlog tells the words of an ENUM in its character set, which the driver takes for UTF-8."""
    if column.charset in _WIDE and "uca1400" in collation:
        return False
    if column.kind not in (mysql_types.ENUM, mysql_types.SET) or column.charset.startswith("utf8"):
        return True
    return whole.isascii() and column.charset not in _WIDE


def _keys(server: Server) -> dict[str, list[str]]:
    rows = server.rows(
        "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s "
        "AND INDEX_NAME = 'PRIMARY' ORDER BY TABLE_NAME, SEQ_IN_INDEX",
        server.address.database,
    )
    found: dict[str, list[str]] = {}
    for table, column in rows:
        found.setdefault(str(table), []).append(str(column))
    return found


def _untold(server: Server, table: str) -> Iterator[Problem]:
    """Of a table's rows: what is not in the binlog, or is there and is none.

    Foreign keys are asked for in this way since information_schema does not show them to a user who may only
    read.
    """
    made = str(server.rows(f"SHOW CREATE TABLE {quoted(table)}")[0][1])
    for constraint in _CASCADE.findall(made):
        yield Problem(
            f'table "{table}" has a foreign key with CASCADE or SET NULL ("{constraint}"), and what that '
            "changes is not in the binlog",
            f"ALTER TABLE {quoted(table)} DROP FOREIGN KEY {quoted(constraint)} and add it with RESTRICT, or "
            "leave the table out by naming the others",
        )
    if _VERSIONED.search(made):
        yield Problem(
            f'table "{table}" has system versioning, and the binlog tells its old rows like those of now',
            "leave the table out by naming the others",
        )


def _no_key(table: str) -> Problem:
    return Problem(
        f'table "{table}" has no primary key, so that its rows cannot be told apart',
        f"ALTER TABLE {quoted(table)} ADD PRIMARY KEY (…)",
    )


def _unmapped(table: str, columns: Sequence[tuple[Column | None, str]]) -> Iterator[Problem]:
    for column, said in columns:
        if column is None:
            shown = re.sub(r"\s+", " ", said)[:80]
            yield Problem(
                f'column {shown} of "{table}" has a type that the log has not',
                "change the column, or leave the table out by naming the others",
            )


def _key_problems(
    table: str, key: Sequence[str], columns: Sequence[tuple[Column | None, str]]
) -> Iterator[Problem]:
    for column, _ in columns:
        if column is not None and column.name in key and column.kind == mysql_types.FLOAT:
            yield Problem(
                f'column "{column.name}" of the key of "{table}" is a FLOAT or DOUBLE',
                f"ALTER TABLE {quoted(table)} MODIFY {quoted(column.name)} DECIMAL(30, 10) NOT NULL",
            )
