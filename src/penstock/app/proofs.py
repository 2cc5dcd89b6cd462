"""What `verify` said last of each definition, where another process can find it.

One small file each, below `<home>/proofs/<app>`. A reader never sees half of one.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.app.verify import Verdict, Verified


@dataclass(frozen=True, slots=True)
class Proof:
    """A verdict, and the batch that it is about."""

    name: str
    verdict: Verdict
    reason: str
    rows: int
    batch: int | None
    left_out: int
    differing: int
    at_us: int


def record(app: App, found: Verified, *, now_us: int) -> Proof:
    """Keep what came out, in place of what was said before."""
    proof = Proof(
        found.name, found.verdict, found.reason, found.rows, found.batch, found.left_out, found.differing,
        now_us,
    )  # fmt: skip
    path = _path(app, found.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    fresh.write_text(json.dumps(asdict(proof)))
    fresh.replace(path)
    return proof


def last(app: App, name: str) -> Proof | None:
    """None where it was never verified."""
    try:
        return Proof(**json.loads(_path(app, name).read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):  # of another version of this program
        return None


def _path(app: App, name: str) -> Path:
    return app.home / "proofs" / app.name / f"{name}.json"
