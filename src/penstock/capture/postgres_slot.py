"""The slot of a capture: whether it is as we left it, and its end."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from psycopg import Connection

from penstock.capture.postgres_connection import lsn_number
from penstock.capture.postgres_publication import published
from penstock.capture.source import Position
from penstock.errors import BadOption, Contended

_NAME_BYTES_MAX = 63
_SLOT = """
SELECT active_pid, wal_status, confirmed_flush_lsn::text, plugin::text, database::text = current_database()
FROM pg_replication_slots WHERE slot_name = %s
"""
_STATUS = """
SELECT active, wal_status, safe_wal_size, confirmed_flush_lsn::text, restart_lsn::text,
       pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint,
       pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint
FROM pg_replication_slots WHERE slot_name = %s
"""


def check_name(kind: str, name: str) -> str:
    if not re.fullmatch(rf"[a-z0-9_]{{1,{_NAME_BYTES_MAX}}}", name):
        raise BadOption(
            f'PostgreSQL takes no {kind} named "{name}".',
            hint=f"use 1 to {_NAME_BYTES_MAX} of a-z, 0-9 and _, or give another with {kind}=...",
        )
    return name


def check_free(db: Connection[Any], slot: str) -> None:
    """Before the first snapshot. Ours are stored before they are made: a slot that is there is another's."""
    if db.execute(_SLOT, (slot,)).fetchone() is not None:
        raise Contended(
            f'there is a slot "{slot}" already, which this capture has not made.',
            hint="choose another name for this one; or, if nobody reads from it any more: "
            f"SELECT pg_drop_replication_slot('{slot}')",
        )


def lost_because(db: Connection[Any], slot: str, publication: str, position: Position) -> str | None:
    """Why the slot cannot give what comes after `position`; None where it can."""
    found = db.execute(_SLOT, (slot,)).fetchone()
    if found is None:
        return f'its slot "{slot}" is gone'
    _, wal_status, confirmed, plugin, is_here = found
    if plugin != "pgoutput" or not is_here:
        return f'slot "{slot}" is of another database or plugin'
    if wal_status == "lost":
        return f'PostgreSQL has removed the WAL that slot "{slot}" needed (max_slot_wal_keep_size)'
    if published(db, publication) is None:
        return f'its publication "{publication}" is gone'
    return _other_history(db, slot, confirmed, position["lsn"])


def _other_history(db: Connection[Any], slot: str, confirmed: str | None, ours: str) -> str | None:
    (end,) = db.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()  # type: ignore[misc]
    if confirmed and lsn_number(confirmed) > lsn_number(ours):
        return f'slot "{slot}" is at {confirmed} already, and the log only at {ours}'
    if lsn_number(end) < lsn_number(ours):
        return f"the server is an older copy: its WAL ends at {end}, and the log is at {ours} already"
    return None


def user_of(db: Connection[Any], slot: str) -> int | None:
    """The process of PostgreSQL that has the slot now."""
    found = db.execute(_SLOT, (slot,)).fetchone()
    return found[0] if found else None


def drop_slot(db: Connection[Any], slot: str) -> None:
    db.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
        "WHERE slot_name = %s AND plugin = 'pgoutput' AND database = current_database()",
        (slot,),
    )


def status(db: Connection[Any], slot: str, publication: str, position: Position | None) -> Mapping[str, Any]:
    found = db.execute(_STATUS, (slot,)).fetchone()
    lsn = position.get("lsn") if position else None
    said: dict[str, Any] = {"slot": slot, "publication": publication, "position": lsn}
    if found is None:
        return {**said, "wal_status": "no slot"}
    active, wal_status, safe_bytes, confirmed, restart, retained_bytes, behind_bytes = found
    if lsn:
        behind = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), %s::pg_lsn)::bigint"
        (behind_bytes,) = db.execute(behind, (lsn,)).fetchone()  # type: ignore[misc]
    said |= {"active": active, "wal_status": wal_status, "confirmed_lsn": confirmed, "restart_lsn": restart}
    said |= {"retained_bytes": retained_bytes, "lag_bytes": behind_bytes, "safe_wal_bytes": safe_bytes}
    advice = _advice(db)
    return {**said, "advice": advice} if advice else said


def _advice(db: Connection[Any]) -> str:
    (keep,) = db.execute("SHOW max_slot_wal_keep_size").fetchone()  # type: ignore[misc]
    if keep != "-1":
        return ""
    return (
        "while capture does not run, the slot keeps all WAL: bound it with "
        "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf()"
    )
