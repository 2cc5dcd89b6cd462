"""`penstock demo`: the whole log at work before one's eyes, and its promises checked at the end."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import failure, output
from penstock.cli.demo.stage import Place
from penstock.cli.session import AsJson, Home, Session
from penstock.errors import BadInput

if TYPE_CHECKING:
    from penstock.cli.demo.play import Play

_REFRESH_S = 0.25
_GRACE_S = 15.0
_KILL_AT_S = 10.0  # when nobody said how long it runs


def demo(
    ctx: typer.Context,
    seconds: Annotated[
        float | None,
        typer.Option("--for", metavar="SECONDS", min=1, help="Stop by itself; else with Ctrl-C."),
    ] = None,
    log_only: Annotated[bool, typer.Option("--log-only", help="Without the Spark job.")] = False,
    kafka: Annotated[bool, typer.Option("--kafka", help="On a real Kafka, started for this.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep what was stored, to look at it.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """See it work: producers, groups, a view on Spark, a killed member; then proof that nothing was lost."""
    session = Session.of(ctx, home, as_json)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)  # so that nothing is left behind when the terminal is closed
    if kafka and keep:
        raise BadInput("--kafka ends its broker with the demo.", hint="leave --keep out")
    spark = not log_only and _has_spark(session)
    with (
        _stage(session.folder if session.home else None, keep=keep) as folder,
        _log_of(session, folder, kafka=kafka) as address,
    ):
        holds = _perform(session, Place(folder, address), seconds, keep=keep, spark=spark)
    if not holds:
        raise typer.Exit(failure.NO)


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def _stage(home: Path | None, *, keep: bool) -> Iterator[Path]:
    """A home for the demo: a temporary one, or the one asked for. What was not there before goes again."""
    existed = home is not None and home.exists()
    folder = home or Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        yield folder
    finally:
        if keep:
            output.note(f"kept in {folder}; look around with: penstock --home {folder} topic list")
        elif not existed:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _log_of(session: Session, folder: Path, *, kafka: bool) -> Iterator[str]:
    """Where the log is: in the folder, or on a broker that runs as long as this."""
    if not kafka:
        yield str(folder)
        return
    from penstock.kafka.cluster import Cluster

    if not session.json:
        output.note("starting Kafka …")
    cluster = Cluster(folder / "kafka")
    try:
        yield cluster.up(port=0).url
    finally:
        cluster.down(delete=True)


def _has_spark(session: Session) -> bool:
    from importlib.util import find_spec

    if find_spec("pyspark") is not None:
        return True
    if not session.json:
        output.note('without the Spark job: pip install "penstock[spark]" brings it')
    return False


def _perform(session: Session, place: Place, seconds: float | None, *, keep: bool, spark: bool) -> bool:
    from penstock.cli.demo import panels
    from penstock.cli.demo.play import Play
    from penstock.opening import open_log

    with open_log(place.address) as log:
        play = Play(log, place, kill_at_s=seconds / 2 if seconds else _KILL_AT_S, spark=spark)
        try:
            _run(session, play, seconds)
            if spark and not session.json:
                output.note("stopped; the Spark job reads what is left and verifies its view …")
            proof = play.finish()
            if session.json:
                output.emit(panels.as_object(play, proof))
            else:
                output.show(*panels.summary(play, proof))
        finally:
            play.close()
            if not keep:
                play.clear()
    return proof.holds


def _run(session: Session, play: Play, seconds: float | None) -> None:
    """Until the time is up or somebody says stop."""
    try:
        if not session.json:
            output.note(f"starting {'Spark and ' if play.with_spark else ''}five processes …")
        play.start()
        show = _quietly if session.json else _live if sys.stdout.isatty() else _plainly
        show(play, seconds)
    except KeyboardInterrupt:
        if not session.json:
            output.note("stopping: letting everything be read, then checking …")


def _over(play: Play, seconds: float | None) -> bool:
    """The time is up, and the takeover, which a busy machine may delay, was seen or is not to be expected."""
    left = float("inf") if seconds is None else seconds - play.story.seconds()
    return left <= 0 and (play.taken_over_s is not None or left < -_GRACE_S)


def _live(play: Play, seconds: float | None) -> None:
    from rich.live import Live

    from penstock.cli.demo import panels

    with Live(console=output.console(), auto_refresh=False, vertical_overflow="visible") as live:
        while not _over(play, seconds):
            play.tick()
            live.update(panels.scene(play), refresh=True)
            time.sleep(_REFRESH_S)


def _plainly(play: Play, seconds: float | None) -> None:
    from penstock.cli.demo import panels

    told = 0
    next_line = 0.0
    while not _over(play, seconds):
        play.tick()
        for at, text in play.story.lines[told:]:
            print(f"{at:5.1f} s  {text}", flush=True)
        told = len(play.story.lines)
        if play.story.seconds() >= next_line:
            print(panels.line(play), flush=True)
            next_line += 1
        time.sleep(_REFRESH_S)


def _quietly(play: Play, seconds: float | None) -> None:
    while not _over(play, seconds):
        play.tick()
        time.sleep(_REFRESH_S)
