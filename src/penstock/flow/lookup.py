"""`ps.lookup`: rows of a database, asked for by key while a batch runs.

What a database answers depends on when it is asked, so nothing that comes of it can be recomputed: explain
and verify say so. Each worker process asks for the keys of a batch at once and keeps the answers for a while.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.clock import duration_ms
from penstock.errors import BadDefinition
from penstock.flow import lookup_database as databases
from penstock.schema import RecordSchema, ddl_of, did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import Column

Key = tuple[Any, ...]
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Lookup:
    """A database's table, as events look into it."""

    url: str = field(repr=False)  # may have a password
    table: str
    schema: RecordSchema
    key: tuple[str, ...]
    cache_rows: int
    cache_s: float

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name in self.schema.names if name not in self.key)


def lookup(
    url: str,
    table: str,
    schema: str,
    *,
    key: str | Sequence[str],
    cache_rows: int = 100_000,
    cache_for: str | float = "1 minute",
) -> Lookup:
    """A table of a database, for `ps.enrich(events, lookup=…, on=…)`.

    `url`: "postgresql://user@host/database", "sqlite:///path" or a path. `table` may name a schema:
    "sales.users". `schema`: those of its columns that are wanted, the key among them. An answer, also that
    there is no such row, is kept for `cache_for`, of at most `cache_rows` keys in each worker process.
    """
    if not table:
        raise BadDefinition("which table?", hint='say ps.lookup("postgresql://…", "users", "…", key="id")')
    columns = RecordSchema.of(schema)
    keys = (key,) if isinstance(key, str) else tuple(key)
    for name in keys:
        if name not in columns.names:
            raise BadDefinition(
                f'there is no column "{name}" in the schema of "{table}".',
                hint=did_you_mean(name, columns.names) or "declare the key as well",
            )
        dtype = columns.arrow.field(name).type
        if not (pa.types.is_integer(dtype) or pa.types.is_string(dtype)):
            raise BadDefinition(
                f'"{name}" is {ddl_of(dtype)}: a lookup is by whole numbers or text.',
                hint="choose another key, or declare it as BIGINT or STRING",
            )
    for column in columns.arrow:
        if pa.types.is_nested(column.type):
            raise BadDefinition(
                f'"{column.name}" is {ddl_of(column.type)}: a lookup gives plain values.',
                hint="leave it out, or declare it as STRING",
            )
    if not keys or len(keys) == len(columns.names):
        raise BadDefinition(
            f'a lookup in "{table}" needs a key and something beside it.',
            hint='say ps.lookup(url, "users", "id BIGINT, name STRING", key="id")',
        )
    if cache_rows < 0:
        raise BadDefinition(f"cache_rows={cache_rows!r}.", hint="say 0 for none")
    return Lookup(databases.checked(url), table, columns, keys, cache_rows, duration_ms(cache_for) / 1_000)


class Cache:
    """Answers by key, the last used at the end. None is an answer too: there is no such row."""

    def __init__(self, rows: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rows, self._seconds, self._clock = rows, seconds, clock
        self._kept: OrderedDict[Key, tuple[float, Row | None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, keys: Iterable[Key]) -> dict[Key, Row | None]:
        """What is known of these keys, and not too old."""
        now, found = self._clock(), {}
        for key in keys:
            kept = self._kept.get(key)
            if kept is not None and kept[0] > now:
                self._kept.move_to_end(key)
                found[key] = kept[1]
        return found

    def keep(self, answers: dict[Key, Row | None]) -> None:
        until = self._clock() + self._seconds
        for key, row in answers.items():
            self._kept[key] = until, row
            self._kept.move_to_end(key)
        while len(self._kept) > self._rows:
            self._kept.popitem(last=False)


class Desk:
    """Where one worker process asks: a connection and a cache."""

    def __init__(self, lookup: Lookup) -> None:
        self._database = databases.opened(lookup.url, lookup.table, lookup.schema.names, lookup.key)
        self._cache = Cache(lookup.cache_rows, lookup.cache_s)
        self._lookup = lookup

    def rows(self, keys: Sequence[Key]) -> list[Row | None]:
        """The row of each key, in their order; a key with a NULL in it has none."""
        wanted = dict.fromkeys(key for key in keys if None not in key)
        found = self._cache.of(wanted)
        asked = [key for key in wanted if key not in found]
        if asked:
            answers = self._asked(asked)
            self._cache.keep(answers)
            found |= answers
        return [found.get(key) for key in keys]

    def close(self) -> None:
        self._database.close()

    def _asked(self, keys: Sequence[Key]) -> dict[Key, Row | None]:
        table, schema = self._lookup.table, self._lookup.schema.arrow
        answer = databases.arrow(self._database.ask(keys), schema, table)
        found: dict[Key, Row | None] = {}
        own = [answer[name].to_pylist() for name in self._lookup.key]
        rest = [answer[name].to_pylist() for name in self._lookup.columns]
        for key, row in zip(zip(*own, strict=True), zip(*rest, strict=True), strict=True):
            if key in found:
                raise databases.several(table, self._lookup.key, key)
            found[key] = row
        if other := found.keys() - set(keys):
            raise databases.unasked(table, min(other, key=str))
        return {key: found.get(key) for key in keys}


_desks: dict[Lookup, Desk] = {}  # of this process


def rows_by(lookup: Lookup, keys: Sequence[Column]) -> Column:
    """A struct of the row that has this key, NULL where there is none. Asked for once for each event."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.pandas.types import from_arrow_type

    arrow = pa.struct([lookup.schema.arrow.field(name).with_nullable(True) for name in lookup.columns])

    def find(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:  # Spark goes by these types
        if lookup not in _desks:
            _desks[lookup] = Desk(lookup)
        for batch in batches:
            yield found_rows(_desks[lookup], batch, arrow)

    make: Any = arrow_udf  # its types have no rows for results
    finding = make(find, from_arrow_type(arrow))
    found: Column = finding.asNondeterministic()(F.struct(*keys))
    return found


def found_rows(desk: Desk, keys: Any, dtype: Any) -> Any:
    """The rows of an array of keys."""
    rows = desk.rows(list(zip(*(part.to_pylist() for part in keys.flatten()), strict=True)))
    columns = [
        pa.array([None if row is None else row[number] for row in rows], dtype.field(number).type)
        for number in range(dtype.num_fields)
    ]
    return pa.StructArray.from_arrays(
        columns, fields=list(dtype), mask=pa.array([row is None for row in rows])
    )
