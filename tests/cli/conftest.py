"""A command line with a home of its own, and a shop that has run once."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.cli import shop
from tests.cli.command import Command


@pytest.fixture
def cli(home: Path) -> Command:
    return Command(home)


@dataclass(frozen=True)
class Shop:
    """An app's file, and the command line at its home."""

    file: Path
    cli: Command

    def copy(self, to: Path) -> Shop:
        """Its own to change."""
        shutil.copytree(self.cli.home, to / "home")
        return Shop(self.file, Command(to / "home"))


@pytest.fixture(scope="session")
def ran(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Shop:
    """After `penstock run --once`. Only to be looked at: take a copy to change it."""
    folder = tmp_path_factory.mktemp("shop")
    found = Shop(shop.write(folder), Command(folder / "home"))
    shop.fill(found.cli.home)
    result = found.cli("run", found.file, "--once", "--json")
    assert result.exit_code == 0, result.output
    return found


@pytest.fixture
def changed(ran: Shop, tmp_path: Path) -> Shop:
    return ran.copy(tmp_path)
