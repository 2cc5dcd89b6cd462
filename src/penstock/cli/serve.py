"""`penstock serve`: the HTTP API and the dashboard."""

from __future__ import annotations

import signal
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import engine, output, words
from penstock.cli.session import AsJson, Home, NoLog, Session
from penstock.errors import BadOption, NotSupported

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.gateway.running import Running

PORT = 8787


def serve(
    ctx: typer.Context,
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="[APP]", help="shop.py, shop.py:app or package.module:app; without it, the log alone."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Where to listen. Others need TLS and a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65535, help="0: any free one.")
    ] = PORT,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", metavar="FILE", help="TLS: the certificate, PEM.")
    ] = None,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="TLS: its key, PEM.")] = None,
    name: Annotated[
        list[str] | None, typer.Option("--name", metavar="NAME", help="A host name by which it is asked.")
    ] = None,
    alert: Annotated[
        list[str] | None,
        typer.Option(
            "--alert",
            metavar="URL",
            help="Tell when something needs a person: https://… or smtp://host?to=you@example.org.",
        ),
    ] = None,
    run: Annotated[bool, typer.Option("--run", help="Also run the app, in a process of its own.")] = False,
    body_max: Annotated[
        str, typer.Option("--body-max", metavar="SIZE", help="The largest body of an append.")
    ] = "16 MiB",
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Serve the HTTP API and the dashboard.

    On this machine alone, unless --host says otherwise: that needs --certificate, --key and a token
    (penstock token create). It runs until Ctrl-C. With --json: one line with the address when it is ready.
    """
    session = Session.of(ctx, home, as_json)
    with ExitStack() as stack:
        served = _app(session, app, stack)
        _check_extra()
        from penstock.gateway.gateway import Gateway, Settings
        from penstock.gateway.limits import Limits
        from penstock.gateway.serving import Address, Server

        names = (*(name or ()), host)
        limits = Limits(body_bytes=words.parse_size(body_max))
        settings = Settings(source=app, names=names, alerts=tuple(alert or ()), limits=limits)
        gateway = Gateway(served, settings)
        address = Address(host, port, certificate, key)
        server = Server(gateway, address, on_ready=lambda url: _tell(session, served.name, url))
        if run:
            stack.enter_context(_running(app, served))
        _until_interrupted(server.run)


def _check_extra() -> None:
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise NotSupported(
            "the gateway needs FastAPI and uvicorn, which are not installed.",
            hint="pip install 'penstock[gateway]'",
        ) from error


def _app(session: Session, text: str | None, stack: ExitStack) -> App:
    if text is not None:
        return stack.enter_context(engine.loaded(session, text)).app
    from penstock.app.app import App

    if not session.has_log():
        raise NoLog(session.folder)
    found = App("log", log=session.address) if session.on_kafka else App("log", home=session.folder)
    stack.callback(found.close)
    return found


def _running(source: str | None, served: App) -> Running:
    from penstock.gateway.running import Running
    from penstock.gateway.surroundings import surroundings

    if source is None:
        raise BadOption("there is no app to run.", hint="name one: penstock serve APP --run")
    return Running(source, surroundings(served))


def _tell(session: Session, name: str, url: str) -> None:
    import sys

    if session.json:
        output.emit({"app": name, "address": url})
    else:
        output.show(
            f"[green]serving[/] {output.escape(name)} at {output.escape(url)}  [dim]Ctrl-C ends it[/]"
        )
    sys.stdout.flush()


def _until_interrupted(run: object) -> None:
    """uvicorn raises the signal that ended it once more, when all is closed."""
    assert callable(run)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt):
            run()
    finally:
        signal.signal(signal.SIGTERM, before)
