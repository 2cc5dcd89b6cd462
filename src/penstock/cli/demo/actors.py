"""The processes of the demo, each of which reports on stdout in JSON lines.

An actor ends when its stdin is closed, so none outlives the demo, however that ends. Where the log is, and
with it the shop, it finds in its surroundings: PENSTOCK_HOME and the folder that it is started in.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable

from penstock.log.pandas_free import hide_pandas


def main() -> None:
    role, name = sys.argv[1:3]
    stopping = threading.Event()
    threading.Thread(target=_watch_stdin, args=(stopping,), daemon=True).start()
    _play_of(role)(name, stopping)


def _play_of(role: str) -> Callable[[str, threading.Event], None]:
    if role == "queries":
        from penstock.cli.demo import queries

        return queries.run
    if role == "page":
        from penstock.cli.demo import page

        return page.run
    hide_pandas()
    from penstock.cli.demo import customers, visitors

    return {"producer": visitors.produce, "member": visitors.consume, "customers": customers.run}[role]


def _watch_stdin(stopping: threading.Event) -> None:
    sys.stdin.read()
    stopping.set()


def say(**facts: object) -> None:
    """To the demo, which may be gone: then this raises, and ends the actor."""
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    # As itself, not as a second copy: what `say` is told must come from one module.
    from penstock.cli.demo.actors import main as play

    play()
