"""`penstock top`: queries, topics, groups and queues as they are now, again and again. Needs no Spark."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock import errors
from penstock.cli import output, words
from penstock.cli.session import AsJson, Home, Session
from penstock.clock import duration_ms
from penstock.errors import Damaged, StorageError, UnknownGroup, UnknownQueue, UnknownTopic

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.app.published import Published
    from penstock.log.log import Log
    from penstock.log.port import GroupInfo
    from penstock.queue.port import QueueStats

_ROWS_MAX = 12
_INTERNAL = (".batches", ".late")


@dataclass(frozen=True, slots=True)
class TopicLook:
    """One topic at one moment, with how fast it grew since the moment before."""

    topic: str
    records: int
    per_second: float
    error: dict[str, Any] | None = None  # why it cannot be read


@dataclass(frozen=True, slots=True)
class Look:
    """All of it."""

    at_us: int
    apps: dict[str, Published]
    topics: tuple[TopicLook, ...]
    groups: tuple[GroupInfo, ...]
    queues: tuple[QueueStats, ...]


def top(
    ctx: typer.Context,
    every: Annotated[str, typer.Option("--every", metavar="TIME", help="How often to look.")] = "1 second",
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Show queries, topics, groups and queues, live.

    Rates are those of the last moment. Until Ctrl-C; with --json: one object per line.
    """
    session = Session.of(ctx, home, as_json)
    every_s = max(duration_ms(every) / 1_000, 0.1)
    with session.log() as log, suppress(KeyboardInterrupt):
        looks = _looks(log, None if session.on_kafka else session.folder, every_s)
        if once:
            _show_one(session, next(looks))
        elif session.json or not sys.stdout.isatty():
            for look in looks:
                _show_one(session, look)
                sys.stdout.flush()
        else:
            _live(looks)


@dataclass(frozen=True, slots=True)
class _End:
    """How many records a topic has, and had ever."""

    records: int = 0
    ever: int = 0
    error: dict[str, Any] | None = None


def _looks(log: Log, home: Path | None, every_s: float) -> Iterator[Look]:
    """Without end; each with rates since the one before, so the first one takes a moment."""
    before, then = _ends(log), time.monotonic()
    while True:
        time.sleep(every_s)
        ends, now = _ends(log), time.monotonic()
        yield _look(log, home, before, ends, now - then)
        before, then = ends, now


def _ends(log: Log) -> dict[str, _End]:
    found: dict[str, _End] = {}
    for name in log.topics():
        try:
            bounds = log.topic(name).bounds().values()
        except UnknownTopic:  # it was deleted meanwhile
            continue
        except (Damaged, StorageError) as error:  # the others can be looked at all the same
            found[name] = _End(error=errors.as_object(error))
            continue
        found[name] = _End(sum(end - start for start, end in bounds), sum(end for _, end in bounds))
    return found


def _look(
    log: Log, home: Path | None, before: dict[str, _End], ends: dict[str, _End], seconds: float
) -> Look:
    from penstock.app.published import all_under

    topics = tuple(
        TopicLook(name, end.records, max(end.ever - before.get(name, _End()).ever, 0) / seconds, end.error)
        for name, end in ends.items()
    )
    groups = tuple(_groups(log))
    apps = all_under(home) if home is not None else {}
    queues = _queues(home) if home is not None else ()
    return Look(time.time_ns() // 1_000, apps, topics, groups, queues)


def _groups(log: Log) -> Iterator[GroupInfo]:
    for group, topic in log.groups():
        with suppress(UnknownTopic, UnknownGroup, Damaged):  # deleted meanwhile, or told as a topic
            yield log.group(group, topic)


def _queues(home: Path) -> tuple[QueueStats, ...]:
    from penstock.queue.opening import FOLDER, open_queues

    if not (home / FOLDER).exists():  # looking creates nothing
        return ()
    found = []
    with open_queues(home) as queues:
        for name in queues.names():
            with suppress(UnknownQueue):
                found.append(queues.open_queue(name).stats())
    return tuple(found)


# ---- showing it ---------------------------------------------------------------------------------------


def _show_one(session: Session, look: Look) -> None:
    if session.json:
        output.emit(as_object(look))
    else:
        output.show(*tables(look))


def _live(looks: Iterator[Look]) -> None:
    from rich.console import Group
    from rich.live import Live

    with Live(console=output.console(), auto_refresh=False, screen=True) as live:
        for look in looks:
            live.update(Group(*tables(look)), refresh=True)


def as_object(look: Look) -> dict[str, Any]:
    from penstock.cli import watching

    return {
        "at": words.iso(look.at_us),
        "apps": {
            name: {"live": told.is_live(look.at_us), "pid": told.pid, **watching.as_object(told.status)}
            for name, told in look.apps.items()
        },
        "topics": [{**asdict(topic), "per_second": round(topic.per_second, 1)} for topic in look.topics],
        "groups": [_group(info) for info in look.groups],
        "queues": [asdict(stats) for stats in look.queues],
    }


def _group(info: GroupInfo) -> dict[str, Any]:
    return {
        "group": info.group,
        "topic": info.topic,
        "members": len(info.members),
        "lag_records": sum(lag.records for lag in info.lag),
        "lag_seconds": max((lag.seconds for lag in info.lag), default=0.0),
    }


def tables(look: Look) -> list[RenderableType]:
    from penstock.cli import watching

    parts: list[RenderableType] = []
    for name, told in look.apps.items():
        live = told.is_live(look.at_us)
        state = "[green]runs[/]" if live else f"[yellow]last told {words.ago(told.status.at_us)}[/]"
        parts += [f"[bold]{output.escape(name)}[/] {state}"]
        parts += [watching.table(told.status), ""] if live else [""]
    parts += _section("topics", ("topic", "records#", "records/s#"), _topic_rows(look))
    parts += _section("groups", ("group", "topic", "members#", "lag#", "oldest unread"), _group_rows(look))
    parts += _section("queues", ("queue", "ready#", "unacked#", "dead#", "consumers#"), _queue_rows(look))
    return parts or ["[dim]nothing here yet; begin with: penstock topic create NAME[/]"]


def _section(name: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[RenderableType]:
    if not rows:
        return []
    more = f"[dim]and {len(rows) - _ROWS_MAX} more {name}[/]"
    shown = output.table(columns, rows[:_ROWS_MAX])
    return [shown, more, ""] if len(rows) > _ROWS_MAX else [shown, ""]


def _topic_rows(look: Look) -> list[tuple[str, ...]]:
    """The busiest first; what Penstock notes for itself is left out."""
    own = [topic for topic in look.topics if not topic.topic.endswith(_INTERNAL)]
    own.sort(key=lambda topic: (topic.error is None, -topic.per_second, topic.topic))
    return [(output.escape(topic.topic), *_topic_cells(topic)) for topic in own]


def _topic_cells(topic: TopicLook) -> tuple[str, str]:
    if topic.error is not None:
        return "[red]cannot be read[/]", "[dim]penstock doctor[/]"
    return words.count(topic.records), f"{topic.per_second:,.0f}"


def _group_rows(look: Look) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for info in look.groups:
        one = _group(info)
        age = words.span(one["lag_seconds"]) if one["lag_records"] else "[green]up to date[/]"
        lag = words.count(one["lag_records"])
        rows.append((output.escape(info.group), output.escape(info.topic), str(one["members"]), lag, age))
    return rows


def _queue_rows(look: Look) -> list[tuple[str, ...]]:
    def told(number: int | None) -> str:
        return words.NONE if number is None else words.count(number)

    return [
        (output.escape(q.queue), told(q.ready), told(q.unacked), told(q.dead), told(q.consumers))
        for q in look.queues
    ]
