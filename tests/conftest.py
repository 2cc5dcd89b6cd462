"""What every test may ask for: a folder for a log, an open log, a throwaway server."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
if str(ROOT) not in sys.path:  # so that tests can share modules as tests.<name>
    sys.path.insert(0, str(ROOT))

from tests.servers import Postgres, Unavailable, start_postgres  # noqa: E402

import penstock as ps  # noqa: E402


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where a log may be made; nothing is there yet."""
    return tmp_path / "home"


@pytest.fixture
def log(home: Path) -> Iterator[ps.Log]:
    with ps.open_log(home) as opened:
        yield opened


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL of its own for this run."""
    # Not under pytest's own folder: only root may enter that, and a socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        try:
            server = start_postgres(Path(folder))
        except Unavailable as reason:
            pytest.skip(str(reason))
        try:
            yield server
        finally:
            server.stop()
