"""The pytest fixture `flow`, known to pytest when Penstock is installed. Imports nothing until it is used."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.testing.flow import Run

Flow = Callable[..., AbstractContextManager["Run"]]


@pytest.fixture
def flow(tmp_path: Path) -> Flow:
    """`with flow(app) as run:` runs an app in virtual time, in a log of the test's own."""
    from penstock.testing.flow import running

    homes = itertools.count()

    def start(app: App, **options: Any) -> AbstractContextManager[Run]:
        return running(app, home=tmp_path / f"penstock-{next(homes)}", **options)

    return start
