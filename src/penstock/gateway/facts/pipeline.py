"""How the app fares: what a run has told last, and what keeps rows from coming out."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from penstock.app import explain as explaining
from penstock.app import published, reading
from penstock.app.app import App
from penstock.app.status import CaptureStatus, FollowerStatus, QueryStatus
from penstock.errors import UnknownView
from penstock.flow.output import BATCHES
from penstock.gateway.facts import records
from penstock.gateway.facts.records import Wish
from penstock.log.json_rows import to_json


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that is to be known. `blocks`: because of it rows are missing."""

    kind: str
    text: str
    hint: str
    blocks: bool
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Explained:
    """Why nothing comes out of a definition, or what it waits for. `flows`: nothing keeps rows back."""

    name: str
    kind: str
    rows: int
    batch: int | None
    batch_at_us: int | None
    watermark_us: int | None
    flows: bool
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """What the last run has told. `running`: it goes on, and told this within the last seconds."""

    app: str
    running: bool
    at_us: int | None
    running_s: float | None
    queries: tuple[QueryStatus, ...]
    followers: tuple[FollowerStatus, ...]
    captures: tuple[CaptureStatus, ...]
    log_error: str | None


@dataclass(frozen=True, slots=True)
class Late:
    """What a view has left out. `late`: how many pairs of row and window in all; the newest are here."""

    view: str
    late: int
    pairs: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """What a webhook, mail or outbox could not deliver: the newest records of a topic `….dead`."""

    topic: str
    records: int
    newest: tuple[Any, ...]


def status_of(app: App) -> PipelineStatus:
    told = published.last(app)
    if told is None:
        return PipelineStatus(app.name, False, None, None, (), (), (), None)
    status = told.status
    return PipelineStatus(
        app.name, told.is_live(_now_us()), status.at_us, status.running_s, status.queries, status.followers,
        status.captures, status.log_error,
    )  # fmt: skip


def explain(app: App, names: tuple[str, ...] = ()) -> tuple[Explained, ...]:
    """All definitions, or these. Raises UnknownView."""
    return tuple(_explained(app, name) for name in names or tuple(app.definitions))


def _explained(app: App, name: str) -> Explained:
    found = explaining.explain(app, name, now_us=_now_us())
    reasons = tuple(
        Reason(each.kind, each.text, each.hint, each.blocks, dict(each.facts)) for each in found.reasons
    )
    return Explained(
        found.name, found.kind, found.rows, found.batch, found.batch_at_us, found.watermark_us, found.flows,
        reasons,
    )  # fmt: skip


def late(app: App, name: str, *, limit: int) -> Late:
    """Raises UnknownView."""
    definition = app.definition(name)
    if f"{definition.name}{BATCHES}" not in app.log.topics():
        raise UnknownView(name, defined=True)
    pairs = tuple(
        to_json({column: value for column, value in pair.items() if not column.startswith("_")})
        for pair in reading.late(app, name, newest=limit).table.to_pylist()
    )
    return Late(name, reading.late_since(app, name, 0), pairs)


def dead_letters(app: App, *, limit: int, size_bytes_max: int) -> tuple[DeadLetters, ...]:
    """Of every topic that holds what could not be delivered."""
    found = []
    for name in sorted(app.log.topics()):
        if not name.endswith(".dead"):
            continue
        count = sum(end - start for start, end in app.log.topic(name).bounds().values())
        page = records.page(
            app,
            name,
            Wish(last=limit),
            now=datetime.now(UTC),
            scanned_max=count,
            size_bytes_max=size_bytes_max,
        )
        newest = tuple({"partition": r.partition, "offset": r.offset, **r.value} for r in page.records)
        found.append(DeadLetters(name, count, newest))
    return tuple(found)


def _now_us() -> int:
    return time.time_ns() // 1_000


def as_plain(value: object) -> Any:
    """A dataclass as JSON has it."""
    return to_json(asdict(value))  # type: ignore[call-overload]
