"""What a follower copies: a view's name, its own columns and its key.

A changelog record has the view's columns, then `_op`, `_batch`, `_revision` and `_closed`. No column of its
own has one of those names, or of those that every record and every store has, so the two cannot be mixed up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import BadName, BadSchema
from penstock.log.settings import check_name
from penstock.schema import RESERVED, RecordSchema, ddl_of, did_you_mean

REVISION = pa.field("_revision", pa.int32())
FINAL = pa.field("final", pa.bool_())
WINDOW_END = "window_end"
_CHANGELOG = ("_op", "_batch", REVISION.name, "_closed")
_TAKEN = frozenset([*RESERVED, *_CHANGELOG, "_nulls"])
ROWS_SUFFIX = "__rows"


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A keyed table. An empty key means a table of one row."""

    name: str
    columns: pa.Schema  # the view's own
    key: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_view_name(self.name)
        plain = RecordSchema.of(self.columns).arrow
        nullable = pa.schema([column.with_nullable(True) for column in plain])
        object.__setattr__(self, "columns", nullable)
        object.__setattr__(self, "key", tuple(self.key))
        self._check_columns()
        self._check_key()

    @property
    def windowed(self) -> bool:
        """Whether its rows belong to windows, which become final."""
        return WINDOW_END in self.columns.names and pa.types.is_timestamp(self.columns.field(WINDOW_END).type)

    @property
    def ddl(self) -> str:
        return RecordSchema(self.columns).ddl

    @property
    def values(self) -> pa.Schema:
        """The columns of a stored row."""
        return pa.schema([*self.columns, REVISION])

    @property
    def shown(self) -> pa.Schema:
        """The columns of a row as it is read."""
        return pa.schema([*self.values, FINAL]) if self.windowed else self.values

    def _check_columns(self) -> None:
        for name in self.columns.names:
            if name.lower() in _TAKEN or "\0" in name:
                raise BadSchema(
                    f'"{self.name}": a column cannot be named {name!r}.',
                    hint=f"these names are Penstock's own: {', '.join(sorted(_TAKEN))}",
                )
            if self.windowed and name.lower() == FINAL.name:
                raise BadSchema(
                    f'view "{self.name}": a view of windows has a column "{FINAL.name}" already.',
                    hint="give yours another name",
                )

    def _check_key(self) -> None:
        for at, name in enumerate(self.key):
            if name not in self.columns.names:
                raise BadSchema(
                    f'view "{self.name}" has no key column "{name}".',
                    hint=did_you_mean(name, self.columns.names),
                )
            if name in self.key[:at]:
                raise BadSchema(f'column "{name}" is in the key twice.', hint="name each column once")
            dtype = self.columns.field(name).type
            if pa.types.is_nested(dtype):
                raise BadSchema(
                    f'column "{name}" is {ddl_of(dtype)} and cannot be part of a key.',
                    hint="take its fields apart into columns of their own",
                )


def is_own(name: str) -> bool:
    """Whether a column of a changelog record is one of the table itself."""
    return name not in _TAKEN


def spec_of(changelog: pa.Schema, key: Iterable[str], *, name: str) -> TableSpec:
    """The table that a topic of these columns describes: a changelog, or the records of a table."""
    is_changelog = set(_CHANGELOG) <= set(changelog.names)
    own = [column for column in changelog if not (is_changelog and column.name in _CHANGELOG)]
    return TableSpec(name, pa.schema(own), tuple(key))


def _check_view_name(name: str) -> None:
    """A store has a table `<view>__rows` beside each view, so that ending is taken."""
    check_name("view", name)
    lowered = name.lower()
    if lowered.endswith(ROWS_SUFFIX) or lowered.startswith(("sqlite_", "penstock_")):
        error = BadName("view", name)
        error.hint = f'choose one that does not end in "{ROWS_SUFFIX}" or begin with "sqlite_" or "penstock_"'
        raise error
