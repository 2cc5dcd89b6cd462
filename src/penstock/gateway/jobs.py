"""Work that takes minutes, begun by one request and asked after by others: `penstock verify`.

It runs in a process of its own, since it starts Spark: the gateway answers on meanwhile, and a job that is
given up leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from penstock.errors import NotSupported
from penstock.gateway.refusals import BadRequest, Busy

State = Literal["running", "done", "failed"]
_KEPT = 100
_ANSWER_BYTES_MAX = 16 << 20
_TIMEOUT_S = 3_600.0


@dataclass(frozen=True, slots=True)
class Job:
    """`result` is what `penstock verify --json` printed, once it is done."""

    id: str
    kind: Literal["verify"]
    views: tuple[str, ...]
    state: State
    began_us: int
    ended_us: int | None = None
    result: dict[str, Any] | None = None
    error: str | None = None


class UnknownJob(BadRequest):
    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(404, f'there is no job "{id}".', hint="jobs are forgotten when the server ends")


class Jobs:
    """One at a time. Used on the event loop alone. `source`: the app on a command line, None without one."""

    def __init__(self, source: str | None, environment: Mapping[str, str], *, now_us: Any) -> None:
        self._source, self._environment, self._now_us = source, environment, now_us
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._task: asyncio.Task[None] | None = None

    def verify(self, view: str | None) -> Job:
        """Begin. Raises Busy while another one runs."""
        if self._source is None:
            raise NotSupported("there is no app to verify.", hint="serve one: penstock serve APP")
        if self._task is not None and not self._task.done():
            raise Busy("a verification runs already", retry_after_s=5)
        job = Job(secrets.token_hex(8), "verify", (view,) if view else (), "running", self._now_us())
        self._jobs[job.id] = job
        while len(self._jobs) > _KEPT:
            self._jobs.popitem(last=False)
        command = [sys.executable, "-m", "penstock", "verify", self._source, *job.views, "--json"]
        self._task = asyncio.create_task(self._run(job, command))
        return job

    def find(self, id: str) -> Job:
        if id not in self._jobs:
            raise UnknownJob(id)
        return self._jobs[id]

    def all(self) -> tuple[Job, ...]:
        """The newest first."""
        return tuple(reversed(self._jobs.values()))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self, job: Job, command: list[str]) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE, env=self._environment, start_new_session=True,
                limit=_ANSWER_BYTES_MAX,
            )  # fmt: skip
        except OSError as error:  # no more processes, or files
            told = f"it could not be started ({error.strerror or error})"
            self._jobs[job.id] = replace(job, state="failed", ended_us=self._now_us(), error=told)
            return
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                printed, complaints = await process.communicate()
            self._jobs[job.id] = _ended(job, printed, complaints, self._now_us())
        except TimeoutError:
            self._jobs[job.id] = replace(
                job, state="failed", ended_us=self._now_us(), error="it took too long"
            )
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):  # the whole group: Spark's Java is a child of it
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


def _ended(job: Job, printed: bytes, complaints: bytes, now_us: int) -> Job:
    """Exit code 1 says that something is not equal, which is an answer."""
    with suppress(ValueError):
        return replace(job, state="done", ended_us=now_us, result=json.loads(printed))
    lines = complaints.decode(errors="replace").splitlines()
    return replace(job, state="failed", ended_us=now_us, error=_message(lines))


def _message(lines: list[str]) -> str:
    for line in reversed(lines):
        with suppress(ValueError, KeyError, TypeError):
            return str(json.loads(line)["error"]["message"])
    return "; ".join(lines[-3:])[:1_000] or "it ended without an answer"
