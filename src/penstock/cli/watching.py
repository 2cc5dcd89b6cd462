"""A running app as people and programs see it: a live table, plain lines, or JSON lines."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self

from penstock.app.published import Publisher
from penstock.app.status import CaptureStatus, FollowerStatus, QueryStatus, Status, Watch
from penstock.cli import output, words

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from penstock.app.runner import Runner
    from penstock.sourcing.publisher import Publication

_TABLE_S = 0.5
_LINE_S = 3.0
_COLUMNS = (
    "query", "rows/s#", "rows#", "batch#", "behind#", "lag#", "state rows#", "late#", "restarts#",
    "watermark", "held back by",
)  # fmt: skip


class Screen:
    """Shows a runner. A context manager, so that a terminal is left as it was."""

    def __init__(self, runner: Runner, *, as_json: bool) -> None:
        self._watch = Watch(runner)
        self._publisher = Publisher(runner, self._watch)
        self._json = as_json
        self._live: Live | None = None
        self._every_s = _LINE_S if as_json or not sys.stdout.isatty() else _TABLE_S
        self._next = 0.0

    def __enter__(self) -> Self:
        if not self._json and sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(console=output.console(), auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self) -> None:
        """Now, unless that was done a moment ago."""
        now = time.monotonic()
        if now < self._next:
            self._publisher.show()  # more often than a line is printed
            return
        self._next = now + self._every_s
        status = self._watch.look()
        self._publisher.tell(status)
        if self._json:
            output.emit({"kind": "status", **as_object(status)})
            sys.stdout.flush()
        elif self._live is not None:
            self._live.update(table(status), refresh=True)
        else:
            for line in lines(status):
                print(line, flush=True)

    @contextmanager
    def in_the_background(self) -> Iterator[None]:
        """While something else has this thread."""
        ended = threading.Event()

        def go_on() -> None:
            while not ended.wait(0.2):
                self.show()

        thread = threading.Thread(target=go_on, name="screen", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def summarise(self, outcome: str) -> None:
        status = self._watch.look()
        self._publisher.tell(status, ended=True)
        if self._json:
            output.emit({"kind": "summary", "outcome": outcome, **as_object(status)})
            return
        rows = [_summary(query) for query in status.queries]
        if rows:
            output.show(output.table(("query", "batch#", "rows#", "late#", "behind#", "restarts#"), rows))
        followers = [(f"follower of {f.view}", f.last_error) for f in status.followers if f.last_error]
        for name, error in _errors(status) + followers:
            output.show(f"[red]{output.escape(name)}[/]: {output.escape(error)}")
        said = {"done": "everything is delivered", "interrupted": "stopped", "failed": "failed"}[outcome]
        output.show(f"{said} after {words.span(status.running_s)}")


def as_object(status: Status) -> dict[str, Any]:
    """For programs: times in ISO 8601, UTC."""
    found = asdict(status)
    found["at"] = words.iso(found.pop("at_us"))
    found["running_s"] = round(status.running_s, 3)
    for query in found["queries"]:
        query["watermark"] = words.iso(query.pop("watermark_us"))
        query["rows_per_s"], query["lag_s"] = round(query["rows_per_s"], 1), round(query["lag_s"], 3)
    return found


def lines(status: Status) -> Iterator[str]:
    """One for each query and for each follower that is not where it should be."""
    at = words.iso(status.at_us // 1_000_000 * 1_000_000)
    for query in status.queries:
        parts = [
            f"{query.rows_per_s:,.0f} rows/s",
            f"{words.count(query.rows)} rows",
            f"{words.count(query.lag_records)} behind ({words.span(query.lag_s)})",
            f"watermark {words.iso(query.watermark_us) or words.NONE}",
            f"{words.count(query.late)} late",
        ]
        if query.batch_ms is not None:
            parts.insert(1, f"batch {query.batch_ms} ms")
        if query.state_rows:
            parts.append(f"{words.count(query.state_rows)} state rows")
        if query.held_back is not None:
            parts.append(query.held_back.text)
        if query.state != "running":
            parts.append(query.state)
        if query.last_error and query.restarts:
            parts.append(f"{words.count(query.restarts, 'restart')}: {query.last_error}")
        yield f"{at} {query.name}: {', '.join(parts)}"
    if status.log_error:
        yield f"{at} {status.log_error}"
    for follower in status.followers:
        if follower.behind or follower.last_error:
            yield f"{at} follower of {follower.view}: {_follower(follower)}"
    for capture in status.captures:
        yield f"{at} capture {capture.capture}: {_capture(capture)}"
    for found in status.published:
        if found.recorded > found.published or found.last_error:
            yield f"{at} events of {found.aggregates}: {_publication(found)}"


def table(status: Status) -> RenderableType:
    from rich.console import Group

    parts: list[RenderableType] = [output.table(_COLUMNS, [_row(query) for query in status.queries])]
    if status.followers:
        told = [(f.view, output.escape(_follower(f))) for f in status.followers]
        parts += ["", output.table(("view", "its copy"), told)]
    if status.captures:
        databases = [(c.capture, output.escape(_capture(c))) for c in status.captures]
        parts += ["", output.table(("capture", ""), databases)]
    if status.published:
        events = [(p.aggregates, output.escape(_publication(p))) for p in status.published]
        parts += ["", output.table(("aggregates", "their events"), events)]
    parts += [f"[red]{output.escape(name)}[/]: {output.escape(text)}" for name, text in _errors(status)]
    parts.append(f"[dim]{words.span(status.running_s)}; Ctrl-C stops between batches[/]")
    return Group(*parts)


def _row(query: QueryStatus) -> tuple[str, ...]:
    mark = "" if query.state == "running" else f" [yellow]({query.state})[/]"
    return (
        output.escape(query.name) + mark,
        f"{query.rows_per_s:,.0f}",
        words.count(query.rows),
        f"{query.batch_ms} ms" if query.batch_ms is not None else words.NONE,
        words.count(query.lag_records),
        words.span(query.lag_s),
        words.count(query.state_rows),
        words.count(query.late),
        words.count(query.restarts),
        words.time_of(query.watermark_us),
        output.escape(query.held_back.text) if query.held_back else words.NONE,
    )


def _follower(follower: FollowerStatus) -> str:
    behind = f"{words.count(follower.behind, 'record')} behind" if follower.behind else "up to date"
    return f"{behind}: {follower.last_error}" if follower.last_error else behind


def _capture(capture: CaptureStatus) -> str:
    told = f"{capture.phase}, {words.count(capture.changes, 'change')} stored"
    return f"{told}: {capture.last_error}" if capture.last_error else told


def _publication(found: Publication) -> str:
    waiting = max(0, found.recorded - found.published)
    told = f"{words.count(waiting, 'event')} to be published" if waiting else "all published"
    return f"{told}: {found.last_error}" if found.last_error else told


def _errors(status: Status) -> list[tuple[str, str]]:
    of_log = [("log", status.log_error)] if status.log_error else []
    return of_log + [(query.name, query.last_error) for query in status.queries if query.last_error]


def _summary(query: QueryStatus) -> tuple[str, ...]:
    return (
        output.escape(query.name),
        words.NONE if query.batch is None else words.count(query.batch),
        words.count(query.rows),
        words.count(query.late),
        words.count(query.lag_records),
        words.count(query.restarts),
    )
