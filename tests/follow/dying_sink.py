"""A follower that kills itself with SIGKILL: `dying_sink.py KIND ADDRESS HOME STEP COUNT`.

It dies at the COUNT-th time that an apply reaches STEP.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.follow.sinks import open_sink

import penstock as ps
from penstock.follow import Follower, spec_of


def main(kind: str, address: str, home: str, step: str, count: str) -> None:
    left = int(count)

    def watch(reached: str) -> None:
        nonlocal left
        left -= reached == step
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    with ps.open_log(Path(home)) as log:
        topic = log.topic("counts")
        spec = spec_of(topic.schema.arrow, ("k",), name="counts")
        sink = open_sink(kind, address, watch=watch)
        Follower(topic, sink, spec, chunk_records=4).step(timeout_s=0)


if __name__ == "__main__":
    main(*sys.argv[1:])
