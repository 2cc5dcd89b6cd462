"""A receiver that works on some messages and is killed: `receiving.py PORT WORK`."""

from __future__ import annotations

import os
import signal
import sys

import penstock as ps


def main(port: str, work: str) -> None:
    receiver = ps.Receiver(int(port))
    print(f"listening {receiver.port}", flush=True)
    for _ in range(int(work)):
        message = receiver.receive()
        assert message is not None
        print(f"worked on {message.body.decode()}", flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
