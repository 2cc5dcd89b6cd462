"""Where the queues are: in a folder beside the log, or on a RabbitMQ."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, overload

import typer

from penstock.cli.session import Session
from penstock.errors import BadInput

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from penstock.queue.queues import Queues

QueueHome = Annotated[
    str | None,
    typer.Option(
        "--home",
        metavar="DIR",
        help="Where the queues are: a folder, or amqp://user:password@host.",
        show_default="$PENSTOCK_HOME or ./.penstock",
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The queue.")]


class NoQueues(BadInput):
    """A command looked for queues where there are none."""

    def __init__(self, home: Path) -> None:
        self.home = home
        super().__init__(
            f"there are no queues in {home}.",
            hint="say where they are with --home DIR or PENSTOCK_HOME, or begin: penstock queue create NAME",
        )


@overload
def queues_of(session: Session, *, create: bool = False) -> AbstractContextManager[Queues]: ...
@overload
def queues_of(session: Session, *, if_any: Literal[True]) -> AbstractContextManager[Queues | None]: ...
@contextmanager  # type: ignore[misc]
def queues_of(session: Session, *, create: bool = False, if_any: bool = False) -> Iterator[Queues | None]:
    """The queues, closed at the end. Looking at queues never creates any: NoQueues, or None with `if_any`."""
    from penstock.queue.opening import FOLDER, is_amqp, open_queues

    address = session.home or os.environ.get("PENSTOCK_HOME")
    if not is_amqp(address):
        address = str(session.folder)
        if not create and not (session.folder / FOLDER).exists():
            if not if_any:
                raise NoQueues(session.folder)
            yield None
            return
    with open_queues(address) as queues:
        yield queues
