"""`penstock group`: who reads what, how far they are, and moving them."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock import places
from penstock.cli import output, words
from penstock.cli.session import AsJson, Home, Session, Yes
from penstock.errors import UnknownGroup

if TYPE_CHECKING:
    from penstock.log.log import Log
    from penstock.log.port import GroupInfo, MemberInfo, PartitionLag

app = typer.Typer(help="Look at consumer groups and move them.", no_args_is_help=True, rich_markup_mode=None)

_SOON_S = 86_400

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]


@app.command("list")
def list_(ctx: typer.Context, home: Home = None, as_json: AsJson = False) -> None:
    """List consumer groups."""
    session = Session.of(ctx, home, as_json)
    found: list[GroupInfo] = []
    if session.has_log():
        with session.log() as log:
            found = [log.group(group, topic) for group, topic in log.groups()]
    if session.json:
        output.emit({"groups": [_summary(info) for info in found]})
        return
    if not found:
        output.note("no groups yet; one begins with: penstock consume TOPIC --group NAME")
        return
    columns = ("group", "topic", "members#", "lag#", "oldest unread")
    output.show(output.table(columns, [_list_row(info) for info in found]))


def _summary(info: GroupInfo) -> dict[str, Any]:
    return {
        "group": info.group,
        "topic": info.topic,
        "members": len(info.members),
        "lag_records": sum(lag.records for lag in info.lag),
        "lag_seconds": max((lag.seconds for lag in info.lag), default=0.0),
    }


def _list_row(info: GroupInfo) -> tuple[str, ...]:
    one = _summary(info)
    age = words.span(one["lag_seconds"]) if one["lag_records"] else "[green]up to date[/]"
    lag = words.count(one["lag_records"])
    return output.escape(info.group), output.escape(info.topic), str(one["members"]), lag, age


@app.command()
def show(
    ctx: typer.Context,
    group: Group,
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic.")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Show a group: its members, and how far it is in every partition."""
    session = Session.of(ctx, home, as_json)
    with session.log() as log:
        found = [log.group(group, name) for name in _topics_of(log, group, topic)]
    if session.json:
        output.emit({"group": group, "topics": [asdict(info) for info in found]})
        return
    for at, info in enumerate(found):
        output.show(*([""] if at else []), *_described(info))


def _topics_of(log: Log, group: str, topic: str | None) -> list[str]:
    pairs = log.groups()
    if topic is not None:
        log.port.settings(topic)  # a topic that does not exist is the better thing to complain about
    topics = [name for known, name in pairs if known == group and topic in (None, name)]
    if not topics:
        raise UnknownGroup(group, known={known for known, name in pairs if topic in (None, name)})
    return topics


def _described(info: GroupInfo) -> list[Any]:
    records = sum(lag.records for lag in info.lag)
    oldest = max((lag.seconds for lag in info.lag), default=0.0)
    state = (
        f"{words.count(records, 'record')} behind, the oldest for {words.span(oldest)}"
        if records
        else "up to date"
    )
    names = {member.member: f"member {at}" for at, member in enumerate(info.members, start=1)}
    members = [
        f"  {names[member.member]} [dim]({output.escape(member.member)})[/] {_reads(member)}"
        for member in info.members
    ]
    return [
        f"[bold]{output.escape(info.group)}[/] on {output.escape(info.topic)}: {state}",
        *(members or ["  [dim]no members at the moment[/]"]),
        "",
        output.table(
            ("partition#", "read by", "committed#", "end#", "lag#", "oldest#", ""),
            [_lag_row(lag, names) for lag in info.lag],
        ),
    ]


def _reads(member: MemberInfo) -> str:
    if member.waiting:
        return "[yellow]waiting: more members than partitions[/]"
    noun = "partition" if len(member.partitions) == 1 else "partitions"
    return f"reads {noun} {words.listed(member.partitions)}"


def _lag_row(lag: PartitionLag, names: dict[str, str]) -> tuple[str, ...]:
    return (
        str(lag.partition),
        names.get(lag.owner or "", "[dim]nobody[/]"),
        "[dim]never[/]" if lag.committed is None else words.count(lag.committed),
        words.count(lag.end),
        words.count(lag.records),
        words.span(lag.seconds) if lag.records else "",
        _expiry(lag),
    )


def _expiry(lag: PartitionLag) -> str:
    if lag.committed is not None and lag.committed < lag.start:
        gone = words.count(lag.start - lag.committed, "record")
        return f"[red]{gone} removed by retention before they were read[/]"
    if lag.expires_in_s is None:
        return ""
    if lag.expires_in_s <= 0:
        return "[red]expires now[/]"
    colour = "yellow" if lag.expires_in_s < _SOON_S else "dim"
    return f"[{colour}]expires in {words.span(lag.expires_in_s)}[/]"


@app.command()
def reset(
    ctx: typer.Context,
    group: Group,
    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC", help="The topic to move in.")],
    to: Annotated[str, typer.Option("--to", metavar="WHERE", help=places.HELP)],
    partition: Annotated[int | None, typer.Option("--partition", metavar="N", help="Only this one.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would happen and change nothing.")
    ] = False,
    yes: Yes = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Move a group that has no running members: it reads on from there."""
    session = Session.of(ctx, home, as_json)
    place = places.parse_place(to, now=datetime.now(UTC))
    with session.log() as log:
        opened = log.topic(topic)
        wanted = places.offsets_of(opened, place, partition)
        committed = log.port.committed(group, topic)
        bounds = opened.bounds()
        moves = [
            _move(number, committed.get(number), offset, bounds[number]) for number, offset in wanted.items()
        ]
        if not session.json:
            output.show(_moves_table(moves))
        if not dry_run:
            question = f'move group "{group}" on "{topic}"?'
            session.confirm(question, yes=yes, refusal=f'group "{group}" would be moved on "{topic}".')
            log.port.reset(group, topic, wanted)
    if session.json:
        output.emit({"group": group, "topic": topic, "moved": not dry_run, "partitions": moves})
    elif dry_run:
        output.note("nothing was changed")
    else:
        output.show(f'[green]moved[/] group "{output.escape(group)}"')


def _move(number: int, committed: int | None, to: int, bounds: tuple[int, int]) -> dict[str, int | None]:
    # Without a commit the group would begin where its consumers say, at the start unless told otherwise.
    now = max(bounds[0] if committed is None else committed, bounds[0])
    again, skipped = max(now - to, 0), max(to - now, 0)
    return {"partition": number, "from": committed, "to": to, "read_again": again, "skipped": skipped}


def _moves_table(moves: list[dict[str, int | None]]) -> Any:
    def effect(move: dict[str, int | None]) -> str:
        if move["read_again"]:
            return f"{words.count(move['read_again'], 'record')} read again"
        if move["skipped"]:
            return f"[yellow]{words.count(move['skipped'], 'record')} skipped[/]"
        return "[dim]stays[/]"

    rows = [
        (
            str(move["partition"]),
            "[dim]never committed[/]" if move["from"] is None else f"{move['from']:,}",
            "[dim]→[/]",
            f"{move['to']:,}",
            effect(move),
        )
        for move in moves
    ]
    return output.table(("partition#", "from#", "", "to#", ""), rows)
