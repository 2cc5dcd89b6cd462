"""Rows that are asked for as `column=value`, on the command line and on the pages."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from penstock.app.conditions import conditions
from penstock.errors import PenstockError
from penstock.schema import RecordSchema

COLUMNS = RecordSchema.of("id BIGINT, name STRING, at TIMESTAMP, price DECIMAL(10, 2), ok BOOLEAN").arrow


def test_text_becomes_the_value_that_the_column_has() -> None:
    found = conditions("users", COLUMNS, ["id=7", "name=a=b", "at=2026-01-31T12:00", "price=1.50", "ok=true"])
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert found == {"id": 7, "name": "a=b", "at": noon, "price": Decimal("1.50"), "ok": True}
    assert conditions("users", COLUMNS, ["name=null"]) == {"name": None}


@pytest.mark.parametrize(
    ("text", "said"),
    [("id", "is no condition"), ("id=x", "is no BIGINT"), ("nmae=x", 'no column "nmae"'), ("at=noon", "at")],
)
def test_what_does_not_fit_is_refused(text: str, said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        conditions("users", COLUMNS, [text])
