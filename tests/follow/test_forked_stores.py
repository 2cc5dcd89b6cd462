"""A process that forks while it holds stores open: SQLite forbids a connection on both sides."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

_FORKS = """
import os, sys
from pathlib import Path
from penstock.follow.positions import Positions
from penstock.follow.sqlite import SQLiteStore
from tests.follow.test_stores import apply, plain, spec, upsert

home = Path(sys.argv[1])
store, positions = SQLiteStore(home / "views.db"), Positions(home / "sent.db")
store.prepare(spec(), "log-1")
apply(store, spec(), upsert(k="a", n=1, v=1))
positions.begin("t", "mail", "log-1")
rows = plain(store, spec())
child = os.fork()
if child == 0:
    files = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    open_here = [file for file in files if ".db" in file]
    is_same = plain(store, spec()) == rows and positions.progress("t", "mail", "log-1") is not None
    print(open_here, is_same, flush=True)
    sys.exit()
os.waitpid(child, 0)
apply(store, spec(), upsert(k="b", n=1, v=2), at=1)
print(len(plain(store, spec())))
"""


def test_a_child_inherits_no_connection_and_opens_its_own(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORKS, str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.stdout == "[] True\n2\n", done.stderr
