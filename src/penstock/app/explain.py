"""explain: why nothing comes out, or what it waits for.

Told from what is stored: the recorded batches, the topics, the last failure, the copy in the store. None of
that needs Spark, nor that the app runs. `plan_of` adds what only an analysed definition knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from penstock.app import failures, reading
from penstock.app.reading import late_count
from penstock.app.watermark import Backlog, Held, backlog, held_back, utc
from penstock.errors import PenstockError
from penstock.flow import history
from penstock.flow.history import Last
from penstock.flow.offset import floored
from penstock.flow.output import BATCHES
from penstock.flow.plan import Scan, newest
from penstock.follow import changes

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.app.graph import Graph
    from penstock.flow.definition import Definition

Kind = Literal[
    "not run", "failed", "definition changed", "no input", "retention", "unread", "watermark", "all late",
    "some late", "nothing due", "follower behind", "fine",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that is to be known. `blocks`: because of it rows are missing."""

    kind: Kind
    text: str
    hint: str = ""
    blocks: bool = True
    facts: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a definition is, once analysed."""

    query: str
    topics: tuple[str, ...]
    clock: str
    lateness_ms: int
    key: tuple[str, ...]
    columns: str  # DDL
    operators: tuple[Mapping[str, object], ...]
    stateful: bool


@dataclass(frozen=True, slots=True)
class Explained:
    """Everything about one definition. `rows`: in the view, or in the stream's topic."""

    name: str
    kind: str
    rows: int
    batch: int | None
    batch_at_us: int | None
    watermark_us: int | None
    reasons: tuple[Reason, ...]
    plan: Plan | None = None

    @property
    def flows(self) -> bool:
        """Whether nothing keeps rows from coming out."""
        return not any(reason.blocks for reason in self.reasons)


@dataclass(frozen=True, slots=True)
class _Output:
    """What has come out so far. `next_end_us`: the end of the open window that closes first."""

    rows: int
    open_windows: int = 0
    next_end_us: int | None = None


def explain(app: App, name: str, *, now_us: int) -> Explained:
    """Without Spark: what is known of a definition from the log, the store and its last failure."""
    definition = app.definition(name)
    stored = history.last(app.log, f"{name}{BATCHES}")
    found = [*_failed(app, name)]
    if stored is None:
        found += _not_run(app)
        return Explained(name, definition.kind, 0, None, None, None, tuple(found))
    output = _output(app, definition, stored)
    if definition.realtime:
        found += _realtime(stored, output)
        return Explained(name, definition.kind, output.rows, stored.number, stored.at_us, None, tuple(found))
    found += _input(app, stored)
    unread = backlog(app.log, stored.batch.end.ends)
    scan = Scan(tuple(stored.batch.end.ends))
    held = held_back(app.log, scan, stored.batch.end, unread=unread, now_us=now_us)
    found += _unread(stored, unread)
    found += _waiting(app, scan, stored, output, held)
    found += _left_out(app, name, stored, output, held)
    found += _follower(app, definition)
    if not any(reason.blocks for reason in found):
        text = f"{output.rows:,} rows, as of batch {stored.number} at {utc(stored.at_us)}"
        found.append(Reason("fine", text, blocks=False))
    return Explained(
        name, definition.kind, output.rows, stored.number, stored.at_us, stored.watermark_us, tuple(found)
    )


def _realtime(stored: Last, output: _Output) -> Iterator[Reason]:
    """What it reads and writes goes past us; at the end of each of Spark's long batches it is noted."""
    yield Reason(
        "fine",
        f"{output.rows:,} rows; real-time and at least once: after a restart it writes again what came since "
        f"{utc(stored.at_us)}",
        blocks=False,
    )


def _failed(app: App, name: str) -> Iterator[Reason]:
    known = failures.last(app, name)
    if known is not None:
        after = "was given up" if known.given_up else "is tried again while `penstock run` runs"
        yield Reason(
            "failed",
            f"its query failed at {utc(known.at_us)} and {after}: {known.error}",
            "mend the cause and run it again; what it had stored is whole",
            facts={"error": known.error, "at_us": known.at_us, "given_up": known.given_up},
        )


def _not_run(app: App) -> Iterator[Reason]:
    yield Reason("not run", "it has not stored a batch yet", "run it with: penstock run APP")
    empty = [topic for topic in app.topics if _is_empty(app, topic)]
    if empty and len(empty) == len(app.topics):
        yield Reason(
            "no input", f"no topic of the app has a record: {', '.join(empty)}", "append to one of them",
            facts={"topics": empty},
        )  # fmt: skip


def _is_empty(app: App, topic: str) -> bool:
    return not any(newest(app.log, Scan((topic,)))[topic])


def _input(app: App, stored: Last) -> Iterator[Reason]:
    ends = stored.batch.end.ends
    if all(_is_empty(app, topic) for topic in ends):
        topics = ", ".join(ends)
        yield Reason(
            "no input", f"what it reads is empty: {topics}", "append to it", facts={"topics": [*ends]}
        )
    for topic, numbers in ends.items():
        for partition, read in enumerate(numbers):
            start = app.log.port.bounds(topic, partition)[0]
            if start > read:
                yield Reason(
                    "retention",
                    f"retention removed {start - read:,} unread records of {topic}[{partition}]",
                    f"raise it: penstock topic alter {topic} --retention TIME",
                    facts={"topic": topic, "partition": partition, "records": start - read},
                )


def _unread(stored: Last, unread: Backlog) -> Iterator[Reason]:
    if unread.records:
        yield Reason(
            "unread",
            f"{unread.records:,} records of {', '.join(unread.topics)} are not read yet; the last batch was "
            f"stored at {utc(stored.at_us)}",
            "is `penstock run` running?",
            facts={"records": unread.records, "topics": list(unread.topics)},
        )


def _output(app: App, definition: Definition, stored: Last) -> _Output:
    topic = app.log.topic(definition.name)
    if definition.kind == "stream":
        return _Output(sum(end - start for start, end in topic.bounds().values()))
    spec = reading.spec(app, definition.name)
    rows = changes.fold(topic.read(), spec.key, columns=spec.columns)
    if not spec.windowed or stored.watermark_us is None:
        return _Output(rows.num_rows)
    ends = rows.column("window_end").cast(pa.int64())
    still_open = ends.filter(pc.greater(ends, stored.watermark_us))
    return _Output(rows.num_rows, len(still_open), pc.min(still_open).as_py() if len(still_open) else None)


def _waiting(app: App, scan: Scan, stored: Last, output: _Output, held: Held) -> Iterator[Reason]:
    """Which window closes next, and how much time is missing there."""
    if output.next_end_us is None or stored.watermark_us is None or stored.batch.end.clock_us is None:
        return
    missing_us = output.next_end_us - stored.watermark_us
    needed_us = output.next_end_us + floored(stored.batch.end.clock_us) - stored.watermark_us
    idle_ms = max(app.log.port.settings(topic).idle_after_ms for topic in scan.topics)
    yield Reason(
        "watermark",
        f"{output.open_windows:,} rows are not final: the next window ends at {utc(output.next_end_us)}, the "
        f"watermark is {utc(stored.watermark_us)}, {missing_us / 1e6:g} s of event time are missing; "
        f"{held.text}",
        f"an event at {utc(needed_us)} or later closes it, or {idle_ms / 1000:g} s of silence and more while "
        "`penstock run` runs",
        blocks=False,
        facts={
            "window_end_us": output.next_end_us, "watermark_us": stored.watermark_us,
            "missing_us": missing_us, "held_by": held.kind, "topic": held.topic, "partition": held.partition,
        },
    )  # fmt: skip


def _left_out(app: App, name: str, stored: Last, output: _Output, held: Held) -> Iterator[Reason]:
    late = late_count(app, [name])
    if late and output.rows:
        yield Reason(
            "some late", f"{late:,} pairs of row and window came too late", f"penstock late APP {name}",
            blocks=False, facts={"late": late},
        )  # fmt: skip
    if output.rows:
        return
    read = sum(int(record["rows"]) for record in history.records(app.log, f"{name}{BATCHES}"))
    if late and late >= read:
        yield Reason(
            "all late",
            f"all of the {read:,} records that were read came too late or have no usable event time",
            f"see them with: penstock late APP {name}; a topic's lateness= says how long to wait",
            facts={"late": late, "rows": read},
        )
    elif read:
        yield Reason(
            "nothing due",
            f"{read:,} records were read, {late:,} pairs were late, and nothing came out: its own filters "
            f"leave nothing, or what it makes is still open: {_closed(stored)}; {held.text}",
            "--plan tells what it emits when",
            facts={"rows": read, "late": late, "held_by": held.kind, "watermark_us": stored.watermark_us},
        )


def _closed(stored: Last) -> str:
    if stored.watermark_us is None:
        return "there is no watermark yet"
    return f"the watermark is {utc(stored.watermark_us)}, and what ends later has not closed"


def _follower(app: App, definition: Definition) -> Iterator[Reason]:
    if definition.kind != "view":
        return
    end = app.log.port.bounds(definition.name, 0)[1]
    try:
        progress = app.store.progress(definition.name)
    except PenstockError as error:
        yield Reason("follower behind", f"the store does not answer: {error.message}", error.hint)
        return
    behind = end - (progress.next_offset if progress else 0)
    if behind > 0:
        yield Reason(
            "follower behind",
            f"the copy that is read is {behind:,} records behind the view's changelog",
            "is `penstock run` running? it tells what keeps a follower",
            facts={"records": behind},
        )


# ---- with Spark -------------------------------------------------------------------------------


def plan_of(graph: Graph, name: str) -> Plan:
    """What the analysed definition says about itself."""
    found = graph.analysed[name]
    query = graph.query_of(name)
    scan = Scan(found.topics, found.clock)
    operators: tuple[Mapping[str, Any], ...] = tuple(
        {
            "name": operator.name, "late": operator.late, "emit": operator.emit,
            "span_ms": operator.span_us // 1_000, "correct_ms": operator.correct_us // 1_000,
            "not_verifiable": operator.not_verifiable,
        }
        for operator in found.operators
    )  # fmt: skip
    return Plan(
        query.name, found.topics, found.clock, scan.lateness_us(graph.app.log) // 1_000, found.output.key,
        found.output.schema.ddl, operators, found.stateful,
    )  # fmt: skip


def changed(graph: Graph, name: str) -> Iterator[Reason]:
    """Whether what is stored was made by another plan."""
    query = graph.query_of(name)
    position = query.stored
    if position is not None and position.identity != query.identity:
        yield Reason(
            "definition changed",
            "it is not defined as it was when it last ran: its stored state cannot go on",
            f"penstock rebuild APP {name}",
        )
