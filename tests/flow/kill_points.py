"""What came out of an app, in a form in which two runs can be compared."""

from __future__ import annotations

import json
from typing import Any

import penstock as ps
from penstock.app import reading
from penstock.flow.offset import Offset
from penstock.flow.output import BATCHES

PLACES = ("_topic", "_partition", "_offset", "_timestamp")


def outcome(app: ps.App) -> dict[str, Any]:
    """The rows of every view and of every derived topic, and the late ones, in a fixed order."""
    found: dict[str, Any] = {}
    for name, definition in app.definitions.items():
        rows = app.read(name) if definition.kind == "view" else topic_rows(app, name)
        found[name] = sorted(repr(row) for row in rows)
        late = (
            [(row["topic"], row["partition"], row["offset"], row["window_start"], row["reason"])]
            for row in reading.late(app, name)
        )
        found[f"{name}.late"] = sorted(map(repr, late))
    return found


def topic_rows(app: ps.App, name: str) -> list[dict[str, Any]]:
    rows = [row for batch in app.log.topic(name).read() for row in batch.to_pylist()]
    return [{column: value for column, value in row.items() if column not in PLACES} for row in rows]


def gaps(app: ps.App) -> list[str]:
    """Where the recorded batches of a definition do not follow on one another, or do not reach the end."""
    found = []
    for name in app.definitions:
        records = topic_rows(app, f"{name}{BATCHES}")
        read = [Offset.from_json(json.loads(r["batch"])) for r in records if r["rows"]]
        found += [
            f"{name}: {a.end} {b.start}" for a, b in zip(read, read[1:], strict=False) if a.end != b.start
        ]
        if [r["number"] for r in records] != list(range(len(records))):
            found.append(f"{name}: numbers {[r['number'] for r in records]}")
        for topic, ends in read[-1].end.ends.items():
            bounds = app.log.topic(topic).bounds()
            if {p: end for p, (_, end) in bounds.items()} != dict(enumerate(ends)):
                found.append(f"{name}: read {topic} up to {ends}, which has {bounds}")
    return found
