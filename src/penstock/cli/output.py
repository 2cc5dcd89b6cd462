"""The one way to print: JSON for programs; tables, facts and notes for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

# Piped output is for other programs: no line is broken or cut to fit a terminal that is not there.
_WIDTH_OF_A_PIPE = 10_000


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _WIDTH_OF_A_PIPE
    return Console(stderr=stderr, highlight=False, soft_wrap=False, emoji=False, width=width)


def escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def emit(value: object) -> None:
    """One JSON value on one line of stdout."""
    print(json.dumps(value, ensure_ascii=False))


def show(*things: RenderableType) -> None:
    """Markup, tables and the like, for people."""
    out = console()
    for thing in things:
        if out.is_terminal:
            out.print(thing)
        else:
            with out.capture() as printed:
                out.print(thing)
            print("\n".join(line.rstrip() for line in printed.get().splitlines()))


def note(text: str) -> None:
    """A remark on stderr, so that stdout stays what was asked for."""
    console(stderr=True).print(f"[dim]{escape(text)}[/]")


def table(columns: Sequence[str], rows: Iterable[Sequence[RenderableType]]) -> Table:
    """A plain table. A column named `…#` holds numbers and stands right; one named `…~` may be cut to fit."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    made.show_header = any(column.rstrip("#~") for column in columns)
    for at, column in enumerate(columns, start=1):
        right, cut = column.endswith("#"), column.endswith("~")
        made.add_column(
            column.rstrip("#~"),
            justify="right" if right else "left",
            no_wrap=cut or at < len(columns),
            overflow="ellipsis" if cut else "fold",
        )
    for row in rows:
        made.add_row(*row)
    return made


def facts(pairs: Iterable[tuple[str, str]]) -> Table:
    """Names and what they are, one per line."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        made.add_row(name, value)
    return made
