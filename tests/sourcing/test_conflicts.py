"""Many who give commands to one aggregate: no update is lost, and who was too slow is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.sourcing.carts import Cart, Place

import penstock as ps
from penstock.app.aggregates import AppAggregates

Carts = AppAggregates[Cart]


def test_of_two_that_saw_the_same_version_one_fails(carts: Carts) -> None:
    first, second = carts.get("7", retries=0), carts.get("7", retries=0)
    first.add("apple")
    with pytest.raises(ps.CommandConflict, match="decided at version 0") as conflict:
        second.add("pear")
    assert (conflict.value.command, conflict.value.id, conflict.value.version) == ("add", "7", 0)
    assert carts.state("7").items == {"apple": 1}


def test_one_that_may_try_again_decides_with_the_newer_state(carts: Carts) -> None:
    first, second = carts["7"], carts["7"]
    first.add("apple")
    receipt = second.add("pear")
    assert (receipt.conflicts, receipt.version) == (1, 2)
    assert second.items == {"apple": 1, "pear": 1}
    first.check_out()
    with pytest.raises(ps.CommandRefused):  # not a conflict: the newer state does not allow it
        second.add("pear")


@pytest.mark.parametrize("retries", [0, 3, 200])
def test_no_update_of_50_concurrent_commands_is_lost(
    place: Place, home: Path, retries: int, report: Callable[[str], None]
) -> None:
    """Each that returned is there, each that failed is not, and all that failed are conflicts."""
    with place.carts(home, retries=retries, snapshot_every=10) as carts:

        def add(number: int) -> str:
            try:
                carts["7"].add(f"item {number}")
            except ps.CommandConflict:
                return "conflict"
            return "recorded"

        with ThreadPoolExecutor(max_workers=50) as pool:
            outcomes = list(pool.map(add, range(50)))
        cart = carts.state("7")
        done = Counter(outcomes)
        assert set(cart.items) == {f"item {n}" for n, told in enumerate(outcomes) if told == "recorded"}
        assert set(cart.items.values()) == {1}
        assert cart.version == done["recorded"] > 0
        assert retries < 200 or done["conflict"] == 0
    report(
        f"sourcing on {place.kind}, 50 commands at once, {retries} retries: {done['recorded']} recorded, "
        f"{done['conflict']} conflicts, 0 lost"
    )


def test_a_command_that_meets_its_own_event_has_been_recorded(
    carts: Carts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a connection breaks after the commit, and the library tries once more."""
    recorder = carts.book.store.recorder
    insert = recorder.insert_events

    def twice(*args: object, **options: object) -> object:
        insert(*args, **options)  # type: ignore[arg-type]
        return insert(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(recorder, "insert_events", twice)
    receipt = carts["7"].add("apple")
    assert (receipt.version, receipt.conflicts) == (1, 0)
    assert carts.state("7").items == {"apple": 1}
