"""Real-time mode: Spark's long-running tasks from Kafka to Kafka, within some milliseconds.

How its definitions open their topics, and what they may do. `realtime_query.py` runs them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import BadDefinition
from penstock.flow import connector, messages
from penstock.flow.build import Build
from penstock.opening import is_kafka
from penstock.schema import RecordSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.log.settings import TopicSettings

_NODE = re.compile(r"^[\s:+-]*'?(\w+)")
_ALLOWED = {
    "Aggregate", "CollectMetrics", "Deduplicate", "EventTimeWatermark", "Expand", "Filter", "Generate",
    "Join", "LocalRelation", "LogicalRDD", "Project", "Range", "Relation", "ResolvedHint",
    "StreamingRelationV2", "SubqueryAlias", "Union", "View",
}  # fmt: skip


def opened(build: Build, topics: tuple[str, ...]) -> DataFrame:
    """Topics of a real-time definition as a DataFrame, their system columns out of sight."""
    from penstock.flow.hidden import hide

    first = _checked(build, topics)
    starting = build.further.get("starting", "earliest")
    raw = connector.source(build.session, build.home, topics, starting=starting)
    rows = messages.rows(raw, _narrowed(first, build.columns))
    if first.event_time is not None and not build.undated:
        lateness_us = build.scan(topics).lateness_us(build.log)
        rows = rows.withWatermark(first.event_time, f"{lateness_us // 1_000} milliseconds")
    return hide(rows, ("_topic", "_partition", "_offset", "_timestamp"))


def _narrowed(settings: TopicSettings, columns: frozenset[str] | None) -> TopicSettings:
    """With the columns that a topic had when the definition first ran."""
    if columns is None or messages.is_bytes(settings):
        return settings
    fields = [field for field in settings.schema.arrow if field.name in columns]
    return replace(settings, schema=RecordSchema(pa.schema(fields)), key=())


def _checked(build: Build, topics: tuple[str, ...]) -> TopicSettings:
    if not is_kafka(build.home):
        raise BadDefinition(
            "real-time mode reads and writes Kafka, and this app's log is a folder.",
            hint='give the app log="kafka://host:port", or leave latency= out: micro-batches take 100 ms',
        )
    found = [build.log.port.settings(topic) for topic in topics]
    for settings in found:
        messages.check_readable(settings)
    return found[0]


def check_plan(df: DataFrame) -> None:
    """Raises BadDefinition for what real-time mode cannot do; Spark says so once others are running."""
    plan: Any = df._jdf.queryExecution().analyzed()
    text = str(plan.treeString())
    unknown = {found[1] for line in text.splitlines() if (found := _NODE.match(line))} - _ALLOWED
    if any("Python" in name for name in unknown | _expressions(plan)):
        raise _cannot("Python in it")
    if "session_window" in text:
        raise _cannot("session windows")
    if unknown:
        raise _cannot(" or ".join(sorted(unknown)))


def _cannot(what: str) -> BadDefinition:
    return BadDefinition(
        f"real-time mode has no {what}.",
        hint="use Spark's own columns, filters, groupings and broadcast joins, or leave latency= out: "
        "micro-batches do all of it",
    )


def _expressions(plan: Any) -> set[str]:
    """The classes of all expressions in a plan."""
    found: set[str] = set()
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        of_node = node.expressions()
        pending = [of_node.apply(i) for i in range(of_node.size())]
        while pending:
            expression = pending.pop()
            found.add(expression.getClass().getSimpleName())
            inner = expression.children()
            pending += [inner.apply(i) for i in range(inner.size())]
        children = node.children()
        waiting += [children.apply(i) for i in range(children.size())]
    return found
