"""`penstock copy`: a log in a folder, moved to a Kafka cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import output, progress, words
from penstock.cli.session import AsJson, NoLog, Session
from penstock.errors import BadInput


def copy(
    ctx: typer.Context,
    source: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the log.")],
    target: Annotated[str, typer.Argument(metavar="kafka://…", help="The cluster.")],
    as_json: AsJson = False,
) -> None:
    """Move a log to Kafka: topics, groups, and how far views and streams are.

    Keys keep their partitions, records their order and their append times. Nothing is taken from the folder.
    Stop everything that writes to it first; then run the app with log="kafka://…".
    """
    from penstock.opening import is_kafka, open_log

    session = Session.of(ctx, None, as_json)
    if not is_kafka(target):
        raise BadInput(f"{target} is no Kafka cluster.", hint="name one as kafka://host:port")
    if not (source / "log.json").exists():
        raise NoLog(source)
    with open_log(source) as here, open_log(target) as there:
        from penstock.app import moving  # after open_log, which says what is missing

        with progress.watched("copying", total=None, hidden=session.json) as shown:
            done = moving.copy(here, there, tell=lambda topic: shown.update(done=0, told=topic))
    if session.json:
        output.emit(
            {
                "records": dict(done.records),
                "groups": done.groups,
                "producers": done.producers,
                "offsets": done.offsets(),
            }
        )
        return
    rows = [[output.escape(name), words.count(records)] for name, records in done.records.items()]
    output.show(output.table(("topic", "records#"), rows), "")
    went_on = (words.count(done.groups, "group"), words.count(done.producers, "producer"))
    output.show(" and ".join(went_on) + " go on there")
