"""The last failure of each definition, where another process can find it.

One small file each, below `<home>/failures/<app>`: written when a query fails, removed once it has stored a
batch again or has ended well. A reader never sees half of one.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.app.app import App


@dataclass(frozen=True, slots=True)
class Failure:
    """What was wrong, when, and what came of it."""

    query: str
    error: str
    at_us: int
    failures: int  # in a row
    given_up: bool
    stored: int  # number of the last batch it had stored, -1 if none


def record(app: App, names: list[str], failure: Failure) -> None:
    """For each definition of a query that failed."""
    for name in names:
        path = _path(app, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
        fresh.write_text(json.dumps(asdict(failure)))
        fresh.replace(path)


def last(app: App, name: str) -> Failure | None:
    """The failure that a definition has not got over."""
    try:
        return Failure(**json.loads(_path(app, name).read_text()))
    except FileNotFoundError:
        return None


def settle(app: App, names: list[str], *, stored: int | None = None) -> None:
    """Forget failures; with `stored`, only those from before that batch."""
    for name in names:
        known = last(app, name)
        if known is not None and (stored is None or stored > known.stored):
            _path(app, name).unlink(missing_ok=True)


def _path(app: App, name: str) -> Path:
    return app.home / "failures" / app.name / f"{name}.json"
