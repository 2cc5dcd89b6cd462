"""The rows of a table or view that a subscriber wants, and what each record does to them.

Pure: records in, steps out. Of a table without event times, and of a view, the later record of a key is the
newer one, so nothing but the wanted rows is held. Of a table with event times a record counts only if it is
newer than what its key has: for every key of the table the version is held, and the row where it is wanted.
Where the key alone decides which rows are wanted, records of other keys are not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.follow.changes import DELETE, PROGRESS, check_operations
from penstock.follow.table import TableSpec
from penstock.follow.where import Bools, Where
from penstock.log import versions
from penstock.log.decode import decode
from penstock.log.settings import TopicSettings

Operation: TypeAlias = Literal["insert", "update", "delete", "current"]
Key: TypeAlias = tuple[Any, ...]
Row: TypeAlias = dict[str, Any]
_Version: TypeAlias = tuple[int, ...]

_NAN = float("nan")  # one object, which a dict finds again; another NaN it would not


class Shape(Protocol):
    """How the records of a topic say what became of the rows."""

    @property
    def columns(self) -> pa.Schema: ...

    @property
    def key(self) -> tuple[str, ...]: ...

    @property
    def timed(self) -> bool:
        """Whether a record may be older than what its key has."""

    def changes(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Without what changes no row."""

    def deleted(self, batch: pa.RecordBatch) -> Bools: ...

    def starts(self, batch: pa.RecordBatch) -> list[int]:
        """From when each version is valid, where it is timed."""


@dataclass(frozen=True, slots=True)
class TableShape:
    """A compacted topic with a mark for deletes."""

    settings: TopicSettings

    @property
    def columns(self) -> pa.Schema:
        return self.settings.schema.arrow

    @property
    def key(self) -> tuple[str, ...]:
        return self.settings.key

    @property
    def timed(self) -> bool:
        return self.settings.event_time is not None

    def changes(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def deleted(self, batch: pa.RecordBatch) -> Bools:
        return np.asarray(batch.column("_deleted").to_numpy(zero_copy_only=False), bool)

    def starts(self, batch: pa.RecordBatch) -> list[int]:
        found: list[int] = versions.starts(batch, self.settings).tolist()
        return found


@dataclass(frozen=True, slots=True)
class ViewShape:
    """A changelog with operations."""

    spec: TableSpec

    @property
    def columns(self) -> pa.Schema:
        return self.spec.columns

    @property
    def key(self) -> tuple[str, ...]:
        return self.spec.key

    @property
    def timed(self) -> bool:
        return False

    def changes(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        check_operations(batch)
        return batch.filter(pc.not_equal(batch.column("_op"), PROGRESS))

    def deleted(self, batch: pa.RecordBatch) -> Bools:
        found = pc.equal(batch.column("_op"), DELETE)
        return np.asarray(found.to_numpy(zero_copy_only=False), bool)

    def starts(self, batch: pa.RecordBatch) -> list[int]:
        raise AssertionError("the records of a changelog are in order")


class Step(NamedTuple):
    """What one record did to the rows of a subscriber."""

    time_us: int
    partition: int
    offset: int
    operation: Operation
    key: Row
    row: Row
    before: Row | None


@dataclass(slots=True)
class Doubt:
    """Compaction may have taken the row that a subscriber has of a key, up to the first record since.

    Only records from before `limit_us` can have made it do so.
    """

    limit_us: int
    _met: set[Key] = field(default_factory=set)

    def concerns(self, key: Key, time_us: int) -> bool:
        """Whether this is the first record of the key, and what it replaced is uncertain."""
        if time_us >= self.limit_us or key in self._met:
            return False
        self._met.add(key)
        return True


class _Held(NamedTuple):
    version: _Version
    row: Row | None  # None: not wanted, or deleted


class Subset:
    """Belongs to one thread."""

    def __init__(self, shape: Shape, where: Where, columns: Sequence[str]) -> None:
        self._shape, self._where, self._columns = shape, where, list(columns)
        self._by_key = bool(where.reads) and set(where.reads or ()) <= set(shape.key)
        self._held: dict[Key, _Held] = {}

    def __len__(self) -> int:
        """How many keys are held."""
        return len(self._held)

    def rows(self) -> Iterator[tuple[Row, Row]]:
        """The wanted rows, each with its key."""
        for key, held in self._held.items():
            if held.row is not None:
                yield self._named(key), held.row

    def apply(self, batch: pa.RecordBatch, doubt: Doubt | None = None) -> Iterator[Step]:
        """What these records do, one after another.

        Where there is a doubt, what a subscriber may have is deleted, and what it may have is given again.
        """
        batch = self._shape.changes(batch)
        if self._by_key:  # which a delete has, too
            batch = batch.filter(pa.array(self._where.holds(batch)))
        wanted = self._wanted(batch)
        rows = iter(decode(batch.filter(pa.array(wanted)).select(self._columns)))
        known = zip(self._keys(batch), self._versions(batch), wanted.tolist(), _places(batch), strict=True)
        for key, version, is_wanted, place in known:
            row = next(rows) if is_wanted else None
            held = self._held.get(key)
            if held is None and row is None and not self._shape.timed and doubt is None:
                continue  # most records, where few rows are wanted
            if held is not None and version < held.version:
                continue
            self._hold(key, version, row)
            before = held.row if held else None
            uncertain = doubt is not None and doubt.concerns(key, place[0])
            operation = _operation(before, row, uncertain=uncertain)
            if operation is not None:
                named = self._named(key)
                yield Step(*place, operation, named, named if row is None else row, before)

    def _wanted(self, batch: pa.RecordBatch) -> Bools:
        live = ~self._shape.deleted(batch)
        if live.all():
            return self._where.holds(batch)
        found = np.zeros(batch.num_rows, bool)
        found[live] = self._where.holds(batch.filter(pa.array(live)))
        return found

    def _keys(self, batch: pa.RecordBatch) -> list[Key]:
        names = list(self._shape.key)
        if not names:
            return [()] * batch.num_rows
        keys = [tuple(row.values()) for row in decode(batch.select(names))]
        if any(pa.types.is_floating(self._shape.columns.field(name).type) for name in names):
            return [tuple(_NAN if _is_nan(value) else value for value in key) for key in keys]
        return keys

    def _versions(self, batch: pa.RecordBatch) -> list[_Version]:
        if not self._shape.timed:
            return [()] * batch.num_rows
        arrival = (_numbers(batch, name) for name in ("_timestamp", "_offset"))
        return list(zip(self._shape.starts(batch), *arrival, strict=True))

    def _hold(self, key: Key, version: _Version, row: Row | None) -> None:
        if row is None and not self._shape.timed:
            self._held.pop(key, None)
        else:
            self._held[key] = _Held(version, row)

    def _named(self, key: Key) -> Row:
        return dict(zip(self._shape.key, key, strict=True))


def _operation(before: Row | None, row: Row | None, *, uncertain: bool) -> Operation | None:
    if row is None:
        return "delete" if before is not None or uncertain else None
    if before is None:
        return "insert"
    return "update" if uncertain or not _same(before, row) else None


def _same(one: Row, other: Row) -> bool:
    pairs = zip(one.values(), other.values(), strict=True)
    return one == other or all(a == b or (_is_nan(a) and _is_nan(b)) for a, b in pairs)


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _places(batch: pa.RecordBatch) -> Iterator[tuple[int, int, int]]:
    """When and where each record was appended, in the order in which records are told."""
    times, partitions, offsets = (_numbers(batch, name) for name in ("_timestamp", "_partition", "_offset"))
    return zip(times, partitions, offsets, strict=True)


def _numbers(batch: pa.RecordBatch, name: str) -> list[int]:
    found: list[int] = batch.column(name).cast(pa.int64()).to_numpy().tolist()
    return found
