"""Progress on stderr, where a person may be watching; silent everywhere else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.cli import output, words

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


class Progress:
    """What has been done of how much."""

    def __init__(self, bar: RichProgress | None = None, task: TaskID | None = None) -> None:
        self._bar, self._task = bar, task

    def update(self, *, done: float, told: str) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, told=told)

    def say(self, line: str) -> None:
        """A line for stderr that does not tear the bar."""
        if self._bar is not None:
            self._bar.console.print(line, markup=False, soft_wrap=True)
        else:
            print(line, file=sys.stderr)


@contextmanager
def watched(what: str, *, total: float | None, hidden: bool = False) -> Iterator[Progress]:
    """Shows a bar that vanishes at the end. `total` None: how much there is is not known."""
    if hidden or not sys.stderr.isatty():
        yield Progress()
        return
    from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    known = (BarColumn(bar_width=24), TaskProgressColumn(), TimeRemainingColumn()) if total else ()
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        *known,
        TextColumn("[dim]{task.fields[told]}[/]"),
    )
    with RichProgress(*columns, console=output.console(stderr=True), transient=True) as bar:
        yield Progress(bar, bar.add_task(output.escape(what), total=total, told=""))


def told(records: int, seconds: float, bytes_read: int) -> str:
    return f"{words.count(records, 'record')}, {words.rate(records, seconds)}, {words.size(bytes_read)} read"
