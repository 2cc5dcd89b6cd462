"""An app without definitions of its own to run, a gateway for it, and a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from tests.gateway.browsing import a_browser
from tests.gateway.served import Served, serving

import penstock as ps


def shop(home: Path) -> ps.App:
    made = ps.App("shop", home=home)
    made.topic("page_views", "user_id BIGINT, page STRING, at TIMESTAMP", key="user_id", partitions=2)
    made.topic("notes", "text STRING")
    made.table("users", "id BIGINT, name STRING, city STRING", key="id")
    return made


@pytest.fixture
def app(home: Path) -> Iterator[ps.App]:
    made = shop(home)
    yield made
    made.close()


@pytest.fixture
def served(app: ps.App) -> Iterator[Served]:
    with serving(app) as found:
        yield found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One for all tests of a file, which leave each other's records alone."""
    made = shop(tmp_path_factory.mktemp("gateway"))
    with serving(made) as found:
        yield found
    made.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as opened:
        yield opened
