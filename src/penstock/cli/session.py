"""What every command shares: where the log is, and how to answer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import failure
from penstock.errors import BadInput

if TYPE_CHECKING:
    from penstock.log.log import Log

Home = Annotated[
    str | None,
    typer.Option(
        "--home",
        metavar="DIR",
        help="Where the log is: a folder, or kafka://host:port.",
        show_default="$PENSTOCK_HOME or ./.penstock",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@dataclass(slots=True)
class Session:
    """One run of the command line. `--home` and `--json` may come before or after the command."""

    home: str | None = None
    json: bool = False

    @classmethod
    def of(cls, ctx: typer.Context, home: str | None, as_json: bool) -> Session:
        """The session of this run with what the command itself was told."""
        session = ctx.ensure_object(cls)
        session.home = home or session.home
        session.json = as_json or session.json
        return session

    @property
    def folder(self) -> Path:
        """Where the log is or will be. Refuses a place where no folder can be."""
        from penstock.log.log import home_of

        if self.on_kafka:
            raise BadInput(
                "this works on a log in a folder, not on Kafka.", hint="leave --home and PENSTOCK_HOME away"
            )
        home = home_of(self.home)
        nearest = next((place for place in (home, *home.parents) if place.exists()), None)
        if nearest is not None and not nearest.is_dir():
            raise NotAFolder(home, file=nearest)
        return home

    @property
    def kept(self) -> Path:
        """Where things are kept that no log holds: beside the log, or here for one on Kafka."""
        from penstock.log.log import HOME

        return Path(HOME) if self.on_kafka else self.folder

    @property
    def on_kafka(self) -> bool:
        from penstock.opening import address_of, is_kafka

        return is_kafka(address_of(self.home))

    @property
    def address(self) -> str:
        """Where the log is: a folder, or a cluster."""
        from penstock.opening import address_of

        return address_of(self.home) if self.on_kafka else str(self.folder)

    @property
    def shown(self) -> str:
        """The same for people and programs to read: without a password."""
        from penstock.kafka.address import Address

        return Address.shown(self.address) if self.on_kafka else self.address

    def has_log(self) -> bool:
        return self.on_kafka or (self.folder / "log.json").exists()

    @contextmanager
    def log(self, *, create: bool = False) -> Iterator[Log]:
        """The log, closed at the end. Looking at a log never creates one."""
        from penstock.opening import open_log

        if not create and not self.has_log():
            raise NoLog(self.folder)
        with open_log(self.address) as log:
            yield log

    def confirm(self, question: str, *, yes: bool, refusal: str) -> None:
        """Return if the answer is yes; without a terminal to ask, only `--yes` is."""
        if yes:
            return
        if self.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise BadInput(refusal, hint="there is no terminal to ask; say --yes if you mean it")
        if not typer.confirm(question, err=True):
            raise typer.Exit(failure.NO)


class NoLog(BadInput):
    """A command looked for a log where there is none."""

    def __init__(self, home: Path) -> None:
        self.home = home
        super().__init__(
            f"there is no log in {home}.",
            hint="say where it is with --home DIR or PENSTOCK_HOME, or begin one: penstock topic create NAME",
        )


class NotAFolder(BadInput):
    """The home, or something on the way to it, is a file."""

    def __init__(self, home: Path, *, file: Path) -> None:
        self.home, self.file = home, file
        what = f"{home} is a file" if file == home else f"{home} cannot be a folder: {file} is a file"
        super().__init__(
            f"{what}, and a log is kept in a folder.", hint="name a folder with --home DIR or PENSTOCK_HOME"
        )
