"""The app's run, in a process of its own beside the server.

Spark and the definitions' own code never share a process with what answers requests. The run tells how it
fares through its home (`penstock.app.published`), as any run does. One that ends is started again, after
growing pauses. Its stdin is a pipe that ends with this process, however that ends, and the run with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping

_PAUSE_S, _PAUSE_S_MAX = 1.0, 30.0
_LIVED_S = 60.0  # a run that lived so long begins with the shortest pause again
_STOP_S = 30.0


class Running:
    """A context manager: the run begins with it, and nothing of it is left when the block ends."""

    def __init__(self, source: str, environment: Mapping[str, str]) -> None:
        self._command = [sys.executable, "-m", "penstock", "run", source, "--until-eof", "--json"]
        self._environment = environment
        self._ending = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, name="gateway-run", daemon=True)

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.set()
        self._thread.join()

    def _keep(self) -> None:
        pause_s = _PAUSE_S
        while not self._ending.is_set():
            began = time.monotonic()
            self._run()
            pause_s = _PAUSE_S if time.monotonic() - began > _LIVED_S else min(pause_s * 2, _PAUSE_S_MAX)
            self._ending.wait(pause_s)

    def _run(self) -> None:
        # A group of its own: Ctrl-C is for the server, which then asks the run to stop between batches.
        process = subprocess.Popen(
            self._command, env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            while process.poll() is None and not self._ending.wait(0.2):
                pass
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
