"""A follower that kills itself with SIGKILL: `dying_archive.py FOLDER HOME STEP COUNT`.

It dies at the COUNT-th time that an apply reaches STEP.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import penstock as ps
from penstock.follow import Follower, spec_of
from penstock.follow.parquet import ParquetSink


def main(folder: str, home: str, step: str, count: str) -> None:
    left = int(count)

    def watch(reached: str) -> None:
        nonlocal left
        left -= reached == step
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    with ps.open_log(Path(home)) as log:
        topic = log.topic("orders")
        spec = spec_of(topic.schema.arrow, (), name="orders")
        sink = ParquetSink(Path(folder), watch=watch)
        Follower(topic, sink, spec, kind="stream", chunk_records=4).step(timeout_s=0)


if __name__ == "__main__":
    main(*sys.argv[1:])
