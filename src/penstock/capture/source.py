"""The port of sources: databases that tell their changes.

A source yields steps. A step is stored whole, with the position it ends at, before the next one is asked for:
so after any crash the source is told the position of the last stored step, and goes on behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from penstock.errors import BadOption
from penstock.schema import did_you_mean

Position = Mapping[str, Any]
"""Where a source goes on: plain JSON, and its own business.

What it has to remember of each table belongs under "tables", by name: that is stored only when it changes.
"""

EVERY_TABLE = "*"

Key = tuple[Any, ...]
Find = Callable[[Sequence[Key]], Mapping[Key, Mapping[str, Any]]]
"""Rows of a table as they are now, by key: those that there are."""

BOOKKEEPING = frozenset(["penstock_views", "penstock_partitions"])
"""Tables in which followers note how far their copies are, in the database that holds those."""


@dataclass(frozen=True, slots=True)
class Table:
    """A captured table as the source has it now."""

    name: str  # "orders"; where there are schemas, "sales.orders"
    columns: pa.Schema  # in the log's types; all may be null
    key: tuple[str, ...]


def check_columns(option: str, named: Iterable[str], tables: Iterable[Table]) -> None:
    """Raises BadOption for what is no "table.column" of what is captured: what it asks for would not be done.

    For the first snapshot: later a column may be gone of which that was said.
    """
    there = [f"{table.name}.{column}" for table in tables for column in table.columns.names]
    for name in named:
        if name not in there:
            hint = did_you_mean(name, there or ["none"])
            raise BadOption(f'{option} names "{name}", which is no column of a captured table.', hint=hint)


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of one table in their order, as `envelope.schema_of(table)` has them.

    `unchanged`: by column, the numbers of the rows whose `after` does not tell it, since it is as it was.
    `find` tells it where the log has no such row yet, since the table is still being read.
    """

    table: Table
    rows: pa.RecordBatch
    unchanged: Mapping[str, Sequence[int]] = field(default_factory=dict)
    find: Find | None = None


@dataclass(frozen=True, slots=True)
class Aside:
    """A change with a value that the log's type cannot hold, of a table that is read again anyway."""

    table: str
    change: Mapping[str, Any]  # as the source printed it
    reason: str


@dataclass(frozen=True, slots=True)
class Step:
    """Whole transactions, or a piece of a snapshot.

    `begins`: tables whose snapshot begins before the changes of this step. `ends`: tables whose snapshot is
    complete with it: rows that neither it nor a change since has told are gone from the source.
    """

    position: Position
    changes: Sequence[Changes] = ()
    begins: Sequence[Table] = ()
    ends: Sequence[Table] = ()
    gone: Sequence[str] = ()  # tables that the source has no more; may be told again
    aside: Sequence[Aside] = ()


class Source(Protocol):
    """One database. Used by one thread, but for `status`."""

    kind: str
    address: str  # to be shown: without a password

    def tables(self) -> list[Table]:
        """What is captured. Raises, and says what to do, where the source cannot be captured as it is."""

    def steps(self, position: Position | None, again: Sequence[str] = ()) -> Iterator[Step | None]:
        """Everything after `position`, and where it is None a snapshot before; never ends by itself.

        None comes several times a second while there is nothing new. `again`: tables to take a new snapshot
        of, all of them with "*". What the source keeps for us has to be there still, or it raises.
        """

    def stored(self, position: Position) -> None:
        """Everything up to `position` is in the log: the source need not keep it."""

    def altered(self, old: Table, new: Table) -> bool:
        """Whether a new form of a table came with values that no change has told: it is read again then."""

    def remove(self, table: str, ids: Sequence[int]) -> None:
        """Events of the outbox `table` that are published: their rows can go."""

    def mark(self) -> Any:
        """Where the source is now."""

    def passed(self, mark: Any) -> bool:
        """Whether the steps so far have told everything up to there."""

    def status(self, position: Position | None) -> Mapping[str, Any]:
        """How far behind we are, and what the source keeps for us; readable, and plain JSON.

        `left_out`: tables that it has and nobody has named, and that cannot be captured as they are.
        """

    def drop(self) -> None:
        """Remove from the source everything that capture made there."""

    def close(self) -> None: ...
