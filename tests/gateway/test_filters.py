"""What `where=` says, and what it is refused for."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.gateway.served import Served

from penstock.errors import BadQuery
from penstock.gateway import filter

COLUMNS = pa.schema([("a", pa.int64()), ("b", pa.string())])
ROWS = pa.record_batch([[1, 2], ["x", "y"]], schema=COLUMNS)


def _held(text: str) -> list[bool]:
    found = filter.where(text, COLUMNS)
    assert found is not None
    return list(found.holds(ROWS))


def test_records_are_chosen_by_when_they_were_appended(served: Served) -> None:
    notes = "/topics/notes/records"
    served.post(notes, json={"text": "before"})
    (first,) = served.get(notes).json()["records"]
    served.post(notes, json={"text": "after"})
    found = served.get(notes, params={"where": f"_timestamp > '{first['time']}'"}).json()["records"]
    assert [record["value"]["text"] for record in found] == ["after"]


@pytest.mark.parametrize("joined", ["a{}=202", "{}a=3"], ids=["sums", "conditions"])
def test_what_is_joined_has_a_bound_that_can_be_computed(joined: str) -> None:
    """Also far within other calls, as in a server."""
    piece = "+1" if joined.startswith("a") else "a=2 or "

    def within(depth: int, text: str) -> list[bool]:
        return within(depth - 1, text) if depth else _held(text)

    assert within(150, joined.format(piece * 200)) == [False, True]
    with pytest.raises(BadQuery, match="more than 200"):
        filter.where(joined.format(piece * 201), COLUMNS)


def test_many_values_are_no_joined_sides() -> None:
    assert _held(f"a in (1{', -2' * 400})") == [True, False]
