"""Decoding of pgoutput messages, without a server."""

from __future__ import annotations

import struct

from penstock.capture.pgoutput import EMPTIED, begin_of, emptied_by, end_of_commit, relation_of, rows_of

UNCHANGED = "unchanged"


def row(*values: str | None) -> bytes:
    """A tuple: text, NULL or a large value that is as it was."""
    parts = [struct.pack("!H", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif value is UNCHANGED:
            parts.append(b"u")
        else:
            raw = value.encode()
            parts.append(b"t" + struct.pack("!I", len(raw)) + raw)
    return b"".join(parts)


def insert(*values: str | None) -> bytes:
    return b"I" + struct.pack("!I", 7) + b"N" + row(*values)


def update(new: bytes, old: bytes = b"") -> bytes:
    return b"U" + struct.pack("!I", 7) + old + b"N" + new


def delete(mark: bytes, old: bytes) -> bytes:
    return b"D" + struct.pack("!I", 7) + mark + old


def test_inserts_updates_and_deletes_lie_beside_each_other() -> None:
    rows = rows_of(
        [
            insert("1", "ü", None),
            update(row("1", "", "x")),
            update(row("2", "b", "x"), b"K" + row("1", None, None)),
            EMPTIED,
            delete(b"K", row("2", None, None)),
        ],
        width=3,
        key=[0],
    )
    assert rows.ops.to_pylist() == ["c", "u", "u", "t", "d"]
    assert [column.to_pylist() for column in rows.after] == [
        ["1", "1", "2", None, None],
        ["ü", "", "b", None, None],
        [None, "x", "x", None, None],
    ]
    assert [column.to_pylist() for column in rows.before] == [
        [None, "1", "1", None, "2"],
        [None] * 5,
        [None] * 5,
    ]
    assert rows.has_before.to_pylist() == [False, True, True, False, True]
    assert rows.has_after.to_pylist() == [True, True, True, False, False]
    assert rows.unchanged == {}


def test_the_rest_of_an_old_key_means_nothing() -> None:
    rows = rows_of([delete(b"K", row("1", "left over")), delete(b"O", row("2", "told"))], width=2, key=[0])
    assert [column.to_pylist() for column in rows.before] == [["1", "2"], [None, "told"]]


def test_an_unchanged_value_is_filled_only_from_a_whole_old_row() -> None:
    rows = rows_of(
        [
            update(row("1", UNCHANGED)),
            update(row("1", UNCHANGED), b"O" + row("1", "old")),
            update(row("2", UNCHANGED), b"K" + row("1", None)),
            update(row("1", None), b"O" + row("1", "old")),
        ],
        width=2,
        key=[0],
    )
    assert rows.after[1].to_pylist() == [None, "old", None, None]
    assert rows.unchanged == {1: [0, 2]}


def test_a_large_key_that_is_unchanged_comes_from_the_old_key() -> None:
    rows = rows_of([update(row(UNCHANGED, "n"), b"K" + row("long", None))], width=2, key=[0])
    assert rows.after[0].to_pylist() == ["long"]
    assert rows.unchanged == {}


def test_a_header_before_every_message_is_skipped() -> None:
    messages = [b"#" * 25 + each for each in (insert("1"), EMPTIED, insert(None), insert("22"))]
    rows = rows_of(messages, width=1, key=[0], header=25)
    assert rows.after[0].to_pylist() == ["1", None, None, "22"]


def test_begin_commit_and_truncate() -> None:
    begin = begin_of(b"B" + struct.pack("!QqI", 0x1_0000_00AB, 1_000_000, 77))
    assert (begin.commit_lsn, begin.committed_us, begin.xid) == (0x1_0000_00AB, 946_684_801_000_000, 77)
    assert end_of_commit(b"C" + struct.pack("!BQQq", 0, 5, 9, 0)) == 9
    assert emptied_by(b"T" + struct.pack("!IBII", 2, 1, 40, 41)) == [40, 41]


def test_a_relation_names_its_columns_types_and_identity() -> None:
    message = b"R" + struct.pack("!I", 7) + b"sales\0orders\0d" + struct.pack("!H", 2)
    message += b"\1id\0" + struct.pack("!Ii", 23, -1) + b"\0price\0" + struct.pack("!Ii", 1700, 524294)
    relation = relation_of(message)
    assert (relation.oid, relation.schema, relation.name, relation.identity) == (7, "sales", "orders", "d")
    assert [(each.name, each.type_oid, each.modifier, each.in_identity) for each in relation.columns] == [
        ("id", 23, -1, True),
        ("price", 1700, 524294, False),
    ]
