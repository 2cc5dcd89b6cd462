"""A bridge that kills itself with SIGKILL: `dying_bridge.py HOME DIRECTION STEP COUNT`.

It dies at the COUNT-th time that it reaches STEP; with enough left to move, it always does.
"""

from __future__ import annotations

import os
import signal
import sys

import penstock as ps

BATCH = 4


def main(home: str, direction: str, step: str, count: str) -> None:
    left = int(count)

    def watch(reached: str) -> None:
        nonlocal left
        left -= reached == step
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    with ps.open_log(home) as log, ps.open_queues(home) as queues:
        queue, topic = queues.open_queue("work"), log.topic("work")
        ends = (queue, topic) if direction == "into the log" else (topic, queue)
        with ps.bridge(*ends, batch=BATCH, watch=watch) as bridge:
            bridge.run(once=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
