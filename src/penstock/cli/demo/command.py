"""`penstock demo`: a shop on a page, and its promises checked at the end."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import failure, output, progress
from penstock.cli.demo.stage import Parts, Place
from penstock.cli.session import AsJson, Home, Session
from penstock.errors import BadInput

if TYPE_CHECKING:
    from penstock.cli.demo.play import Play
    from penstock.cli.demo.proof import Proof

SHOP = "penstock.cli.demo.shop:app"
PORT = 8787
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_REFRESH_S = 0.25
_LINE_S = 2.0
_GRACE_S = 15.0
_WHOLE_S = 600.0  # how long a slow machine may take until every query has shown something
_KILL_AT_S = 20.0  # when nobody said how long it runs


def demo(
    ctx: typer.Context,
    seconds: Annotated[
        float | None,
        typer.Option("--for", metavar="SECONDS", min=1, help="Stop by itself; else with Ctrl-C."),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65535, help="Of the page. 0: any free one.")
    ] = PORT,
    log_only: Annotated[bool, typer.Option("--log-only", help="Without Spark and without the page.")] = False,
    kafka: Annotated[bool, typer.Option("--kafka", help="On a real Kafka, started for this.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep what was stored, to look at it.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """See it work: a shop with all that streams are for, on a page; then proof that nothing was lost."""
    session = Session.of(ctx, home, as_json)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)  # so that nothing is left behind when the terminal is closed
    if kafka and keep:
        raise BadInput("--kafka ends its broker with the demo.", hint="leave --keep out")
    spark = not log_only and _has(session, "pyspark", "Spark job", "spark")
    page = not log_only and _has(session, "fastapi", "page", "gateway")
    with (
        _stage(session.folder if session.home else None, keep=keep) as folder,
        _log_of(session, folder, kafka=kafka) as address,
        _scratch() as scratch,
    ):
        parts = Parts(spark=spark, page=page, port=_free(port))
        holds = _perform(session, Place(folder, address, scratch), parts, seconds)
    if not holds:
        raise typer.Exit(failure.NO)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Whoever presses Ctrl-C again and again still leaves nothing behind."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def _stage(home: Path | None, *, keep: bool) -> Iterator[Path]:
    """A home for the demo alone: a temporary one, or the one asked for. It goes with the demo."""
    if home is not None and home.exists() and any(home.iterdir()):
        raise BadInput(
            f"{home} is in use, and the demo wants a home of its own.",
            hint="name a folder that is not there yet",
        )
    folder = home or Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder.absolute()
    finally:
        if keep:
            output.note(f"kept in {folder}; look around with: penstock --home {folder} serve {SHOP}")
        else:
            with _undisturbed():
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="penstock-"))
    try:
        yield folder
    finally:
        with _undisturbed():
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


def _has(session: Session, module: str, what: str, extra: str) -> bool:
    from importlib.util import find_spec

    if find_spec(module) is not None:
        return True
    if not session.json:
        output.note(f'without the {what}: pip install "penstock[{extra}]" brings it')
    return False


def _free(port: int) -> int:
    """That port; where somebody has it already, any."""
    import socket

    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return 0
    return port


def _perform(session: Session, place: Place, parts: Parts, seconds: float | None) -> bool:
    from penstock.log.pandas_free import hide_pandas

    hide_pandas()  # before anything is imported that would load it
    from penstock.cli.demo import panels
    from penstock.cli.demo.play import Play
    from penstock.opening import open_log

    with open_log(place.address) as log:
        play = Play(log, place, parts, kill_at_s=seconds / 2 if seconds else _KILL_AT_S)
        try:
            interrupted = not _run(session, play, seconds)
            proof = _prove(session, play, interrupted=interrupted)
            if session.json:
                output.emit(panels.as_object(play, proof))
            else:
                output.show(*panels.summary(play, proof))
        finally:
            with _undisturbed():
                play.close()
    return proof.holds


def _run(session: Session, play: Play, seconds: float | None) -> bool:
    """Until the time is up (True), or somebody says stop."""
    try:
        with progress.watched("opening the shop", total=None, hidden=session.json):
            play.start(show=lambda address: _tell_address(session, address))
        show = _quietly if session.json else _live if sys.stdout.isatty() else _plainly
        show(play, seconds)
        return True
    except KeyboardInterrupt:
        if not session.json:
            output.note(
                "stopping: letting everything be read, then checking; Ctrl-C once more leaves that out"
            )
        return False


def _tell_address(session: Session, address: str) -> None:
    if session.json:
        output.note(f"the page: {address}")
    else:
        output.show(f"[bold]The page: [cyan]{output.escape(address)}[/][/]")
        sys.stdout.flush()


def _prove(session: Session, play: Play, *, interrupted: bool) -> Proof:
    definitions = play.definitions if play.queries else ()
    told: set[str] = set()
    with progress.watched("proving", total=len(definitions) or None, hidden=session.json) as bar:

        def show(found: Mapping[str, Mapping[str, Any]]) -> None:
            for name in [name for name in list(found) if name not in told]:
                told.add(name)
                bar.update(done=len(told), told=f"{name}: {found[name]['verdict']}")
                if not session.json and not sys.stdout.isatty():
                    print(f"verified {name}: {found[name]['verdict']}", flush=True)

        return play.finish(show, interrupted=interrupted)


def _over(play: Play, seconds: float | None) -> bool:
    """The time is up, and what a busy machine may delay was seen, or is not to be expected any more."""
    past = -1.0 if seconds is None else play.story.seconds() - seconds
    if past < 0:
        return False
    return (play.taken_over_s is not None or past > _GRACE_S) and (play.is_whole or past > _WHOLE_S)


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
            next_line = play.story.seconds() + _LINE_S
        time.sleep(_REFRESH_S)


def _quietly(play: Play, seconds: float | None) -> None:
    while not _over(play, seconds):
        play.tick()
        time.sleep(_REFRESH_S)
