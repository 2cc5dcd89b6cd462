"""Changes with a value that the log's type cannot hold, where their table is read again anyway.

They are put aside as PostgreSQL printed them. What the log is told instead is that the row is gone: until it
is read again, no older value of it can be taken for one of now.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.capture.envelope import DELETE
from penstock.capture.pgoutput import Rows
from penstock.capture.postgres_catalog import Form
from penstock.capture.postgres_types import unfit


def unfit_rows(form: Form, rows: Rows) -> set[int]:
    """The numbers of those that do not fit."""
    pairs = zip((*rows.before, *rows.after), (*form.table.columns, *form.table.columns), strict=True)
    return {at for texts, column in pairs for at in unfit(texts, column.type)}


def told_texts(form: Form, rows: Rows, at: int, about: Mapping[str, Any]) -> dict[str, Any]:
    """One of the changes, for people."""
    names = form.table.columns.names
    sides = {"before": (rows.before, rows.has_before), "after": (rows.after, rows.has_after)}
    told = {
        side: {name: texts[at].as_py() for name, texts in zip(names, columns, strict=True)}
        for side, (columns, present) in sides.items()
        if present[at].as_py()
    }
    return {"op": rows.ops[at].as_py(), **told, "position": about["positions"][at].as_py()}


def without(form: Form, rows: Rows, bad: Collection[int]) -> tuple[Rows, set[int]]:
    """The changes with deletes in place of some; and which of them cannot be told, for want of a key."""
    mask = np.zeros(len(rows.ops), bool)
    mask[list(bad)] = True
    is_bad = pa.array(mask)
    takes_new = pc.and_(is_bad, pc.invert(rows.has_before))
    before, lost = [], set()
    for at, column in enumerate(form.table.columns):
        texts = rows.before[at]
        if at in form.key_places:
            texts = pc.if_else(takes_new, rows.after[at], texts)
            found = set(unfit(texts, column.type)) & set(bad)
            lost |= found
            texts = _cleared(texts, found)
        else:
            texts = _cleared(texts, bad)
        before.append(texts)
    told = replace(
        rows,
        ops=pc.if_else(is_bad, DELETE, rows.ops),
        before=before,
        after=[_cleared(texts, bad) for texts in rows.after],
        has_before=pc.or_(rows.has_before, is_bad),
        has_after=pc.and_(rows.has_after, pc.invert(is_bad)),
        unchanged={
            at: [number for number in numbers if number not in bad] for at, numbers in rows.unchanged.items()
        },
    )
    return told, lost


def _cleared(texts: Any, places: Collection[int]) -> Any:
    mask = np.zeros(len(texts), bool)
    mask[list(places)] = True
    return pc.if_else(pa.array(mask), pa.scalar(None, texts.type), texts)
