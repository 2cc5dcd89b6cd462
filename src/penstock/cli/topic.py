"""`penstock topic`: create, look at, change and remove topics."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import failure, growth, output, partitions, personal, words
from penstock.cli.session import AsJson, Home, Session, Yes
from penstock.clock import duration_ms
from penstock.errors import BadOption, PenstockError, as_object

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.log.facts import PartitionFacts
    from penstock.log.log import Log
    from penstock.log.settings import PartitionsAdded, TopicSettings

app = typer.Typer(
    help="Create, look at, change and remove topics.", no_args_is_help=True, rich_markup_mode=None
)


class Cleanup(StrEnum):
    delete = "delete"
    compact = "compact"


class Durability(StrEnum):
    fsync = "fsync"
    os = "os"


class Format(StrEnum):
    json = "json"
    avro = "avro"


DURABILITY = {
    "fsync": "fsync: what was acknowledged survives power loss",
    "os": "os: what was acknowledged survives a crash of the program, not power loss",
}

Acknowledged = Annotated[
    Durability,
    typer.Option(
        "--durability",
        help="fsync: acknowledged records survive power loss. os: only a crash of the program.",
    ),
]
OnKafka = Annotated[
    Format | None,
    typer.Option(
        "--format", help="On Kafka: json, or avro, which it is where the address names a schema registry."
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The topic.")]
Schema = Annotated[
    str | None, typer.Option("--schema", metavar="DDL", help='Columns, like "id BIGINT, at TIMESTAMP".')
]
Retention = Annotated[
    str | None,
    typer.Option("--retention", metavar="TIME", help='Remove older records, "7 days"; none for never.'),
]
RetentionBytes = Annotated[
    str | None,
    typer.Option("--retention-bytes", metavar="SIZE", help="Keep at most this per partition; none for all."),
]
MaxRecord = Annotated[
    str | None,
    typer.Option("--max-record-bytes", metavar="SIZE", help="Refuse larger records (1 MiB unless told)."),
]
SegmentBytes = Annotated[
    str | None,
    typer.Option(
        "--segment-bytes", metavar="SIZE", help="Begin a new file at this size (64 MiB unless told)."
    ),
]
Tombstones = Annotated[
    str | None,
    typer.Option("--tombstones", metavar="TIME", help="How long a compacted topic remembers deletes."),
]

Lateness = Annotated[
    str | None,
    typer.Option("--lateness", metavar="TIME", help="How far out of order events may come (5 seconds)."),
]


@app.command()
def create(
    ctx: typer.Context,
    name: Name,
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="DDL",
            help='Columns, like "id BIGINT, at TIMESTAMP".',
            show_default="key BINARY, value BINARY, headers MAP<STRING, BINARY>",
        ),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="COL", help="Records with the same key keep their order."),
    ] = None,
    event_time: Annotated[
        str | None, typer.Option("--event-time", metavar="COL", help="The column that says when it happened.")
    ] = None,
    count: Annotated[
        int, typer.Option("--partitions", metavar="N", help="How many can be read in parallel.")
    ] = 1,
    cleanup: Annotated[
        Cleanup, typer.Option(help="delete: by age and size. compact: keep the latest record of every key.")
    ] = Cleanup.delete,
    retention: Retention = None,
    retention_bytes: RetentionBytes = None,
    durability: Acknowledged = Durability.fsync,
    archive: Annotated[bool, typer.Option("--archive", help="Turn old segments into Parquet files.")] = False,
    format: OnKafka = None,
    sealed: personal.Sealed = None,
    comparable: personal.Comparable = None,
    on_forgotten: personal.WhenForgotten = personal.OnForgotten.refuse,
    max_record_bytes: MaxRecord = None,
    segment_bytes: SegmentBytes = None,
    tombstones: Tombstones = None,
    lateness: Lateness = None,
    if_missing: Annotated[
        bool, typer.Option("--if-missing", help="Leave a topic that exists as it is.")
    ] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Create a topic."""
    session = Session.of(ctx, home, as_json)
    limits = _limits(max_record_bytes, segment_bytes, tombstones, lateness)
    with session.log(create=True) as log:
        existed = if_missing and name in log.topics()
        topic = log.create_topic(
            name, schema, key=key or [], event_time=event_time, partitions=count, cleanup=cleanup.value,
            retention=None if _is_none(retention) else retention, retention_bytes=_size(retention_bytes),
            durability=durability.value, archive=archive, if_missing=if_missing,
            format=format and format.value,
            personal=personal.columns(sealed or []), comparable=comparable or [],
            on_forgotten=on_forgotten.value, **limits,
        )  # fmt: skip
        created = topic.settings
    _show_creation(session, created, existed=existed)


def _show_creation(session: Session, settings: TopicSettings, *, existed: bool) -> None:
    if session.json:
        output.emit({"created": not existed, **_as_object(settings), "archive_means": _archive(settings)})
        return
    if existed:
        output.show(f'topic "{settings.name}" exists already and stays as it is')
        return
    ready = words.count(settings.partitions, "partition")
    output.show(f'[green]created[/] topic "{settings.name}" with {ready}, {output.escape(_keyed(settings))}')
    _show_idle_archive(settings)


@app.command("list")
def list_(ctx: typer.Context, home: Home = None, as_json: AsJson = False) -> None:
    """List topics."""
    session = Session.of(ctx, home, as_json)
    found: list[dict[str, Any]] = []
    if session.has_log():
        with session.log() as log:
            found = [_summary(log, name) for name in log.topics()]
    if session.json:
        output.emit({"home": session.shown, "topics": found})
    elif not found:
        output.note(f"no topics in {session.shown}; create one with: penstock topic create NAME")
    else:
        columns = ("topic", "partitions#", "records#", "size#", "last append", "schema~")
        output.show(output.table(columns, [_list_row(one) for one in found]))
    if any("error" in one for one in found):
        raise typer.Exit(failure.NO)


def _summary(log: Log, name: str) -> dict[str, Any]:
    """A topic that cannot be opened does not hide the others."""
    try:
        settings, found = log.port.settings(name), partitions.facts_of(log, name)
    except PenstockError as error:
        return {"topic": name, "error": as_object(error)}
    return {
        "topic": name,
        "partitions": settings.partitions,
        "records": sum(one.records for one in found),
        "bytes": sum(one.bytes or 0 for one in found),
        "last_appended": words.iso(max((one.last_us or 0 for one in found), default=0)),
        "cleanup": settings.cleanup,
        "durability": settings.durability,
        "key": list(settings.key),
        "schema": settings.schema.ddl,
    }


def _list_row(one: dict[str, Any]) -> tuple[str, ...]:
    name = output.escape(one["topic"])
    if "error" in one:
        return name, "", "", "", "[red]broken[/]", f"[red]{output.escape(one['error']['message'])}[/]"
    last = one["last_appended"] and round(datetime.fromisoformat(one["last_appended"]).timestamp() * 1e6)
    return (
        f"{name} [dim]compact[/]" if one["cleanup"] == "compact" else name,
        words.count(one["partitions"]),
        words.count(one["records"]),
        words.size(one["bytes"]),
        words.ago(last),
        f"[dim]{output.escape(one['schema'])}[/]",
    )


@app.command()
def show(ctx: typer.Context, name: Name, home: Home = None, as_json: AsJson = False) -> None:
    """Show a topic: its settings, its schema and its partitions."""
    session = Session.of(ctx, home, as_json)
    with session.log() as log:
        settings, found = log.port.settings(name), partitions.facts_of(log, name)
    if session.json:
        output.emit(
            {
                **_as_object(settings),
                "durability_means": DURABILITY[settings.durability],
                "archive_means": _archive(settings),
                "records": sum(one.records for one in found),
                "bytes": sum(one.bytes or 0 for one in found),
                "partitions": [partitions.as_object(one) for one in found],
                "grown": [growth.as_object(added) for added in settings.grown],
            }
        )
        return
    output.show(
        f"[bold]{output.escape(name)}[/]", output.facts(_described(settings)), "", _partition_table(found)
    )
    for added in settings.grown:
        output.show("", *_growth(settings, added))


def _described(settings: TopicSettings) -> list[tuple[str, str]]:
    largest, segment = words.size(settings.record_bytes_max), words.size(settings.segment_bytes)
    pairs = [
        ("schema", output.escape(settings.schema.ddl)),
        ("key", output.escape(", ".join(settings.key)) or "none: records spread evenly"),
        ("event time", output.escape(_event_time(settings))),
        ("personal", output.escape(personal.told(settings))),
        ("keeps", _keeps(settings)),
        ("archive", output.escape(_archive(settings)) if settings.archive else ""),
        ("durability", DURABILITY[settings.durability]),
        ("format", settings.format or ""),
        ("limits", f"records up to {largest}, segments of {segment}"),
    ]
    return [(name, value) for name, value in pairs if value]


def _event_time(settings: TopicSettings) -> str:
    if settings.event_time is None:
        return ""
    corrected = f", corrected by {settings.sent_time}" if settings.sent_time else ""
    return f"{settings.event_time}{corrected}; late after {words.span(settings.lateness_ms / 1000)}"


def _keeps(settings: TopicSettings) -> str:
    if settings.compacted:
        remembers = words.span(settings.tombstone_ms / 1000)
        return f"the latest record of every key; deletes are remembered for {remembers}"
    limits = []
    if settings.retention_ms is not None:
        limits.append(f"older than {words.span(settings.retention_ms / 1000)}")
    if settings.retention_bytes is not None:
        limits.append(f"beyond {words.size(settings.retention_bytes)} per partition")
    if not limits:
        return "everything"
    old = f"what is {' or '.join(limits)}"
    return f"everything, as Parquet {old}" if settings.archive else f"all but {old}"


def _archive(settings: TopicSettings) -> str:
    """What becomes Parquet by itself, in words."""
    if not settings.archive:
        return "off"
    if settings.compacted:
        return (
            "on, but a compacted topic archives nothing by itself; "
            f"on request: penstock topic archive {settings.name}"
        )
    if not _archives(settings):
        return (
            "on, but nothing will be archived until retention is set: "
            f'penstock topic alter {settings.name} --retention "7 days"'
        )
    return "on: what retention would remove becomes Parquet, readable at the same offsets"


def _archives(settings: TopicSettings) -> bool:
    limited = settings.retention_ms is not None or settings.retention_bytes is not None
    return settings.archive and limited and not settings.compacted


def _show_idle_archive(settings: TopicSettings) -> None:
    """Accepted, since retention may come later; but nobody should wait for files that never come."""
    if settings.archive and not _archives(settings):
        output.show(f"[yellow]archive[/] is {output.escape(_archive(settings))}")


def _partition_table(found: list[PartitionFacts]) -> Table:
    numbers = ("partition#", "start#", "end#", "records#", "size#", "segments#")
    return output.table((*numbers, "first append", "last append"), [_partition_row(one) for one in found])


def _partition_row(one: PartitionFacts) -> tuple[str, ...]:
    return (
        str(one.partition),
        words.count(one.start),
        words.count(one.end),
        words.count(one.records),
        words.NONE if one.bytes is None else words.size(one.bytes),
        words.NONE if one.segments is None else _segments(one),
        words.ago(one.first_us),
        words.ago(one.last_us),
    )


def _segments(one: PartitionFacts) -> str:
    return f"{one.segments} ({one.archived} Parquet)" if one.archived else str(one.segments)


def _growth(settings: TopicSettings, added: PartitionsAdded) -> list[str]:
    headline = f"{words.time_of(added.at_us)}: {added.before} partitions became {added.after}"
    return [f"[yellow]{headline}[/]", *(output.escape(line) for line in growth.sentences(settings, added))]


@app.command()
def alter(
    ctx: typer.Context,
    name: Name,
    schema: Schema = None,
    count: Annotated[int | None, typer.Option("--partitions", metavar="N", help="More partitions.")] = None,
    retention: Retention = None,
    retention_bytes: RetentionBytes = None,
    durability: Annotated[Durability | None, typer.Option(help="fsync or os.")] = None,
    archive: Annotated[
        bool | None, typer.Option("--archive/--no-archive", help="Turn old segments into Parquet.")
    ] = None,
    max_record_bytes: MaxRecord = None,
    segment_bytes: SegmentBytes = None,
    tombstones: Tombstones = None,
    lateness: Lateness = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Change a topic. Columns may be added and widened, partitions added."""
    session = Session.of(ctx, home, as_json)
    changes: dict[str, Any] = _limits(max_record_bytes, segment_bytes, tombstones, lateness)
    if retention is not None:
        changes["retention_ms"] = None if _is_none(retention) else duration_ms(retention)
    if retention_bytes is not None:
        changes["retention_bytes"] = _size(retention_bytes)
    given = {"partitions": count, "durability": durability and durability.value, "archive": archive}
    changes |= {option: value for option, value in given.items() if value is not None}
    if schema is None and not changes:
        raise BadOption("nothing to change.", hint="see: penstock topic alter --help")
    with session.log() as log:
        before = log.port.settings(name)
        after = log.alter_topic(name, schema=schema, **changes).settings
    _show_alteration(session, before, after)


def _show_alteration(session: Session, before: TopicSettings, after: TopicSettings) -> None:
    added = after.grown[len(before.grown) :]
    old, new = before.to_json(), after.to_json()
    changed = {field: (old[field], new[field]) for field in new if old[field] != new[field]}
    changed = {field: pair for field, pair in changed.items() if field not in ("grown", "version")}
    if session.json:
        output.emit(
            {
                "topic": after.name,
                "changed": {field: {"from": a, "to": b} for field, (a, b) in changed.items()},
                "archive_means": _archive(after),
                "grown": [growth.as_object(one) for one in added],
                "order_per_key": [line for one in added for line in growth.sentences(after, one)],
            }
        )
        return
    if not changed:
        output.show(f'topic "{after.name}" is like that already')
        return
    output.show(f'[green]altered[/] topic "{after.name}"')
    arrows = [
        (_FIELDS.get(field, field), f"{output.escape(_told(field, a))} → {output.escape(_told(field, b))}")
        for field, (a, b) in changed.items()
    ]
    output.show(output.facts(arrows))
    _show_idle_archive(after)
    for one in added:
        output.show("", *(output.escape(line) for line in growth.sentences(after, one)))


_FIELDS = {
    "retention_ms": "retention",
    "retention_bytes": "retention by size",
    "tombstone_ms": "tombstones",
    "segment_bytes": "segments",
    "record_bytes_max": "largest record",
}


def _told(field: str, value: object) -> str:
    if value is None:
        return "no limit"
    if isinstance(value, int) and not isinstance(value, bool):
        if field.endswith("_ms"):
            return words.span(value / 1000)
        if "bytes" in field:
            return words.size(value)
    return str(value)


@app.command()
def delete(
    ctx: typer.Context, name: Name, yes: Yes = False, home: Home = None, as_json: AsJson = False
) -> None:
    """Remove a topic with all its records and the commits of its groups."""
    session = Session.of(ctx, home, as_json)
    with session.log() as log:
        found = partitions.facts_of(log, name)
        records = sum(one.records for one in found)
        groups = sorted({group for group, topic in log.groups() if topic == name})
        stake = f'topic "{name}" with {words.count(records, "record")}'
        if groups:
            stake += f" and the progress of {words.count(len(groups), 'group')} ({', '.join(groups)})"
        session.confirm(f"delete {stake}?", yes=yes, refusal=f"{stake} would be deleted for good.")
        log.delete_topic(name)
    if session.json:
        output.emit({"deleted": name, "records": records, "groups": groups})
    else:
        output.show(f"[green]deleted[/] {output.escape(stake)}")


def _as_object(settings: TopicSettings) -> dict[str, object]:
    plain = settings.to_json()
    return {"topic": plain.pop("name"), **plain}


def _keyed(settings: TopicSettings) -> str:
    return f"keyed by {', '.join(settings.key)}" if settings.key else "without a key"


def _limits(
    max_record_bytes: str | None, segment_bytes: str | None, tombstones: str | None, lateness: str | None
) -> dict[str, int]:
    given = {
        "record_bytes_max": _size(max_record_bytes),
        "segment_bytes": _size(segment_bytes),
        "tombstone_ms": None if tombstones is None else duration_ms(tombstones),
        "lateness_ms": None if lateness is None else duration_ms(lateness),
    }
    return {name: value for name, value in given.items() if value is not None}


def _is_none(text: str | None) -> bool:
    return text is None or text.strip().lower() == "none"


def _size(text: str | None) -> int | None:
    return None if text is None or _is_none(text) else words.parse_size(text)
