"""`penstock queue work`: a command for every message."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import output, words
from penstock.cli.interrupt import Interrupt
from penstock.cli.queue_place import Name, QueueHome, queues_of
from penstock.cli.session import AsJson, Session
from penstock.clock import duration_ms
from penstock.errors import BadOption

if TYPE_CHECKING:
    from penstock.queue.delivery import Delivery
    from penstock.queue.queue import Queue

_BAD_DATA = 65  # as sysexits.h has it
_REASON_CHARACTERS = 500


def work(
    ctx: typer.Context,
    name: Name,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND…", help="What to run; no shell.")],
    once: Annotated[bool, typer.Option("--once", help="Stop when nothing is waiting.")] = False,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="A command that takes longer is killed.")
    ] = "1 minute",
    delay: Annotated[
        str, typer.Option("--delay", metavar="TIME", help="After a failure: not again before this.")
    ] = "1 second",
    home: QueueHome = None,
    as_json: AsJson = False,
) -> None:
    """Run a command for every message, with the body on its stdin; several of these share the work.

    Exit code 0 acks, 65 (bad data) makes it a dead letter, anything else puts it back; the last line of the
    command's stderr is the reason. Ctrl-C ends after the message under way.
    """
    session = Session.of(ctx, home, as_json)
    limit_s = duration_ms(timeout) / 1_000
    if limit_s <= 0:
        raise BadOption(f"--timeout {timeout!r}.", hint="a command needs some time")
    if shutil.which(command[0]) is None:  # before a message is taken, and one of its attempts used
        raise BadOption(f"{command[0]} cannot be run: there is no such program.", hint="name a program")
    with queues_of(session) as queues:
        counts = _work(queues.open_queue(name), command, limit_s, delay, once=once)
    if session.json:
        output.emit({"queue": name, **counts})
    else:
        done, again, dead = (words.count(counts[key]) for key in ("done", "again", "rejected"))
        output.show(f"{done} done, {again} put back, {dead} rejected")


def _work(queue: Queue, command: list[str], limit_s: float, delay: str, *, once: bool) -> dict[str, int]:
    counts = {"done": 0, "again": 0, "rejected": 0}
    interrupt = Interrupt()
    with interrupt.watching(), queue.consume(prefetch=1, lease=limit_s + 30) as consumer:
        try:
            while True:
                delivery = consumer.get(timeout=0 if once else 1)
                if delivery is None and once:
                    break
                if delivery is not None:
                    with interrupt.held():
                        counts[_one(delivery, command, limit_s, delay)] += 1
        except KeyboardInterrupt:
            pass
    return counts


def _one(delivery: Delivery, command: list[str], limit_s: float, delay: str) -> str:
    """Run it, settle the message by its exit code, and say what became of it."""
    about = {
        "PENSTOCK_MESSAGE_ID": delivery.id.replace("\0", ""),  # which no environment can hold
        "PENSTOCK_MESSAGE_KEY": delivery.key.replace("\0", ""),
        "PENSTOCK_MESSAGE_ATTEMPT": str(delivery.attempts),
    }
    try:
        ran = _run(command, delivery.body, {**os.environ, **about}, limit_s)
    except subprocess.TimeoutExpired:
        delivery.nack(f"it took longer than {limit_s:g} s", delay=delay)
        return "again"
    except OSError as error:
        raise BadOption(f"{command[0]} cannot be run: {error.strerror}.", hint="name a program") from error
    if ran.returncode == 0:
        delivery.ack()
        return "done"
    reason = _reason(ran.returncode, ran.stderr)
    if ran.returncode == _BAD_DATA:
        delivery.reject(reason)
        return "rejected"
    delivery.nack(reason, delay=delay)
    return "again"


def _run(
    command: list[str], body: bytes, environment: dict[str, str], limit_s: float
) -> subprocess.CompletedProcess[bytes]:
    """As `subprocess.run`, but what the command has started is killed with it."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, start_new_session=True
    ) as process:
        try:
            _, said = process.communicate(body, timeout=limit_s)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
        return subprocess.CompletedProcess(command, process.returncode, stderr=said)


def _reason(code: int, said: bytes) -> str:
    lines = said.decode(errors="replace").strip().splitlines()
    return f"exit code {code}{': ' + lines[-1][:_REASON_CHARACTERS] if lines else ''}"
