"""What has to be right in PostgreSQL before anything is captured; a problem names the SQL that mends it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from psycopg import Connection
from psycopg.sql import Identifier

from penstock.capture.outbox import is_outbox
from penstock.capture.pgoutput import FULL
from penstock.capture.postgres_captured import Captured
from penstock.capture.postgres_catalog import (
    DEFAULT_SCHEMA,
    ORDINARY,
    PARTITIONED,
    PERMANENT,
    Catalog,
    CatalogTable,
)
from penstock.capture.postgres_connection import one_moment
from penstock.capture.postgres_publication import completing, creating, published
from penstock.capture.source import BOOKKEEPING, Table
from penstock.errors import BadSchema, NotSupported
from penstock.log.keys import check_key
from penstock.schema import RecordSchema, did_you_mean

_VERSION_MIN = 140_000  # from 14 on, pgoutput hands on messages: our heartbeat
_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}
_NOTHING = "n"
_SETTINGS = """
SELECT current_setting('server_version_num')::int, current_setting('wal_level'),
       current_setting('max_replication_slots')::int, (SELECT count(*) FROM pg_replication_slots),
       EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %(slot)s),
       current_setting('max_wal_senders')::int,
       (SELECT count(*) FROM pg_stat_replication r WHERE NOT EXISTS
           (SELECT FROM pg_replication_slots o WHERE o.active_pid = r.pid AND o.slot_name = %(slot)s)),
       r.rolsuper OR r.rolreplication, r.rolsuper, current_user::text, pg_is_in_recovery(),
       has_database_privilege(current_database(), 'CREATE'), current_database()::text
FROM pg_roles r WHERE r.rolname = current_user
"""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, and what to do: as a rule, SQL to run."""

    what: str
    remedy: str
    tables: tuple[str, ...] = ()  # that cannot be captured because of it


@dataclass(frozen=True, slots=True)
class Found:
    """The tables to capture, with their columns; everything that is in the way; and the names of all."""

    tables: list[CatalogTable]
    problems: list[Problem]
    names: Mapping[int, str]
    attached: Mapping[str, Mapping[int, bool]]  # partitions that came as tables, and whether with rows

    def captured(self, tables: Sequence[CatalogTable]) -> dict[str, Captured]:
        """To be remembered of these."""
        return {
            table.name: Captured(table.oid, tuple(table.places), frozenset(self.attached.get(table.name, ())))
            for table in tables
        }

    @property
    def sound(self) -> list[CatalogTable]:
        bad = {name for problem in self.problems for name in problem.tables}
        return [table for table in self.tables if table.name not in bad]


@dataclass(frozen=True, slots=True)
class _Server:
    version: int
    wal_level: str
    slots_max: int
    slots: int
    has_slot: bool
    senders_max: int
    senders: int
    may_replicate: bool
    is_superuser: bool
    user: str
    is_standby: bool
    may_create: bool
    database: str


def raise_if_any(address: str, problems: Sequence[Problem]) -> None:
    if not problems:
        return
    head = f"{address} cannot be captured as it is:"
    hint = "\n".join(dict.fromkeys(problem.remedy for problem in problems))
    raise NotSupported("\n".join([head, *(f"- {problem.what}" for problem in problems)]), hint=hint)


def checked(
    db: Connection[Any],
    catalog: Catalog,
    wanted: Sequence[str] | None,
    known: Mapping[str, Captured],
    *,
    slot: str,
    publication: str,
) -> Found:
    """`known`: tables that were captured so far: one that is there still must be sound."""
    server = _Server(*db.execute(_SETTINGS, {"slot": slot}).fetchone())  # type: ignore[misc]
    problems = _server_problems(server)
    every = catalog.tables(db)
    if wanted is None:
        numbers = {name: captured.oid for name, captured in known.items()}
        are_known = {
            table.oid for table in every if numbers.get(table.name) == table.oid and not table.is_partition
        }
        candidates = [table for table in every if _is_candidate(table) or table.oid in are_known]
        described = catalog.described(db, candidates)
        tables = [table for table in described if table.key or table.oid in are_known]
        if not tables:
            problems.append(Problem("there is no table with a primary key.", "name tables, or create some"))
    else:
        named, unknown = _named(every, wanted)
        problems += unknown
        tables = catalog.described(db, named)
    problems += _alike(tables)
    for table in tables:
        found = _table_problems(catalog, table, server) or _partition_problems(
            table, catalog.partitions(db, table, every), tables
        )
        problems += [replace(each, tables=(table.name,)) for each in found]
    problems += _outbox_problems(db, tables, server)
    if not problems and not server.is_superuser:
        problems = _publication_problems(db, tables, publication, server)
    attached = {table.name: catalog.attached(db, table) for table in tables}
    names = {table.oid: table.name for table in every if wanted is not None or not table.is_partition}
    return Found(tables, problems, names, attached)


def _server_problems(server: _Server) -> list[Problem]:
    found = []
    role = Identifier(server.user).as_string(None)
    if server.version < _VERSION_MIN:
        found.append(Problem(f"it is of version {server.version // 10_000}.", "use PostgreSQL 14 or newer"))
    if server.is_standby:
        found.append(Problem("it is a standby, which cannot be written to.", "capture the primary"))
    if server.wal_level != "logical":
        remedy = "ALTER SYSTEM SET wal_level = logical; then restart PostgreSQL"
        found.append(Problem(f"wal_level is {server.wal_level}, not logical.", remedy))
    if not server.has_slot and server.slots >= server.slots_max:
        what = f"all {server.slots_max} replication slots are taken (max_replication_slots)."
        remedy = f"ALTER SYSTEM SET max_replication_slots = {server.slots + 4}; then restart PostgreSQL"
        found.append(Problem(what, remedy))
    if server.senders >= server.senders_max:
        what = f"all {server.senders_max} WAL senders are busy (max_wal_senders)."
        remedy = f"ALTER SYSTEM SET max_wal_senders = {server.senders + 4}; then restart PostgreSQL"
        found.append(Problem(what, remedy))
    if not server.may_replicate:
        found.append(Problem(f"role {role} may not replicate.", f"ALTER ROLE {role} REPLICATION"))
    return found


def _is_candidate(table: CatalogTable) -> bool:
    """A partition comes as its partitioned table."""
    is_own = table.relname in BOOKKEEPING
    is_table = table.kind in (ORDINARY, PARTITIONED) and not table.is_partition and not is_own
    return is_table and table.persistence == PERMANENT


def left_out(db: Connection[Any], catalog: Catalog) -> list[str]:
    """Tables that are not captured unless they are named, and then refused: they need a key, and WAL."""
    with one_moment(db):
        there = [
            table
            for table in catalog.tables(db)
            if table.kind in (ORDINARY, PARTITIONED) and table.persistence != "t" and not table.is_partition
            and table.relname not in BOOKKEEPING
        ]  # fmt: skip
        described = catalog.described(db, there)
    return [table.name for table in described if not (table.key and _is_candidate(table))]


def _named(every: Sequence[CatalogTable], wanted: Sequence[str]) -> tuple[list[CatalogTable], list[Problem]]:
    prefix = f"{DEFAULT_SCHEMA}."
    named: dict[int, CatalogTable] = {}
    unknown = []
    for name in wanted:
        short = name.removeprefix(prefix)
        # A temporary table of this name would be found under its own schema.
        temporary = [table for table in every if table.relname == short and table.persistence == "t"]
        found = [table for table in every if table.name == short] or temporary[:1]
        named.update({table.oid: table for table in found})
        if not found:
            near = [table.name for table in every if table.kind in (ORDINARY, PARTITIONED)]
            remedy = did_you_mean(short, near) if near else "create it first"
            unknown.append(Problem(f'there is no table "{name}".', f"{name}: {remedy}"))
    return sorted(named.values(), key=lambda table: table.name), unknown


def _alike(tables: Sequence[CatalogTable]) -> list[Problem]:
    """With dots in their names, tables of two schemas may be called the same: they would be one topic."""
    found, known = [], dict[str, CatalogTable]()
    for table in tables:
        other = known.setdefault(table.name, table)
        if other is not table:
            what = f'{other.quoted} and {table.quoted} would both be called "{table.name}".'
            found.append(Problem(what, f"{table.name}: rename one of them", (table.name,)))
    return found


def _table_problems(catalog: Catalog, table: CatalogTable, server: _Server) -> list[Problem]:
    name, sql = table.name, table.quoted
    if table.kind in _KINDS:
        what = f'"{name}" is {_KINDS[table.kind]}.'
        return [Problem(what, f"{name}: only tables can be captured")]
    if table.persistence != PERMANENT:
        kind = "temporary" if table.persistence == "t" else "unlogged"
        remedy = (
            f"ALTER TABLE {sql} SET LOGGED" if kind == "unlogged" else f"{name}: make it an ordinary table"
        )
        return [Problem(f'table "{name}" is {kind}: its changes are not in the WAL.', remedy)]
    found = [] if table.key else [_without_key(table)]
    role, schema = (Identifier(each).as_string(None) for each in (server.user, table.schema))
    if not table.may_enter:
        what = f'role {role} may not use schema {schema}, where "{name}" is.'
        found.append(Problem(what, f"GRANT USAGE ON SCHEMA {schema} TO {role}"))
    if not table.may_select:
        what = f'role {role} may not read table "{name}".'
        found.append(Problem(what, f"GRANT SELECT ON {sql} TO {role}"))
    if table.key:
        found += _form_problems(name, catalog.form_of(table).table)
    return found


def _form_problems(name: str, form: Table) -> Iterator[Problem]:
    try:
        columns = RecordSchema.of(form.columns)
    except BadSchema as error:
        yield Problem(f'table "{name}": {error.message}', f"{name}: rename the column")
        return
    for column in form.key:
        try:
            check_key(columns, (column,))
        except BadSchema as error:
            remedy = f'as_text=["{name}.{column}"] captures it as text; or leave the table out, by tables='
            yield Problem(f'table "{name}": {error.message}', remedy)


def _outbox_problems(
    db: Connection[Any], tables: Sequence[CatalogTable], server: _Server
) -> Iterator[Problem]:
    """What is published is removed from there."""
    for table in tables:
        may = "SELECT has_table_privilege(%s::oid, 'DELETE')"
        if not is_outbox(table.name) or db.execute(may, (table.oid,)).fetchone() == (True,):
            continue
        role = Identifier(server.user).as_string(None)
        what = f'role {role} may not delete from "{table.name}": what is published is removed there.'
        yield Problem(what, f"GRANT DELETE ON {table.quoted} TO {role}", (table.name,))


def _without_key(table: CatalogTable) -> Problem:
    sql, unique = table.quoted, table.told
    if table.identity == _NOTHING and any(index.is_primary for index in unique):
        what = f'table "{table.name}" has REPLICA IDENTITY NOTHING.'
        return Problem(what, f"ALTER TABLE {sql} REPLICA IDENTITY DEFAULT")
    what = f'table "{table.name}" has no primary key: once published, its UPDATEs and DELETEs would fail.'
    if any(index.is_primary for index in table.unique if index not in unique):
        what = f'the key of table "{table.name}" has a generated column, which PostgreSQL does not send.'
    if unique:
        index = Identifier(unique[0].name).as_string(None)
        return Problem(what, f"ALTER TABLE {sql} REPLICA IDENTITY USING INDEX {index}")
    if table.unique:
        return Problem(what, f"{table.name}: leave it out (tables=), or give it a key of other columns")
    first = table.columns[0].name if table.columns else "id"
    return Problem(what, f"ALTER TABLE {sql} ADD PRIMARY KEY ({Identifier(first).as_string(None)})")


def _partition_problems(
    table: CatalogTable, partitions: Sequence[CatalogTable], captured: Sequence[CatalogTable]
) -> list[Problem]:
    """An update names its row as the partition says, which need not be as its table says."""
    oids = {other.oid for other in captured}
    found = [
        Problem(
            f'"{each.name}" is a partition of "{table.name}", under which its changes come.',
            f"{each.name}: leave it out, or capture it under another capture's name",
        )
        for each in partitions
        if each.oid in oids
    ]
    return found + [
        Problem(
            f'partition "{each.name}" does not name its rows by the key of "{table.name}": its UPDATEs and '
            "DELETEs would fail, or not be told.",
            f"ALTER TABLE {each.quoted} REPLICA IDENTITY {_identity_by(table.key, each)}",
        )
        for each in partitions
        if each.kind == ORDINARY and each.identity != FULL and not set(table.key) <= set(each.key)
    ]


def _identity_by(key: Sequence[str], partition: CatalogTable) -> str:
    for index in partition.unique:
        if set(index.columns) == set(key):
            name = Identifier(index.name).as_string(None)
            return "DEFAULT" if index.is_primary else f"USING INDEX {name}"
    return "FULL"


def _publication_problems(
    db: Connection[Any], tables: Sequence[CatalogTable], publication: str, server: _Server
) -> list[Problem]:
    """Whoever owns neither the tables nor a right to publish needs somebody else to do it once."""
    there = published(db, publication)
    if there is not None and there >= {table.oid for table in tables}:
        return []
    foreign = [table for table in tables if not table.is_owned]
    if there is None and server.may_create and not foreign:
        return []
    if there is not None and not foreign:
        return []
    role = Identifier(server.user).as_string(None)
    what = f"role {role} may not publish " + (f'table "{foreign[0].name}"' if foreign else "tables") + "."
    statement = (
        creating(tables, publication).as_string(None)
        if there is None
        else completing(db, tables, publication)
    )
    mine = tuple(table.name for table in tables if table.oid not in (there or ()))
    return [Problem(what, f"as the owner of the tables: {statement}", mine)]
