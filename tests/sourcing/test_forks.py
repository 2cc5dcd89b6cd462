"""A process that forks while its store is open: what is recorded on either side is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT
from tests.sourcing.carts import Place

_FORKS = """
import os, sys, threading
from pathlib import Path
from tests.sourcing.carts import Place

home, name, url = sys.argv[1:]
place = Place("", None if url == "-" else url, name)
closed, recorded = os.pipe(), os.pipe()
with place.carts(Path(home)) as carts:
    waker = carts.book.store.waker()
    waker.wait(0.1)
    cart = carts["7"]
    cart.add("parent")
    going_on = threading.Event()

    def add_meanwhile():
        while not going_on.wait(0.001):
            carts["8"].add("parent")

    other = threading.Thread(target=add_meanwhile)
    other.start()
    child = os.fork()
    if child == 0:
        cart.add("child")
        os.write(recorded[1], b"1")
        os.read(closed[0], 1)
        cart.add("child")
        sys.exit()  # with what is left to do at the end of a program
    os.read(recorded[0], 1)
    cart.add("parent")  # decided again, with what the child has done
    going_on.set()
    other.join()
    meanwhile = carts["8"].version
    waker.close()
os.write(closed[1], b"1")  # it was the last connection of this process
status = os.waitpid(child, 0)[1]
with place.carts(Path(home)) as carts:
    print(status, dict(carts["7"].items), carts["8"].version == meanwhile)
    carts["7"].add("parent")
"""


def test_what_parent_and_child_record_is_there_whoever_closes_first(place: Place, home: Path) -> None:
    """SQLite forbids a connection on both sides, and PostgreSQL would answer both over one."""
    done = subprocess.run(
        [sys.executable, "-c", _FORKS, str(home), place.name, place.url or "-"],
        capture_output=True, text=True, timeout=120, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.stdout == "0 {'parent': 2, 'child': 2} True\n", done.stderr
