"""Whether the tables are still those that are captured.

One may be made, dropped, renamed or put in the place of another, and the stream tells none of that.
What is found holds from a place in the WAL on: it is acted on when the stream has passed that place, so that
changes of before come under the names of before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from penstock.capture.postgres_captured import Captured
from penstock.capture.postgres_catalog import Catalog, CatalogTable
from penstock.capture.postgres_checks import Found, raise_if_any
from penstock.capture.postgres_connection import beat
from penstock.capture.postgres_publication import is_ours, published


@dataclass(frozen=True, slots=True)
class OtherTables:
    """What is captured from now on."""

    tables: Sequence[CatalogTable]
    fresh: Sequence[str]  # to be read whole
    gone: Sequence[str]  # that nothing has the name of any more, or something else

    captured: Mapping[str, Captured]


class TableWatch:
    """Looks when it is asked to, and once at the beginning."""

    def __init__(
        self,
        address: str,
        catalog: Catalog,
        publication: str,
        known: Mapping[str, Captured],
        check: Callable[[Mapping[str, Captured]], Found],
    ) -> None:
        self.known = known
        self._address, self._catalog, self._publication, self._check = address, catalog, publication, check
        self._seen: Any = None  # what there was at the last look
        self._has_looked = False
        self._is_asked = True
        self._other: tuple[OtherTables, int] | None = None

    @property
    def is_open(self) -> bool:
        """Whether it has to be seen yet that nothing has changed."""
        return self._is_asked or self._other is not None

    def look_soon(self, *, closely: bool = False) -> None:
        """`closely`: also where the names are the same as before."""
        self._is_asked = True
        if closely:
            self._seen = None

    def is_called(self, oid: int, name: str) -> bool:
        """Whether that is the name under which we have it."""
        return name in self.known and self.known[name].oid == oid

    def has(self, oid: int) -> bool:
        return any(captured.oid == oid for captured in self.known.values())

    def strayed(self, oid: int, name: str | None) -> None:
        """The stream calls it otherwise than we do. `name`: under which its changes are told now.

        It may have its own name back before anybody looks: then what came meanwhile is missing there.
        """
        names = [each for each, captured in self.known.items() if captured.oid == oid]
        stray = Captured(oid, is_whole=False)
        self.known = {**self.known, **dict.fromkeys([*names, *([name] if name else [])], stray)}
        self._other = None
        self.look_soon(closely=True)

    def other_tables(self, db: Connection[Any], lsn: int) -> OtherTables | None:
        """Those that are there, if they are others, once the stream has passed the moment of the look."""
        if self._is_asked and self._other is None:
            self._is_asked = False
            self._look(db)
        return self._other[0] if self._other is not None and lsn >= self._other[1] else None

    def _look(self, db: Connection[Any]) -> None:
        there = published(db, self._publication) or set()
        seen = (self._catalog.tables(db), there)
        if seen == self._seen:
            return
        self._seen, found = seen, self._check(self.known)
        raise_if_any(
            self._address,
            [each for each in found.problems if any(name in self.known for name in each.tables)],
        )
        # Who starts us is told when somebody else has to publish a table; later we go on without a new one.
        may_publish = not self._has_looked or is_ours(db, self._publication)
        tables = [
            table
            for table in found.sound
            if may_publish or table.oid in there or self.is_called(table.oid, table.name)
        ]
        self._has_looked = True
        other = self._compared(tables, found, there)
        if other.captured != self.known or other.fresh:
            self._other = (other, beat(db))

    def _compared(self, tables: Sequence[CatalogTable], found: Found, there: set[int]) -> OtherTables:
        now = {table.name: table.oid for table in tables}
        fresh = [table.name for table in tables if table.oid not in there or not self._is_whole(table, found)]
        gone = [
            name
            for name, captured in self.known.items()
            if now.get(name) != captured.oid and (name in now or found.names.get(captured.oid) != name)
        ]
        return OtherTables(tables, fresh, gone, found.captured(tables))

    def _is_whole(self, table: CatalogTable, found: Found) -> bool:
        """Whether all its rows have been told as they are, or will be by the stream."""
        if not self.is_called(table.oid, table.name):
            return False
        known, came = self.known[table.name], found.attached[table.name].items()
        if any(has_rows for part, has_rows in came if part not in known.attached):
            return False
        return known.is_whole and _are_those(known.places, table.places)


def _are_those(before: Sequence[str], now: Sequence[str]) -> bool:
    """Whether every column has its name of before; a new one may have that of one that was dropped."""
    if not before:
        return True
    return len(now) == len(before) and all(name in ("", old) for old, name in zip(before, now, strict=True))
