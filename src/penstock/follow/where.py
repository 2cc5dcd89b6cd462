"""Which rows a subscriber wants: by the values of columns, by an expression, or by a function of its own.

All three are asked about whole Arrow batches. Nulls are as in SQL, except that `{"city": None}` means those
without a city.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadOption
from penstock.flow import expression_forms
from penstock.flow.expression_types import OWN, Ref, condition
from penstock.flow.expressions import Expression, Field, leaves
from penstock.follow.cells import column_of
from penstock.log.decode import decode
from penstock.schema import ddl_of, did_you_mean

Bools: TypeAlias = npt.NDArray[np.bool_]
Wanted: TypeAlias = Mapping[str, object] | Expression | Callable[[dict[str, Any]], object] | None
"""What `where=` takes."""


@dataclass(frozen=True, slots=True)
class Where:
    """A condition. `said` is the same text for the same condition; of a function nothing can be said."""

    said: str
    holds: Callable[[pa.RecordBatch], Bools]
    reads: frozenset[str] | None = None  # which columns decide; None where that is not known


def where_of(wanted: Wanted, columns: pa.Schema) -> Where:
    """Raises BadInput for a column that is not there, or a value that does not fit."""
    if wanted is None:
        return Where("", lambda batch: np.ones(batch.num_rows, bool))
    if isinstance(wanted, Mapping):
        return _by_values(wanted, columns)
    if isinstance(wanted, Expression):
        return _by_expression(wanted, columns)
    if callable(wanted):
        return _by_function(wanted, columns)
    raise BadOption(
        f"where={wanted!r} is no condition.",
        hint='write {"column": value}, ps.col("column") > 1 or a function',
    )


def check_column(name: str, columns: pa.Schema) -> None:
    if name not in columns.names:
        raise BadOption(f'there is no column "{name}".', hint=did_you_mean(name, columns.names))


def _by_values(wanted: Mapping[str, object], columns: pa.Schema) -> Where:
    scalars = {name: _scalar(name, value, columns) for name, value in wanted.items()}

    def holds(batch: pa.RecordBatch) -> Bools:
        found = np.ones(batch.num_rows, bool)
        for name, scalar in scalars.items():
            column = batch.column(name)
            same = pc.equal(column, scalar) if scalar.is_valid else pc.is_null(column)
            found &= np.asarray(pc.fill_null(same, False).to_numpy(zero_copy_only=False), bool)
        return found

    said = repr(sorted((name, str(scalar) if scalar.is_valid else None) for name, scalar in scalars.items()))
    return Where(said, holds, frozenset(scalars))


def _scalar(name: str, value: object, columns: pa.Schema) -> Any:
    check_column(name, columns)
    dtype = columns.field(name).type
    if pa.types.is_nested(dtype):
        raise BadOption(
            f'column "{name}" is {ddl_of(dtype)} and cannot be compared.',
            hint="give a function: where=lambda row: ...",
        )
    try:
        return column_of(value, dtype)[0]
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError, OverflowError) as error:
        raise BadOption(
            f'{value!r} is no {ddl_of(dtype)}, which column "{name}" holds.', hint="give a value of that type"
        ) from error


def _by_expression(wanted: Expression, columns: pa.Schema) -> Where:
    def find(field: Field) -> Ref:
        if field.step or field.pick != "only":
            raise BadOption(f"{field} is for patterns.", hint='name a column: ps.col("column")')
        check_column(field.column, columns)
        return Ref(OWN, "only", (), field.column, columns.field(field.column).type)

    bound = condition(wanted, find)

    def holds(batch: pa.RecordBatch) -> Bools:
        found = expression_forms.holds(bound, lambda ref: batch.column(ref.column), rows=batch.num_rows)
        return np.asarray(found, bool)

    return Where(str(wanted), holds, frozenset(field.column for field in leaves(wanted)))


def _by_function(wanted: Callable[[dict[str, Any]], object], columns: pa.Schema) -> Where:
    def holds(batch: pa.RecordBatch) -> Bools:
        rows = decode(batch.select(columns.names))
        return np.fromiter((bool(wanted(row)) for row in rows), bool, batch.num_rows)

    return Where("a function", holds)
