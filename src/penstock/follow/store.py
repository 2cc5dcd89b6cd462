"""The ports of what follows a topic: sinks, and stores, whose rows can be read back.

A store keeps, for every view, its rows and its progress, and changes them only together. So its
rows are always those of the changelog up to its offsets, whatever was killed when.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadOption, BadSchema, Contended, Fenced
from penstock.follow.cells import column_of
from penstock.follow.changes import Changed
from penstock.follow.table import WINDOW_END, TableSpec
from penstock.schema import did_you_mean

CHUNK_RECORDS = 50_000

Watch = Callable[[str], None]
"""Called at each step of an apply ("begun" to "committed"), so that a test can die there."""


def unwatched(step: str) -> None:
    """Nobody looks."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a copy is: the first offset that is not in it, and what the records up to there said."""

    next_offset: int  # of partition 0, the only one of a view's changelog
    batch: int | None = None
    closed_us: int | None = None  # every window that ends at or before it is final
    others: tuple[int, ...] = ()  # the same offset of partitions 1, 2 and so on

    @property
    def offsets(self) -> tuple[int, ...]:
        return (self.next_offset, *self.others)

    def at(self, partition: int) -> int:
        """The first offset of a partition that is not in the copy."""
        return self.offsets[partition] if partition < len(self.offsets) else 0

    def moved(self, partition: int, next_offset: int) -> Progress:
        offsets = [self.at(number) for number in range(max(len(self.offsets), partition + 1))]
        offsets[partition] = next_offset
        return replace(self, next_offset=offsets[0], others=tuple(offsets[1:]))

    @property
    def text(self) -> str:
        """As JSON, for stores that hold texts."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Progress:
        stored = json.loads(text)
        return cls(**{**stored, "others": tuple(stored["others"])})

    def after(self, changed: Changed, next_offset: int, *, partition: int = 0) -> Progress:
        """Batches and closing times never go back."""
        batch, closed_us = _later(self.batch, changed.batch), _later(self.closed_us, changed.closed_us)
        return replace(self.moved(partition, next_offset), batch=batch, closed_us=closed_us)


@dataclass(frozen=True, slots=True)
class Held:
    """What a store has noted about a view: which changelog, in which columns, how far."""

    changelog_id: str
    columns: str  # DDL
    key: tuple[str, ...]
    progress: Progress

    def is_of(self, spec: TableSpec, changelog_id: str) -> bool:
        return self.changelog_id == changelog_id and self.has_columns_of(spec)

    def has_columns_of(self, spec: TableSpec) -> bool:
        return self.columns == spec.ddl and self.key == spec.key


class Sink(Protocol):
    """Takes what happens to a topic. Thread-safe; other processes may use the same one at the same time.

    One that cannot be reached or refuses raises StorageError or Contended, has changed nothing
    unless a commit was under way, and may be used again: it connects by itself. `prepare` tells
    what holds after a commit that was cut off.
    """

    keyed: bool
    """Whether it takes changes of keys, as a changelog has them; else records, as the topic has them."""

    gather_s: float
    """How long a follower lets records gather before it applies them; 0 where each apply is cheap."""

    chunk_records: int
    """At most so many in one apply."""

    def prepare(self, spec: TableSpec, changelog_id: str) -> Progress:
        """Make room for a view, and tell how far its copy is. Called before the first `apply`.

        Starts anew, from offset 0 and without rows, when the copy is of another changelog or has other
        columns or another key. Raises BadOption for a table of that name that is not Penstock's.
        """

    def apply(
        self, spec: TableSpec, changes: pa.Table, *, from_offset: int, next_offset: int, partition: int = 0
    ) -> None:
        """Apply a partition's records of [from_offset, next_offset) and note `next_offset`: both or neither.

        `changes` are records as they are in the changelog, in their order; none is fine. Raises Contended
        when the copy is not at `from_offset` (somebody else applied meanwhile) or is gone, and Fenced when
        it became one of another changelog or of other columns.
        """

    def progress(self, view: str) -> Progress | None:
        """None where there is no copy of that view."""

    def drop(self, view: str) -> None:
        """Remove a copy and its progress. Nothing happens where there is none."""

    def close(self) -> None: ...


class Store(Sink, Protocol):
    """A sink that holds copies of views, and can be asked for their rows."""

    def rows(
        self, spec: TableSpec, *, where: Mapping[str, object] | None = None, limit: int | None = None
    ) -> tuple[pa.Table, Progress]:
        """The rows and the progress they belong to, of one moment, in the store's order of the key.

        Columns: the view's, `_revision`, and `final` for a view of windows. `where`: columns that must
        equal a value, None meaning NULL.
        """


def checked(
    spec: TableSpec, held: Held | None, changelog_id: str | None, from_offset: int, partition: int = 0
) -> Progress:
    """What an apply goes on from. Raises as `Sink.apply` says."""
    if changelog_id is None:
        raise BadOption(f'view "{spec.name}" was not prepared in this store.', hint="call prepare() first")
    if held is None:
        raise Contended(
            f'the copy of view "{spec.name}" is gone; nothing was applied.', hint="prepare it, and begin anew"
        )
    if not held.is_of(spec, changelog_id):
        error = Fenced(f"follower of {spec.name}", epoch=from_offset, current=0)
        error.message = (
            f'the copy of view "{spec.name}" was begun anew by another follower, from another '
            "changelog or with other columns; nothing was applied."
        )
        error.hint = "a newer version of this program runs on the same store; stop this one"
        raise error
    check_place(spec, held.progress.at(partition), from_offset)
    return held.progress


def check_place(spec: TableSpec, there: int, from_offset: int) -> None:
    """Raises Contended where a copy is not at `from_offset`."""
    if there != from_offset:
        raise Contended(
            f'the copy of view "{spec.name}" is at offset {there}, '
            f"not at {from_offset}; nothing was applied.",
            hint="another follower works on the same store; read on from there, or stop one of them",
        )


def readable(spec: TableSpec, held: Held | None) -> Progress:
    """The progress of a copy that can be read with these columns."""
    if held is None:
        raise BadOption(
            f'this store has no view "{spec.name}".', hint="start its follower, or look at another store"
        )
    if not held.has_columns_of(spec):
        raise BadOption(
            f'the copy of view "{spec.name}" has other columns or another key: {held.columns}.',
            hint="its follower is of another version of the program; run them with the same one",
        )
    return held.progress


def conditions(spec: TableSpec, where: Mapping[str, object] | None) -> dict[str, pa.Array]:
    """Each value that rows must have, as a column of one value."""
    wanted = {}
    for name, value in (where or {}).items():
        if name not in spec.columns.names:
            raise BadSchema(
                f'view "{spec.name}" has no column "{name}".', hint=did_you_mean(name, spec.columns.names)
            )
        dtype = spec.columns.field(name).type
        try:
            wanted[name] = column_of(value, dtype)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise BadOption(f'column "{name}": {value!r} is no {dtype} ({error}).') from error
    return wanted


def shown(spec: TableSpec, rows: pa.Table, progress: Progress) -> pa.Table:
    """Stored rows as they are read: a view of windows tells which ones are final."""
    if not spec.windowed:
        return rows
    if progress.closed_us is None:
        final = pa.array([False] * rows.num_rows, pa.bool_())
    else:
        ends = rows[WINDOW_END].cast(pa.int64())
        final = pc.fill_null(pc.less_equal(ends, progress.closed_us), False)
    return pa.table([*rows.columns, final], schema=spec.shown)


def _later(before: int | None, now: int | None) -> int | None:
    return max((time for time in (before, now) if time is not None), default=None)
