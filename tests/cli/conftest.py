"""A command line with a home of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.command import Command


@pytest.fixture
def cli(home: Path) -> Command:
    return Command(home)
