"""`Personal[str | None]`: what makes a field of a dataclass personal, and where it is said.

Of a field itself it is kept. Somewhere inside a field, or of a class that nobody seals by it, it is refused:
who has written it down believes that it is kept.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from penstock.errors import BadSchema
from penstock.schema import hints_of, unwrap_hint

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Mark:
    """What makes a field personal."""

    of: str | None = None
    comparable: bool = False


def personal(*, of: str | None = None, comparable: bool = False) -> Mark:
    """In `Annotated[str | None, personal(of="customer")]`: a field of whoever the field `customer` names.

    `comparable`: equal values of one subject look the same, so that views can group by them.
    """
    return Mark(of, comparable)


Personal = Annotated[T, Mark()]
"""A personal field of an event, whose subject is the aggregate: `Personal[str | None]`."""


def marks_in(kind: type) -> dict[str, Mark]:
    """The personal fields of a dataclass. Raises BadSchema where something inside a field is said to be."""
    hints = _hints(kind)
    for name, hint in hints.items():
        if _is_inside(hint):
            raise BadSchema(
                f'field "{name}" has something personal inside, which would not be sealed.',
                hint="let it be a field of its own: Personal[str | None]",
            )
    return {name: mark for name, hint in hints.items() if (mark := _mark(hint))}


def check_sealed_anyway(kind: type | None, sealed: Collection[str]) -> None:
    """Raises BadSchema where a record's class calls a column personal that is not `sealed`."""
    for name in marks_in(kind) if kind is not None else ():
        if name not in sealed:
            raise BadSchema(
                f'field "{name}" is said to be personal, and would not be sealed.',
                hint=f'say to the topic which column names the subject: personal={{"{name}": "customer"}}',
            )


def _hints(kind: type) -> dict[str, object]:
    hints = hints_of(kind)
    return {each.name: hints[each.name] for each in dataclasses.fields(kind)}


def _mark(hint: object) -> Mark | None:
    """Also in `Personal[str] | None`."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(filter(None, map(_mark, typing.get_args(hint))), None)
    if typing.get_origin(hint) is not Annotated:
        return None
    inner, *extras = typing.get_args(hint)
    return next((extra for extra in extras if isinstance(extra, Mark)), None) or _mark(inner)


def _is_inside(hint: object) -> bool:
    """Of an element of a list or map, or of a field of a dataclass."""
    base, _, _ = unwrap_hint(hint, "")
    is_record = isinstance(base, type) and dataclasses.is_dataclass(base)
    parts: Iterable[object] = _hints(base).values() if is_record else typing.get_args(base)  # type: ignore[arg-type]
    return any(_mark(part) or _is_inside(part) for part in parts)
