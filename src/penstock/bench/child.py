"""Another process, and a line to talk to it."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

_ANSWER_S_MAX = 300.0


class Line:
    """One end of the line: JSON values, in order."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def say(self, value: Any) -> None:
        self._connection.send_bytes(json.dumps(value).encode())

    def hear(self, timeout_s: float = _ANSWER_S_MAX) -> Any:
        """What the other end said next. Raises EOFError when it is gone, TimeoutError when it is silent."""
        if not self._connection.poll(timeout_s):
            raise TimeoutError(f"the other process said nothing for {timeout_s:.0f} s")
        return json.loads(self._connection.recv_bytes())

    def heard(self, timeout_s: float) -> bool:
        """Whether the other end says something, or ends, within that time."""
        return self._connection.poll(timeout_s)

    def close(self) -> None:
        self._connection.close()


class Child(Line):
    """Runs `work(line, *args)` in a fresh interpreter; ended when the block is left."""

    def __init__(self, work: Callable[..., None], *args: Any) -> None:
        processes = multiprocessing.get_context("spawn")
        ours, theirs = processes.Pipe()
        super().__init__(ours)
        self._process = processes.Process(target=_work, args=(work, theirs, args), daemon=True)
        self._process.start()
        theirs.close()  # so that the end of the child is the end of the line

    @property
    def pid(self) -> int:
        assert self._process.pid is not None, "the process was started"
        return self._process.pid

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


def _work(work: Callable[..., None], connection: Connection, args: tuple[Any, ...]) -> None:
    os.dup2(2, 1)  # what a peer prints is no part of the report
    work(Line(connection), *args)
