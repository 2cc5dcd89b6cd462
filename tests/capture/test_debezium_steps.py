"""Debezium's events as steps: what may be stored together, and what it repeats."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from penstock.capture.debezium_json import Form
from penstock.capture.debezium_steps import Event, Progress, Steps
from penstock.capture.source import Step, Table
from penstock.schema import RecordSchema

ORDERS = Form(Table("orders", RecordSchema.of("id INT, name STRING").arrow, ("id",)))
LINES = Form(Table("lines", RecordSchema.of("id INT, name STRING").arrow, ("id",)))
WHERE = '{"server": "shop"}'


def row(
    commit: int, lsn: int, key: int, *, batch: int = 1, form: Form = ORDERS, snapshot: str = "false"
) -> Event:
    """As PostgreSQL's connector tells it: `commit` is the one before."""
    source = {
        "connector": "postgresql",
        "sequence": json.dumps([str(commit), str(lsn)]),
        "snapshot": snapshot,
    }
    transaction = None if snapshot != "false" else {"id": f"7:{lsn}", "total_order": key}
    told = {"op": "c", "before": None, "after": {"id": key, "name": "x"}, "source": source}
    change = form.change({**told, "transaction": transaction})
    offset = {"lsn": lsn, **({"snapshot": "INITIAL"} if snapshot != "false" else {})}
    return Event(WHERE, offset, batch, form, change)


def mark(status: str, lsn: int, *, batch: int = 1) -> Event:
    return Event(WHERE, {"lsn": lsn}, batch, mark=status)


def following(order: Sequence[int] | None = None) -> Progress:
    position = {"places": [[WHERE, {"lsn": 1}, order]], "tables": {}, "history": "", "reading": False}
    return Progress.of(position)


def gone(commit: int, lsn: int, key: int) -> Event:
    source = {"connector": "postgresql", "sequence": json.dumps([str(commit), str(lsn)])}
    told = {"op": "d", "before": {"id": key}, "after": None, "source": source, "transaction": {"id": "7:1"}}
    return Event(WHERE, {"lsn": lsn}, 1, ORDERS, ORDERS.change(told))


def keys(steps: Sequence[Step]) -> list[list[int]]:
    return [
        [each["id"] for changes in step.changes for each in changes.rows.column("after").to_pylist()]
        for step in steps
    ]


def add(steps: Steps, events: Sequence[Event], batch: int = 1, history: str | None = None) -> list[Step]:
    return list(steps.add(events, batch, history))


def test_a_transaction_is_stored_whole_however_its_batches_come() -> None:
    steps = Steps(following())
    assert add(steps, [mark("BEGIN", 10), row(5, 10, 1)]) == []
    assert steps.stored_batch == 0
    end = [row(5, 11, 2, batch=2), mark("END", 12, batch=2), mark("BEGIN", 20, batch=2)]
    found = add(steps, end, batch=2)
    assert keys(found) == [[1, 2]]
    assert found[0].position["places"] == [[WHERE, {"lsn": 12}, (5, 11)]]
    assert steps.stored_batch == 1  # of the second one, something is open


def test_a_very_large_transaction_is_cut_but_never_within_one_place() -> None:
    steps = Steps(following(), step_rows=3)
    events = [mark("BEGIN", 10), row(5, 10, 1), row(5, 11, 2), row(5, 12, 3), row(5, 12, 4), row(5, 13, 5)]
    assert keys(add(steps, events[:-1])) == [[1, 2]]  # whether 4 has the place of 3 is not known before
    assert keys(add(steps, [row(5, 13, 5, batch=2)], batch=2)) == [[3, 4]]
    assert keys(add(steps, [mark("END", 15, batch=3)], batch=3)) == [[5]]
    assert steps.stored_batch == 3


def test_what_is_stored_and_comes_again_is_dropped() -> None:
    steps = Steps(following([5, 11]))
    events = [mark("BEGIN", 10), row(5, 10, 1), row(5, 11, 2), row(5, 12, 3), mark("END", 13)]
    assert keys(add(steps, events)) == [[3]]


def test_a_later_commit_of_an_earlier_write_is_no_repetition() -> None:
    steps = Steps(following([100, 200]))
    assert keys(add(steps, [row(300, 150, 1), mark("END", 301)])) == [[1]]


def test_only_the_first_events_can_be_repetitions() -> None:
    """After a failover the places of a source may begin anew."""
    steps = Steps(following([100, 200]))
    first, second = [row(300, 301, 1), mark("END", 302)], [row(50, 60, 2), mark("END", 61)]
    assert keys([*add(steps, first), *add(steps, second, 2)]) == [[1], [2]]


def test_a_snapshot_begins_and_ends_its_tables() -> None:
    steps = Steps(Progress.of(None))
    first = add(steps, [row(0, 1, 1, snapshot="first"), row(0, 1, 2, snapshot="true")])
    assert [table.name for table in first[0].begins] == ["orders"]
    assert (first[0].ends, first[0].position["reading"]) == ((), True)
    last = add(steps, [row(0, 1, 9, form=LINES, snapshot="last", batch=2)], 2)
    assert [table.name for table in last[0].begins] == ["lines"]
    assert {table.name for table in last[0].ends} == {"orders", "lines"}
    assert last[0].position["reading"] is False


def test_a_new_snapshot_ends_tables_that_it_found_empty() -> None:
    known = Progress.of(None)
    known.tables = {"orders": ORDERS.table, "lines": LINES.table}
    steps = Steps(known.anew())
    step = add(steps, [row(0, 1, 1, snapshot="last")])[0]
    assert {table.name for table in step.ends} == {"orders", "lines"}
    nothing = Steps(known.anew()).ended()
    assert nothing is not None
    assert (
        {table.name for table in nothing.begins}
        == {table.name for table in nothing.ends}
        == {"orders", "lines"}
    )


def test_a_snapshot_that_was_interrupted_is_no_place_to_go_on_from() -> None:
    steps = Steps(Progress.of(None))
    stored = add(steps, [row(0, 1, 1, snapshot="first")], history="forms")[0].position
    progress = Progress.of(json.loads(json.dumps(stored)))
    assert progress.reading
    assert (progress.anew().offsets, progress.anew().history) == ([], "")
    assert progress.anew().tables == {"orders": ORDERS.table}


def test_a_position_survives_being_stored() -> None:
    steps = Steps(following())
    stored: Any = add(steps, [row(5, 10, 1), mark("END", 11)], history="forms\n")[0].position
    progress = Progress.of(json.loads(json.dumps(stored)))
    assert progress.offsets == [[{"server": "shop"}, {"lsn": 11}]]
    assert (progress.history, progress.position()) == ("forms\n", stored)


def test_a_delete_and_an_insert_of_one_place_are_an_update_of_the_key() -> None:
    events = [gone(5, 10, 1), row(5, 10, 2), gone(5, 11, 2), row(5, 12, 2), mark("END", 13)]
    step = add(Steps(following()), events)[0]
    told = step.changes[0].rows.to_pylist()
    assert [(row["op"], (row["before"] or {}).get("id"), (row["after"] or {}).get("id")) for row in told] == [
        ("u", 1, 2), ("d", 2, None), ("c", None, 2),
    ]  # fmt: skip
