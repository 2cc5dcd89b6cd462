"""What PostgreSQL's catalogue says about tables, and the form in which we capture them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

import pyarrow as pa
from psycopg import Connection
from psycopg.sql import SQL, Composable, Identifier

from penstock.capture.pgoutput import FULL, Relation
from penstock.capture.postgres_connection import one_moment
from penstock.capture.postgres_types import TYPES_QUERY, PostgresType, log_type, types_of
from penstock.capture.source import Table
from penstock.errors import BadSchema

ORDINARY, PARTITIONED = "r", "p"
PERMANENT = "p"
DEFAULT_SCHEMA = "public"

# Whether one has a right is asked of now: of a table that is gone by then it is null.
_TABLES = """
SELECT c.oid::bigint, n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence::text,
       c.relreplident::text, c.relispartition,
       coalesce(has_schema_privilege(n.oid, 'USAGE'), true),
       coalesce(has_table_privilege(c.oid, 'SELECT'), true),
       pg_has_role(c.relowner, 'USAGE'),
       ARRAY(SELECT CASE WHEN a.attisdropped THEN '' ELSE a.attname::text END FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 ORDER BY a.attnum)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
  AND n.nspname <> 'information_schema' AND (n.nspname !~ '^pg_' OR n.nspname ~ '^pg_temp_')
  AND {which}
ORDER BY 2, 3
"""
_NAMED = f"CASE n.nspname WHEN '{DEFAULT_SCHEMA}' THEN '' ELSE n.nspname || '.' END || c.relname = %s"
_COLUMNS = """
SELECT a.attrelid::bigint, a.attname::text, a.atttypid::bigint, a.atttypmod, a.attndims,
       format_type(a.atttypid, a.atttypmod)
FROM pg_attribute a
WHERE a.attrelid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
ORDER BY a.attrelid, a.attnum
"""
_PARTITIONS = """
SELECT p.relid::oid::bigint FROM pg_class c CROSS JOIN LATERAL pg_partition_tree(c.oid) p
WHERE c.oid = %s::oid AND p.level > 0
"""
# One that was made as a partition has its type and its place from one transaction. Its size needs no right.
_ATTACHED = """
SELECT p.relid::oid::bigint, pg_relation_size(p.relid) > 0
FROM pg_class c CROSS JOIN LATERAL pg_partition_tree(c.oid) p
WHERE c.oid = %s::oid AND p.isleaf AND EXISTS (
    SELECT FROM pg_partition_ancestors(p.relid) a JOIN pg_inherits i ON i.inhrelid = a.relid
    JOIN pg_class k ON k.oid = a.relid JOIN pg_type t ON t.oid = k.reltype WHERE i.xmin <> t.xmin)
"""
# Only what can tell rows apart: whole, checked at once, and never null.
_UNIQUE = """
SELECT i.indrelid::bigint, x.relname::text, i.indisprimary, i.indisreplident,
       array_agg(a.attname::text ORDER BY k.place)
FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k(attribute, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attribute
WHERE i.indrelid = ANY(%s::oid[]) AND i.indisunique AND i.indimmediate AND i.indisvalid
  AND i.indpred IS NULL AND i.indexprs IS NULL AND k.place <= i.indnkeyatts
GROUP BY i.indrelid, x.relname, i.indisprimary, i.indisreplident
HAVING bool_and(a.attnotnull)
ORDER BY i.indisprimary DESC, count(*), x.relname
"""


@dataclass(frozen=True, slots=True)
class CatalogColumn:
    name: str
    type_oid: int
    modifier: int
    dimensions: int
    type_name: str


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    name: str
    is_primary: bool
    is_identity: bool
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CatalogTable:
    oid: int
    schema: str
    relname: str
    kind: str
    persistence: str
    identity: str  # d: the primary key, i: an index, f: the whole row, n: nothing
    is_partition: bool
    may_enter: bool  # its schema
    may_select: bool
    is_owned: bool
    places: Sequence[str]  # every column that it ever had: its name, "" once it was dropped
    columns: tuple[CatalogColumn, ...] = ()
    unique: tuple[UniqueIndex, ...] = ()

    @property
    def name(self) -> str:
        return table_name(self.schema, self.relname)

    @property
    def sql(self) -> Identifier:
        return Identifier(self.schema, self.relname)

    @property
    def only(self) -> Composable:
        """Without tables that inherit from it, which come under their own names."""
        return SQL("ONLY {}").format(self.sql) if self.kind == ORDINARY else self.sql

    @property
    def quoted(self) -> str:
        """For a person to run."""
        return self.sql.as_string(None)

    @property
    def told(self) -> list[UniqueIndex]:
        """Those without generated columns, which PostgreSQL does not send."""
        names = {column.name for column in self.columns}
        return [index for index in self.unique if names.issuperset(index.columns)]

    @property
    def key(self) -> tuple[str, ...]:
        """The columns by which an update or a delete will name its row, in the order of their index."""
        for index in self.told:
            fits = {"d": index.is_primary, "i": index.is_identity, FULL: True}
            if fits.get(self.identity, False):
                return index.columns
        return ()


@dataclass(frozen=True, slots=True)
class Form:
    """A table in the form in which its changes come."""

    oid: int
    table: Table
    key_places: tuple[int, ...]


def table_name(schema: str, name: str) -> str:
    return name if schema == DEFAULT_SCHEMA else f"{schema}.{name}"


class Catalog:
    """Asks with the connection that is given each time; remembers only types."""

    def __init__(self, as_text: Collection[str]) -> None:
        self.as_text = frozenset(as_text)
        self._types: dict[int, PostgresType] = {}

    def tables(self, db: Connection[Any]) -> list[CatalogTable]:
        """Of every kind, without their columns."""
        return self._tables(db, "%s", True)

    def described(self, db: Connection[Any], tables: Sequence[CatalogTable]) -> list[CatalogTable]:
        """With columns and keys."""
        oids = [table.oid for table in tables]
        columns: dict[int, list[CatalogColumn]] = {oid: [] for oid in oids}
        for oid, *facts in db.execute(_COLUMNS, (oids,)):
            columns[oid].append(CatalogColumn(*facts))
        unique: dict[int, list[UniqueIndex]] = {oid: [] for oid in oids}
        for oid, name, is_primary, is_identity, names in db.execute(_UNIQUE, (oids,)):
            unique[oid].append(UniqueIndex(name, is_primary, is_identity, tuple(names)))
        self._learn(db, (column.type_oid for found in columns.values() for column in found))
        return [_with(table, columns[table.oid], unique[table.oid]) for table in tables]

    def partitions(
        self, db: Connection[Any], table: CatalogTable, every: Sequence[CatalogTable]
    ) -> list[CatalogTable]:
        """Those of every level, with columns and keys."""
        if table.kind != PARTITIONED:
            return []
        oids = {oid for (oid,) in db.execute(_PARTITIONS, (table.oid,))}
        return self.described(db, [each for each in every if each.oid in oids])

    def attached(self, db: Connection[Any], table: CatalogTable) -> dict[int, bool]:
        """Partitions that were tables of their own before: PostgreSQL does not tell what they came with."""
        found = db.execute(_ATTACHED, (table.oid,)) if table.kind == PARTITIONED else ()
        return {oid: bool(has_rows) for oid, has_rows in found}

    def by_oid(self, db: Connection[Any], oid: int) -> CatalogTable | None:
        return self._the_one(db, "c.oid = %s::oid", oid)

    def by_name(self, db: Connection[Any], name: str) -> CatalogTable | None:
        return self._the_one(db, _NAMED, name)

    def _the_one(self, db: Connection[Any], which: LiteralString, asked: object) -> CatalogTable | None:
        with one_moment(db):
            found = self._tables(db, which, asked)
            return self.described(db, found)[0] if found else None

    def _tables(self, db: Connection[Any], which: LiteralString, asked: object) -> list[CatalogTable]:
        return [CatalogTable(*facts) for facts in db.execute(_TABLES.format(which=which), (asked,))]

    def _learn(self, db: Connection[Any], oids: Any) -> None:
        """Somebody may have made a type since."""
        if not self._types or any(oid not in self._types for oid in oids):
            self._types = types_of(db.execute(TYPES_QUERY).fetchall())

    def form_of(self, table: CatalogTable) -> Form:
        fields = [
            self._field(table.name, column.name, column.type_oid, column.modifier, column.dimensions)
            for column in table.columns
        ]
        return _form(table.oid, table.name, pa.schema(fields), table.key)

    def form_in_stream(self, db: Connection[Any], relation: Relation) -> Form:
        """As the changes after a Relation message have it; the catalogue may be ahead of them."""
        self._learn(db, (column.type_oid for column in relation.columns))
        known = self.by_oid(db, relation.oid)
        dimensions = {column.name: column.dimensions for column in known.columns} if known else {}
        name = table_name(relation.schema, relation.name)
        fields = [
            self._field(name, each.name, each.type_oid, each.modifier, dimensions.get(each.name, 0))
            for each in relation.columns
        ]
        # With the whole row as identity, only the catalogue says what the key is; and without any, when
        # PostgreSQL takes inserts alone: the table may have had no key for a while.
        told = tuple(column.name for column in relation.columns if column.in_identity)
        key = _key_in(known, relation) if known and (relation.identity == FULL or not told) else told
        return _form(relation.oid, name, pa.schema(fields), key)

    def _field(self, table: str, name: str, oid: int, modifier: int, dimensions: int) -> Any:
        if f"{table}.{name}" in self.as_text:
            return pa.field(name, pa.string())
        return pa.field(name, log_type(self._types, oid, modifier, dimensions))


def _with(table: CatalogTable, columns: list[CatalogColumn], unique: list[UniqueIndex]) -> CatalogTable:
    facts: Mapping[str, Any] = {name: getattr(table, name) for name in CatalogTable.__slots__}
    return CatalogTable(**{**facts, "columns": tuple(columns), "unique": tuple(unique)})


def _key_in(known: CatalogTable, relation: Relation) -> tuple[str, ...]:
    """The key by the names of then: a column that was renamed since has kept its place."""
    names = [column.name for column in relation.columns]
    if len(names) != len(known.columns) or set(known.key) <= set(names):
        return known.key
    return tuple(names[at] for at, column in enumerate(known.columns) if column.name in known.key)


def _form(oid: int, name: str, columns: pa.Schema, key: Collection[str]) -> Form:
    places = tuple(at for at, column in enumerate(columns.names) if column in key)
    if len(places) != len(key) or not key:
        raise BadSchema(
            f'table "{name}" has no key any more: its updates and deletes cannot be told apart.',
            hint=f"ALTER TABLE {name} ADD PRIMARY KEY (...)",
        )
    return Form(oid, Table(name, columns, tuple(columns.names[at] for at in places)), places)
