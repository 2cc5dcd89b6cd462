"""`penstock kafka`: a real Kafka on this machine, for development."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import failure, output, progress
from penstock.cli.session import AsJson, Home, Session, Yes

if TYPE_CHECKING:
    from penstock.kafka.cluster import Cluster, State

app = typer.Typer(help="Run a real Kafka on this machine.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def up(
    ctx: typer.Context,
    brokers: Annotated[int, typer.Option("--brokers", metavar="N", help="How many.")] = 1,
    port: Annotated[
        int,
        typer.Option(
            "--port", metavar="PORT", min=0, max=65_535, help="Of the first; another one if it is taken."
        ),
    ] = 9092,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Start brokers, and wait until they answer.

    With three, each record is kept by all of them and acknowledged by two. They go on when this command has
    ended. Kafka's own jars are fetched the first time, about 50 MB.
    """
    session = Session.of(ctx, home, as_json)
    cluster = _cluster(session)
    with progress.watched("starting Kafka", total=None, hidden=session.json):
        state = cluster.up(brokers=brokers, port=port)
    _tell(session, cluster, state)
    if not session.json:
        output.note(f'use it with: ps.App("name", log="{state.url}"), or --home {state.url}')


@app.command()
def status(ctx: typer.Context, home: Home = None, as_json: AsJson = False) -> None:
    """Say where the brokers are and whether they run; exit code 1 if not all do."""
    session = Session.of(ctx, home, as_json)
    cluster = _cluster(session)
    state = cluster.state()
    _tell(session, cluster, state)
    if state is None or not all(cluster.runs(node) for node in state.nodes):
        raise typer.Exit(failure.NO)


@app.command()
def down(
    ctx: typer.Context,
    delete: Annotated[bool, typer.Option("--delete", help="Remove their records, too.")] = False,
    yes: Yes = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Stop the brokers. Their records stay."""
    session = Session.of(ctx, home, as_json)
    cluster = _cluster(session)
    if delete and cluster.state() is not None:
        session.confirm(
            f"Remove everything under {cluster.folder}?",
            yes=yes,
            refusal=f"{cluster.folder} was not removed.",
        )
    with progress.watched("stopping Kafka", total=None, hidden=session.json):
        there = cluster.down(delete=delete)
    if session.json:
        output.emit({"stopped": there, "deleted": there and delete})
    elif there:
        output.show("Kafka has stopped" + (", and its records are gone" if delete else ""))
    else:
        output.note(_NONE)


_NONE = "there is no Kafka here; start one with: penstock kafka up"


def _cluster(session: Session) -> Cluster:
    from penstock.kafka.cluster import Cluster

    return Cluster(session.folder / "kafka")


def _tell(session: Session, cluster: Cluster, state: State | None) -> None:
    nodes = state.nodes if state else ()
    brokers: list[dict[str, Any]] = [
        {"broker": node.number, "port": node.port, "pid": node.pid, "runs": cluster.runs(node)}
        for node in nodes
    ]
    if session.json:
        output.emit({"url": state.url if state else None, "folder": str(cluster.folder), "brokers": brokers})
    elif state is None:
        output.note(_NONE)
    else:
        rows = [
            [
                str(one["broker"]),
                str(one["port"]),
                str(one["pid"] or ""),
                "runs" if one["runs"] else "stopped",
            ]
            for one in brokers
        ]
        output.show(output.table(("broker#", "port#", "pid#", "state"), rows), "", state.url)
