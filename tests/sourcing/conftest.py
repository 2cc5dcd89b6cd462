"""Every test of a store runs on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sourcing.carts import Cart, Place

from penstock.app.aggregates import AppAggregates


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "sqlite":
        return Place("sqlite")
    server = request.getfixturevalue("postgres")
    return Place("postgresql", f"postgresql://postgres@127.0.0.1:{server.port}/postgres")


@pytest.fixture
def carts(place: Place, home: Path) -> Iterator[AppAggregates[Cart]]:
    with place.carts(home, snapshot_every=10) as found:
        yield found
