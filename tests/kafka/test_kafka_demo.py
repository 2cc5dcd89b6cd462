"""The demo on a broker of its own: the same promises, and nothing left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from penstock.kafka.cluster import State


def test_the_demo_holds_on_a_real_kafka(kafka: State, home: Path) -> None:
    """`kafka`: where that cannot be had, neither can this."""
    asked = f"--home {home} demo --kafka --log-only --for 3 --json"
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *asked.split()],
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["holds"] is True
    assert told["stored"]["acknowledged"] == told["stored"]["in_log"] > 0
    assert told["taken_over_s"] is not None
    assert not home.exists()
