"""`penstock topic compact` and `penstock topic archive`: what else happens by itself, now."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli import output, partitions, words
from penstock.cli.session import AsJson, Home, Session
from penstock.cli.topic import Name
from penstock.errors import Contended, NotSupported

if TYPE_CHECKING:
    from penstock.log.embedded import EmbeddedLog
    from penstock.log.facts import PartitionFacts
    from penstock.log.log import Log
    from penstock.log.maintenance import Done


def compact(ctx: typer.Context, name: Name, home: Home = None, as_json: AsJson = False) -> None:
    """Seal the active segments and clean up now: keep the latest record of every key, expire, merge."""
    session = Session.of(ctx, home, as_json)
    with session.log() as log:
        port = _embedded(log, "compact")
        settings = port.settings(name)
        before = partitions.facts_of(log, name)
        done = []
        for number in range(settings.partitions):
            partition = port.partition(name, number)
            with partition.locked(settings) as head:
                partition.roll(head, settings)
            done.append(_run(port, name, number, force=True))
        _show(session, name, before, partitions.facts_of(log, name), done)


def archive(ctx: typer.Context, name: Name, home: Home = None, as_json: AsJson = False) -> None:
    """Turn sealed segments into Parquet files now; they stay readable at the same offsets."""
    session = Session.of(ctx, home, as_json)
    with session.log() as log:
        port = _embedded(log, "archive")
        before = partitions.facts_of(log, name)
        done = [
            _run(port, name, number, archive_now=True) for number in range(port.settings(name).partitions)
        ]
        _show(session, name, before, partitions.facts_of(log, name), done)
    if not session.json and not any(one.archived_segments for one in done):
        output.note("nothing to archive: only sealed segments are, and none was left (topic compact seals)")


def _embedded(log: Log, what: str) -> EmbeddedLog:
    from penstock.log.embedded import EmbeddedLog

    if not isinstance(log.port, EmbeddedLog):
        raise NotSupported(f"this log does not {what} on request.", hint="its servers do that by themselves")
    return log.port


def _run(port: EmbeddedLog, topic: str, number: int, **how: bool) -> Done:
    from penstock.log import maintenance

    done = maintenance.run(port.partition(topic, number), port.settings(topic), port.groups_store(), **how)
    if done.busy:
        raise Contended(
            f'another process is cleaning up partition {number} of "{topic}".', hint="try again in a moment"
        )
    return done


def _show(
    session: Session,
    name: str,
    before: list[PartitionFacts],
    after: list[PartitionFacts],
    done: list[Done],
) -> None:
    # A partition added meanwhile is in neither list of what was done.
    changes = list(zip(before, after, done, strict=False))
    if session.json:
        output.emit({"topic": name, "partitions": [_as_object(*change) for change in changes]})
        return
    columns = ("partition#", "records#", "", "#", "size#", "", "#", "done")
    output.show(output.table(columns, [_row(*change) for change in changes]))


def _as_object(before: PartitionFacts, after: PartitionFacts, done: Done) -> dict[str, Any]:
    return {
        "partition": before.partition,
        "records": {"before": before.records, "after": after.records},
        "bytes": {"before": before.bytes, "after": after.bytes},
        "done": asdict(done),
    }


def _row(before: PartitionFacts, after: PartitionFacts, done: Done) -> tuple[str, ...]:
    sizes = (words.size(before.bytes or 0), "[dim]→[/]", words.size(after.bytes or 0))
    records = (words.count(before.records), "[dim]→[/]", words.count(after.records))
    return (str(before.partition), *records, *sizes, f"[dim]{output.escape(_told(done))}[/]")


def _told(done: Done) -> str:
    """`12 archived segments, 3,000 expired records`."""
    counted = {name: value for name, value in asdict(done).items() if isinstance(value, int) and value}
    parts = [words.count(value, name.replace("_", " ").removesuffix("s")) for name, value in counted.items()]
    if done.held_by:
        parts.append(f"retention waits for {', '.join(done.held_by)}")
    return ", ".join(parts) or "nothing to do"
