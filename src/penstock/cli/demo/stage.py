"""The demo's processes as the parent sees them: started, listened to, killed, ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from penstock.errors import PenstockError

_RECENT_S = 3.0


class ActorFailed(PenstockError):
    """A process of the demo ended although nobody asked it to."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the demo is: a folder for everything, and the log, which may be elsewhere.

    `scratch`: for what its processes put aside; a Spark that is killed leaves it. Not in `folder`, whose path
    may be too long for sockets.
    """

    folder: Path
    address: str
    scratch: Path

    @property
    def home(self) -> Path:
        """Of an app that is told nothing but these surroundings."""
        from penstock.log.log import HOME
        from penstock.opening import is_kafka

        return self.folder / HOME if is_kafka(self.address) else self.folder

    def surroundings(self) -> dict[str, str]:
        scratch = str(self.scratch)
        java = f'{os.environ.get("JAVA_TOOL_OPTIONS", "")} "-Djava.io.tmpdir={scratch}"'.strip()
        aside = {"TMPDIR": scratch, "SPARK_LOCAL_DIRS": scratch, "JAVA_TOOL_OPTIONS": java}
        # One thread for numbers: a dozen processes share a few cores.
        return {**os.environ, **aside, "PENSTOCK_HOME": self.address, "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Parts:
    """What is part of it. `port`: of the page."""

    spark: bool
    page: bool
    port: int = 0


class Actor:
    """One process and what it has reported. Its reader thread writes, the demo reads."""

    def __init__(self, role: str, name: str, place: Place, *, title: str) -> None:
        self.role, self.name, self.title = role, name, title
        self.ready = False
        self.killed = False
        self._stopping = False
        self.told: dict[str, Any] = {}  # the newest of each kind of thing it says
        self.acknowledged = 0  # of one that appends
        self.owned: tuple[int, ...] = ()  # of a member, as of its last report
        self.delivered = 0
        self.ranges: list[tuple[int, int, int]] = []
        self.latencies: Counter[int] = Counter()
        self.verified: dict[str, dict[str, Any]] = {}  # of the Spark job
        self._recent: deque[tuple[float, int, Counter[int]]] = deque()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # `close` closes it
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli.demo.actors", role, name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            cwd=place.folder, env=place.surroundings(),
            start_new_session=True,  # Ctrl-C is for the demo, which ends its actors in order
        )  # fmt: skip
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):  # the last line of a killed process may be cut
                self._heard(json.loads(line))

    def _heard(self, said: dict[str, Any]) -> None:
        self.ready = self.ready or bool(said.get("ready"))
        self.verified |= said.get("verified", {})
        self.told |= said
        count, latencies = 0, Counter[int]()
        if "acknowledged" in said:
            count = said["acknowledged"] - self.acknowledged
            self.acknowledged = said["acknowledged"]
        if "ranges" in said:
            self.ranges.extend((part, first, end) for part, first, end in said["ranges"])
            count = sum(end - first for _, first, end in said["ranges"])
            latencies = Counter({int(bucket): number for bucket, number in said["latencies"].items()})
            self.delivered += count
            self.latencies += latencies
        if "owned" in said:
            self.owned = tuple(said["owned"])
            return
        now = time.monotonic()
        self._recent.append((now, count, latencies))
        while self._recent[0][0] < now - _RECENT_S:
            self._recent.popleft()

    def per_second(self) -> float:
        recent = [(at, count) for at, count, _ in list(self._recent) if at > time.monotonic() - _RECENT_S]
        if len(recent) < 2:
            return 0.0
        return sum(count for _, count in recent[1:]) / max(recent[-1][0] - recent[0][0], 0.1)

    def recent_latencies(self) -> Counter[int]:
        found = Counter[int]()
        for _, _, latencies in list(self._recent):
            found += latencies
        return found

    # ---- ending ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises ActorFailed if it is gone without having been asked to."""
        code = self._process.poll()
        if code is not None and not (self.killed or self._stopping):
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip().splitlines()
            raise ActorFailed(f"{self.title} ended with code {code}: {said[-1] if said else 'no message'}.")

    def kill(self) -> None:
        """As when the machine's out-of-memory killer comes: no last words."""
        self.killed = True
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # and what it has started
        self._process.wait()
        self._reader.join(5)

    def stop(self) -> None:
        """Ask it to end; `wait_ended` waits for it."""
        self._stopping = True
        if self._process.stdin and not self._process.stdin.closed:
            self._process.stdin.close()

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait_ended(self, timeout_s: float) -> bool:
        """True when it ended in order."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        self._reader.join(5)
        return code == 0

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe:
                pipe.close()


def wait_until(condition: Callable[[], bool], *, timeout_s: float, pause_s: float = 0.02) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
    return True
