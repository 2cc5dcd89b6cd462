"""Rows as cells of a table on a page: numbers to the right, states as tags, everything as text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from penstock.gateway.pages import words
from penstock.gateway.pages.tail import Tail

_TEXT_MAX = 400


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    number: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    kind: str = ""
    tag: str = ""
    was: str = ""


@dataclass(frozen=True, slots=True)
class RowTable:
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    more: bool = False


def conditions_in(text: str) -> list[str]:
    """What a filter of rows asks for; a value may have spaces.

    >>> conditions_in("city=New York user_id=7")
    ['city=New York', 'user_id=7']
    """
    return re.split(r"\s+(?=\w+=)", text) if text else []


def is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def plain_rows(schema: pa.Schema, rows: Iterable[dict[str, Any]], *, more: bool = False) -> RowTable:
    """Rows as they are."""
    columns = tuple(Column(field.name, is_number(field.type)) for field in schema)
    names = list(zip(schema.names, columns, strict=True))
    told = tuple(tuple(_cell(row.get(name), column) for name, column in names) for row in rows)
    return RowTable(columns, told, more)


def view_rows(tail: Tail, *, now_us: int, limit: int, past: bool = False) -> RowTable:
    """Rows of a view with their state and how long ago they changed, newest change first."""
    own = [field for field in tail.spec.columns if field.name != "window_end"]
    titles = [
        Column("window" if field.name == "window_start" else field.name, is_number(field.type))
        for field in own
    ]
    windowed = tail.spec.windowed
    columns = (*titles, *((Column("state"),) if windowed else ()), Column("changed", number=True))
    rows = []
    today = words.date(now_us).partition(" ")[0]
    for row in tail.rows[:limit]:
        cells = [
            _changed(row.values, row.before, field.name, title, today)
            for field, title in zip(own, titles, strict=True)
        ]
        if windowed:
            cells.append(_state(final=bool(row.final), revision=row.revision))
        cells.append(Cell(f"{words.span((now_us - row.at_us) / 1e6)} {'before' if past else 'ago'}", "num"))
        rows.append(tuple(cells))
    return RowTable(columns, tuple(rows), len(tail.rows) > limit)


def _state(*, final: bool, revision: int) -> Cell:
    if revision:
        return Cell("corrected" if revision == 1 else f"corrected {revision} times", "tight", "revise")
    return Cell("final", "tight", "final") if final else Cell("open", "tight", "open")


def _changed(
    values: dict[str, Any], before: dict[str, Any] | None, name: str, column: Column, today: str
) -> Cell:
    found = _cell(values[name], column)
    if name == "window_start" and isinstance(values[name], datetime):
        return Cell(_window(values, today), "tight mono")
    if before is None or before.get(name) == values[name]:
        return found
    return Cell(found.text, found.kind, found.tag, words.cell(before.get(name)))


def _window(values: dict[str, Any], today: str) -> str:
    """When it begins and ends; the day only where it is another one."""
    start, end = (words.cell(values.get(name)) for name in ("window_start", "window_end"))
    day, _, begins = start.partition(" ")
    ends = end.removeprefix(f"{day} ")
    return f"{'' if day == today else f'{day} '}{begins} \u2013 {ends}"


def _cell(value: object, column: Column) -> Cell:
    text = words.cell(value)
    short = text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"
    kind = "num" if column.number else "tight mono" if isinstance(value, datetime) else ""
    if not column.number and isinstance(value, str | bytes | dict | list):
        kind = "mono" if len(short) < 40 else "json"
    return Cell(short, kind)
