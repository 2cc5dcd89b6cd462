"""Rows of a cursor in pieces."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from penstock.capture.pieces import pieces

NUMBERS = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 1000) SELECT "


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as opened:
        yield opened


def test_all_rows_come_in_their_order_and_no_piece_has_too_many(db: sqlite3.Connection) -> None:
    found = list(pieces(db.execute(f"{NUMBERS} n FROM t"), 300))
    assert [len(piece) for piece in found] == [300, 300, 300, 100]
    assert [number for piece in found for (number,) in piece] == list(range(1, 1_001))


def test_of_large_rows_a_piece_has_few(db: sqlite3.Connection) -> None:
    large_from_500 = f"{NUMBERS} n, zeroblob(CASE WHEN n < 500 THEN 10 ELSE 100000 END) FROM t"
    found = list(pieces(db.execute(large_from_500), 50_000, bytes_max=1_000_000))
    assert [number for piece in found for number, _ in piece] == list(range(1, 1_001))
    sizes = [sum(len(blob) for _, blob in piece) for piece in found]
    assert max(sizes[1:]) <= 1_100_000
    assert sizes[0] <= 128 * 100_000  # which is read before its size is known
