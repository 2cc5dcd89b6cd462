"""Events with the row that was valid at their time: the kernel against a naive model."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.flow.operators.versions_world import EVENTS, TABLE, VERSIONS, Given, table, version_at, worlds

from penstock.flow.enrich import Enrich
from penstock.flow.output import diverted
from penstock.flow.pages import MemoryPages, Pages

thorough = settings(max_examples=300, deadline=None)


def kernel(*, wait: int = 0, diverts: str | None = None, latest: bool = False) -> Enrich:
    return Enrich(
        ("user",), ("id",), None if latest else "at", ("name",), ("name",), wait, diverts, EVENTS, TABLE
    )


def run(
    enrich: Enrich, found: list[Given], *, rows_each: int = 2
) -> tuple[list[list[Any]], Any, MemoryPages]:
    """What came out, batch after batch; the state at the end."""
    state: tuple[pa.Table, ...] | None = None
    store, out = MemoryPages(), []
    for batch in found:
        pages = Pages(store, enrich.versions, enrich.key, rows_each=rows_each)
        new = table(batch.events, EVENTS), table(batch.versions, VERSIONS)
        stepped = enrich.step(state, (pages,), new, batch.watermark)
        assert stepped.wake_us is None or stepped.wake_us > batch.watermark
        state = stepped.state or None
        out.append([(row["n"], row["name"], row["version_offset"]) for row in stepped.output.to_pylist()])
    return out, state, store


def expected(found: list[Given], *, wait: int) -> Counter[Any]:
    versions = [row for batch in found for row in batch.versions]
    wanted: Counter[Any] = Counter()
    for event in (event for batch in found for event in batch.events):
        moments = range(event["at"], event["at"] + wait + 1)
        met = ((moment, version_at(versions, event["user"], moment)) for moment in moments)
        due, row = next(((m, row) for m, row in met if row), (event["at"] + wait, None))
        if due <= found[-1].watermark:
            wanted[event["n"], row and row["name"], row and row["_offset"]] += 1
    return wanted


@thorough
@given(found=worlds(), wait=st.sampled_from([0, 3, 7]))
def test_each_event_meets_the_version_valid_at_its_time(found: list[Given], wait: int) -> None:
    out, _, _ = run(kernel(wait=wait), found)
    assert Counter(row for rows in out for row in rows) == expected(found, wait=wait)


def test_an_event_without_a_row_says_what_becomes_of_it() -> None:
    enrich = kernel(diverts="no row in users")
    events = [
        {
            "user": user, "n": user, "at": 5, "_watermark": 1, "_topic": "clicks", "_partition": 0,
            "_offset": user,
        }
        for user in (1, 2)
    ]  # fmt: skip
    versions = [
        {
            "id": 1, "name": "Ann", "_from": 0, "_timestamp": 0, "_partition": 0, "_offset": 0,
            "_deleted": False,
        }
    ]  # fmt: skip
    pages = Pages(MemoryPages(), enrich.versions, enrich.key)
    new = table(events, enrich.rows), table(versions, VERSIONS)
    rows, late = diverted(enrich.step(None, (pages,), new, 5).output)
    assert rows.column("name").to_pylist() == ["Ann"]
    assert late is not None
    (said,) = late.to_pylist()
    assert (said["row"]["n"], said["reason"], said["topic"], said["offset"]) == (
        2,
        "no row in users",
        "clicks",
        2,
    )
    assert said["window_end"] is None


@thorough
@given(found=worlds())
def test_the_latest_version_is_the_one_known_when_the_batch_runs(found: list[Given]) -> None:
    out, _, _ = run(kernel(latest=True), found)
    known: list[Any] = []
    for batch, rows in zip(found, out, strict=True):
        known += batch.versions
        met = {event["n"]: version_at(known, event["user"], None) for event in batch.events}
        assert sorted(rows) == sorted(
            (n, row and row["name"], row and row["_offset"]) for n, row in met.items()
        )


@thorough
@given(found=worlds(times=60), wait=st.sampled_from([0, 5]))
def test_only_what_can_still_be_asked_for_is_kept(found: list[Given], wait: int) -> None:
    enrich = kernel(wait=wait)
    everyone = [{**row, "_from": found[-1].watermark + 1} for row in (b for g in found for b in g.versions)]
    touched = Given(
        [], [{**row, "_offset": 10_000 + i} for i, row in enumerate(everyone)], found[-1].watermark
    )
    _, state, store = run(enrich, [*found, touched])
    horizon = touched.watermark - wait
    kept = Pages(store, enrich.versions, enrich.key, rows_each=2)._read(range(64)).to_pylist()
    for key in {row["id"] for row in kept}:
        past = [row for row in kept if row["id"] == key and row["_from"] <= horizon]
        assert len(past) <= 1
        assert not any(row["_deleted"] for row in past)
    assert all(
        row["at"].timestamp() * 1e6 + wait > touched.watermark
        for row in (state[0].to_pylist() if state else [])
    )
