"""`penstock run`: keep every view and stream of an app up to date."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import engine, failure
from penstock.cli.engine import AppFile
from penstock.cli.session import AsJson, Home, Session
from penstock.clock import duration_ms
from penstock.errors import BadInput

if TYPE_CHECKING:
    from penstock.app.runner import Runner
    from penstock.cli.watching import Screen

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run(
    ctx: typer.Context,
    app: AppFile,
    once: Annotated[
        bool, typer.Option("--once", help="Stop when everything that is there now is delivered.")
    ] = False,
    every: Annotated[
        str | None,
        typer.Option(
            "--every", metavar="TIME", help='A batch this often, "1 second".', show_default="at once"
        ),
    ] = None,
    rows_max: Annotated[
        int | None,
        typer.Option(
            "--rows-max",
            metavar="N",
            min=1,
            help="At most about so many records in a batch.",
            show_default="1,000,000, or 4,000,000 where they are added up before Spark",
        ),
    ] = None,
    until_eof: Annotated[
        bool, typer.Option("--until-eof", help="Stop also when stdin ends, as it does with who started this.")
    ] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Keep the views and streams of an app up to date.

    Definitions are checked before anything starts. It runs until Ctrl-C, which stops between batches; nothing
    is lost, and the next run goes on from there. With --json: one status object per line, then a summary.
    """
    session = Session.of(ctx, home, as_json)
    interval = f"{duration_ms(every)} milliseconds" if every is not None else None
    with _Stop().watching() as stop:
        if until_eof:
            threading.Thread(target=_ask_at_eof, name="stdin", daemon=True).start()
        try:
            with engine.analysed(session, app, to_run=True) as graph:
                _check(
                    graph.app.name,
                    graph.analysed or graph.app.followed or graph.app.captures or graph.app.sourced,
                )
                from penstock.app.runner import Runner
                from penstock.cli.watching import Screen

                runner = Runner(graph.app, graph, every=interval, rows_max=rows_max)
                stop.takes_down(runner)
                _run(runner, Screen(runner, as_json=session.json), stop, once=once)
        except KeyboardInterrupt:
            if stop.asked:  # the second one
                raise
            stop.asked = True  # nothing was started yet
        if once and stop.asked:
            raise typer.Exit(failure.INTERRUPTED)


def _check(name: str, definitions: Any) -> None:
    if not definitions:
        raise BadInput(
            f'app "{name}" has no views and no streams: there is nothing to run.',
            hint='write a function that returns a DataFrame under @app.view(key="...")',
        )


def _ask_at_eof() -> None:
    """As SIGTERM does. Whoever held the other end may have been killed, and can ask no more."""
    while os.read(sys.stdin.fileno(), 4_096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _run(runner: Runner, screen: Screen, stop: _Stop, *, once: bool) -> None:
    """Raises QueryFailed when a query was given up, after the others were stopped."""
    outcome = "failed"
    try:
        with screen, stop.excuses_spark():
            if once:
                with screen.in_the_background():
                    runner.once()
                outcome = "done"
            else:
                runner.run(show=lambda _: screen.show())
        if stop.asked:
            outcome = "interrupted"
    finally:
        # Also what a failed start or a failed stage has left running; harmless where all has ended.
        with stop.excuses_spark():
            runner.stop()
        screen.summarise(outcome)


class _Stop:
    """Ctrl-C and SIGTERM ask to stop; a second one insists."""

    def __init__(self) -> None:
        self.asked = False
        self._runner: Runner | None = None

    @contextmanager
    def watching(self) -> Iterator[_Stop]:
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        self._install()
        try:
            yield self
        finally:
            for number, handler in before.items():
                with suppress(ValueError):  # not in the main thread
                    signal.signal(number, handler)

    def takes_down(self, runner: Runner) -> None:
        """From now on a signal asks the runner. Spark has put a handler of its own in place of ours."""
        self._runner = runner
        self._install()

    @contextmanager
    def excuses_spark(self) -> Iterator[None]:
        """A signal to the whole group ends Spark's Java as well: no failure, the next run goes on."""
        from penstock.flow.failure import is_sparks

        try:
            yield
        except Exception as error:
            if not (self.asked and is_sparks(error)):
                raise

    def _install(self) -> None:
        for number in _SIGNALS:
            with suppress(ValueError):
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        if self._runner is None or self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._runner.stopping.set()
