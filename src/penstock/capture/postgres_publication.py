"""The publication of a capture: of which tables it tells every change, and how it is made and mended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString

from psycopg import Connection
from psycopg.sql import SQL, Composed, Identifier, Literal

from penstock.capture.postgres_catalog import PARTITIONED, CatalogTable
from penstock.errors import NotSupported

_MADE = "made by penstock capture"
_PUBLICATION = """
SELECT oid, puballtables, pubviaroot, pubinsert AND pubupdate AND pubdelete AND pubtruncate
FROM pg_publication WHERE pubname = %s
"""
# As JSON, since before version 15 there are neither filters nor lists of columns.
_MEMBERS = """
SELECT r.prrelid::bigint, to_jsonb(r) ->> 'prqual' IS NULL AND to_jsonb(r) ->> 'prattrs' IS NULL
FROM pg_publication_rel r WHERE r.prpubid = %s
"""
_OF_SCHEMAS = """
SELECT c.oid::bigint FROM pg_class c JOIN pg_publication_namespace s ON s.pnnspid = c.relnamespace
WHERE s.pnpubid = %s AND c.relkind IN ('r', 'p')
"""
_EVERY_TABLE = "SELECT oid::bigint FROM pg_class WHERE relkind IN ('r', 'p')"
_PARTITIONED = "SELECT oid::bigint FROM pg_class WHERE relkind = 'p'"
_SCHEMAS_FROM = 150_000
# Otherwise partitions would come one by one, under names of their own.
_VIA_ROOT = SQL("publish_via_partition_root = true")
_EVERY_KIND = SQL("publish = 'insert, update, delete, truncate'")


def published(db: Connection[Any], publication: str) -> set[int] | None:
    """The tables of which a publication tells every change; None where there is no such publication.

    One that somebody has narrowed, to some rows, columns or kinds of changes, is not among them.
    """
    row = db.execute(_PUBLICATION, (publication,)).fetchone()
    if row is None:
        return None
    oid, has_every_table, is_via_root, tells_all = row
    if not tells_all:
        return set()
    found = _numbers(db, _EVERY_TABLE) if has_every_table else _named(db, oid)
    return found if is_via_root else found - _numbers(db, _PARTITIONED)


def _named(db: Connection[Any], oid: int) -> set[int]:
    members = dict[int, bool](db.execute(_MEMBERS, (oid,)).fetchall())
    whole = {table for table, is_whole in members.items() if is_whole}
    return whole | _numbers(db, _OF_SCHEMAS, oid) if db.info.server_version >= _SCHEMAS_FROM else whole


def _numbers(db: Connection[Any], query: LiteralString, *values: Any) -> set[int]:
    return {oid for (oid,) in db.execute(query, values)}


def publish(db: Connection[Any], tables: Sequence[CatalogTable], publication: str) -> None:
    """Exactly these tables, if the publication is ours; at least these if it is not. None: it stays."""
    if not tables:
        return
    there, wanted = published(db, publication), {table.oid for table in tables}
    if there is None:
        with db.transaction():
            db.execute(creating(tables, publication))
            comment = SQL("COMMENT ON PUBLICATION {} IS {}")
            db.execute(comment.format(Identifier(publication), Literal(_MADE)))
    elif is_ours(db, publication):
        if there != wanted:
            with db.transaction():
                exactly = SQL("ALTER PUBLICATION {} SET TABLE {}")
                db.execute(exactly.format(Identifier(publication), _listed(tables)))
                db.execute(_setting(publication, [_EVERY_KIND, _VIA_ROOT]))
    elif not there >= wanted:
        raise NotSupported(
            f'publication "{publication}" does not tell every change of all tables, '
            "and Penstock has not made it.",
            hint=completing(db, tables, publication),
        )


def is_ours(db: Connection[Any], publication: str) -> bool:
    found = db.execute(
        "SELECT obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = %s",
        (publication,),
    ).fetchone()
    return found is not None and found[0] == _MADE


def drop_publication(db: Connection[Any], publication: str) -> None:
    if is_ours(db, publication):
        db.execute(SQL("DROP PUBLICATION {}").format(Identifier(publication)))


def creating(tables: Sequence[CatalogTable], publication: str) -> Composed:
    made = SQL("CREATE PUBLICATION {} FOR TABLE {} WITH ({})")
    return made.format(Identifier(publication), _listed(tables), _VIA_ROOT)


def completing(db: Connection[Any], tables: Sequence[CatalogTable], publication: str) -> str:
    """What somebody is to run so that it tells every change of these; its other tables stay in it."""
    found = db.execute(_PUBLICATION, (publication,)).fetchone()
    assert found is not None
    oid, has_every_table, is_via_root, tells_all = found
    wrong = [] if tells_all else [_EVERY_KIND]
    if not is_via_root and any(table.kind == PARTITIONED for table in tables):
        wrong.append(_VIA_ROOT)
    statements = [_setting(publication, wrong)] if wrong else []
    if not has_every_table:
        there, members = _named(db, oid), {table for table, _ in db.execute(_MEMBERS, (oid,))}
        missing = [table for table in tables if table.oid not in there]
        narrowed = [table for table in missing if table.oid in members]
        for word, some in (("DROP", narrowed), ("ADD", missing)):
            if some:
                statement = SQL("ALTER PUBLICATION {} {} TABLE {}")
                statements.append(statement.format(Identifier(publication), SQL(word), _listed(some)))
    return "; ".join(statement.as_string(None) for statement in statements)


def _setting(publication: str, options: Sequence[SQL]) -> Composed:
    return SQL("ALTER PUBLICATION {} SET ({})").format(Identifier(publication), SQL(", ").join(options))


def _listed(tables: Sequence[CatalogTable]) -> Composed:
    return SQL(", ").join(table.only for table in tables)
