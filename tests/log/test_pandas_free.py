"""Processes of ours that do without pandas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import sys
from penstock.log.pandas_free import hide_pandas

hide_pandas()
import penstock as ps

with ps.open_log(sys.argv[1]) as log:
    topic = log.create_topic("clicks", "user STRING, at TIMESTAMP", key="user")
    topic.append([{"user": "ann", "at": None}, {"user": None, "at": None}])
    assert [row["user"] for row in topic.rows()] == ["ann", None]
    assert [event["user"] for event in topic.consume(group="g", follow=False)] == ["ann", None]
assert "pandas" not in sys.modules
try:
    import pandas
except ModuleNotFoundError:
    print("hidden")
"""


def test_a_log_is_written_and_read_without_loading_pandas(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path / "home")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout == "hidden\n", done.stderr
