"""Messages collected into whole transactions, without a server."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from tests.capture.test_pgoutput import insert

from penstock.capture import postgres_source, postgres_transactions
from penstock.capture.pgoutput import Relation
from penstock.capture.postgres_catalog import Form
from penstock.capture.postgres_connection import HEADER_BYTES
from penstock.capture.postgres_transactions import Transactions
from penstock.capture.source import Table

FORM = Form(7, Table("t", pa.schema([("id", pa.int64())]), ("id",)), (0,))


def frame(message: bytes) -> bytes:
    return b"w" + bytes(HEADER_BYTES - 1) + message


def relation(column: bytes = b"id") -> bytes:
    return frame(
        b"R" + struct.pack("!I", 7) + b"public\0t\0d\0\1\1" + column + b"\0" + struct.pack("!Ii", 20, -1)
    )


def begin(lsn: int, xid: int) -> bytes:
    return frame(b"B" + struct.pack("!QqI", lsn, 0, xid))


def commit(lsn: int) -> bytes:
    """Ends right behind `lsn`."""
    return frame(b"C" + struct.pack("!BQQq", 0, lsn, lsn + 1, 0))


class Arriving:
    """A stream of which each read finds what came meanwhile."""

    passed = 0

    def __init__(self, *reads: list[bytes]) -> None:
        self.reads = list(reads)

    def read(self, count: int) -> list[bytes]:
        found = self.reads.pop(0)
        assert len(found) <= count
        return found


def many(xid: int) -> list[bytes]:
    inserts = [frame(insert(str(number))) for number in range(600)]
    return [begin(xid * 10, xid), *inserts, commit(xid * 10)]


def fed(transactions: Transactions, *frames: bytes) -> Transactions:
    for each in frames:
        transactions.feed([each])
    return transactions


def ids(transactions: Transactions) -> list[Any]:
    return [
        (row["transaction"], row["transaction_order"], row["after"]["id"])
        for changes in transactions.take()[0]
        for row in changes.rows.to_pylist()
    ]


def collecting(after_lsn: int = 0, captured: bool = True) -> Transactions:
    transactions = Transactions(lambda _: FORM if captured else None, after_lsn=after_lsn)
    return fed(transactions, begin(1, 1), relation(), commit(1))


def test_what_is_complete_can_be_taken_while_the_next_is_under_way() -> None:
    transactions = fed(
        collecting(), begin(10, 5), frame(insert("1")), commit(10), begin(20, 6), frame(insert("2"))
    )
    assert transactions.count == 1
    assert ids(transactions) == [("5", 1, 1)]
    assert (transactions.count, transactions.lsn) == (0, 11)
    fed(transactions, frame(insert("3")), commit(20))
    assert ids(transactions) == [("6", 1, 2), ("6", 2, 3)]
    assert transactions.lsn == 21


def test_only_between_transactions_the_word_of_the_server_counts() -> None:
    transactions = fed(collecting(), begin(10, 5), frame(insert("1")))
    transactions.passed(15)
    assert transactions.lsn == 2
    fed(transactions, commit(10))
    transactions.passed(15)
    assert transactions.lsn == 15


def test_a_transaction_that_was_stored_is_not_told_again() -> None:
    transactions = fed(collecting(after_lsn=11), begin(10, 5), frame(insert("1")), commit(10))
    assert ids(transactions) == []
    fed(transactions, begin(11, 6), frame(insert("2")), commit(11))
    assert ids(transactions) == [("6", 1, 2)]


def test_a_table_that_is_not_captured_is_left_out() -> None:
    transactions = fed(collecting(captured=False), begin(10, 5), frame(insert("1")), commit(10))
    assert (transactions.count, transactions.lsn) == (0, 11)


def test_a_large_transaction_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """It becomes columns before it is complete: those come after what was committed before it."""
    monkeypatch.setattr(postgres_transactions, "_PIECE_ROWS_MAX", 2)
    transactions = fed(collecting(), begin(10, 5), frame(insert("0")), commit(10), begin(20, 6))
    fed(transactions, *(frame(insert(str(number))) for number in range(1, 6)))
    fed(transactions, commit(20), begin(30, 7), frame(insert("6")), commit(30))
    expected = [("5", 1, 0), *(("6", number, number) for number in range(1, 6)), ("7", 1, 6)]
    assert ids(transactions) == expected


def test_another_form_of_the_table_cuts_its_changes() -> None:
    renamed = Form(7, Table("t", pa.schema([("other", pa.int64())]), ("other",)), (0,))

    def form_of(relation: Relation) -> Form:
        return FORM if relation.columns[0].name == "id" else renamed

    transactions = Transactions(form_of, after_lsn=0)
    fed(transactions, begin(10, 5), relation(), frame(insert("1")), relation(b"other"), frame(insert("2")))
    fed(transactions, commit(10), begin(20, 6), relation(b"other"), frame(insert("3")), commit(20))
    assert [(each.table.key, each.rows.num_rows) for each in transactions.take()[0]] == [
        (("id",), 1),
        (("other",), 2),
    ]


def test_while_much_comes_a_step_waits_for_more() -> None:
    stream, transactions = Arriving(many(5), [], many(6), [], [], many(7)), collecting()
    postgres_source._fill(stream, transactions, 20_000)  # type: ignore[arg-type]
    assert (transactions.count, len(stream.reads)) == (1_200, 1)


def test_a_single_commit_waits_for_nothing() -> None:
    one = [begin(50, 5), frame(insert("1")), commit(50)]
    stream, transactions = Arriving(one, [], many(6)), collecting()
    postgres_source._fill(stream, transactions, 20_000)  # type: ignore[arg-type]
    assert (transactions.count, len(stream.reads)) == (1, 1)


def test_a_step_that_is_full_is_taken_while_more_comes() -> None:
    stream, transactions = Arriving(many(5), many(6), many(7)), collecting()
    postgres_source._fill(stream, transactions, 1_000)  # type: ignore[arg-type]
    assert (transactions.count, len(stream.reads)) == (1_200, 1)
