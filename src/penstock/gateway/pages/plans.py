"""What a definition is, in a few words: its sentence, its window, its source text."""

from __future__ import annotations

import inspect
import textwrap
from typing import TYPE_CHECKING

from penstock.gateway.pages import words

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.app.explain import Plan

_SOURCE_LINES_MAX = 60
# What these say comes out with each record, however far the watermark is.
_AT_ONCE = {"unwindowed", "latest", "deduplicate", "search", "changes", "join_tables"}


def documented(app: App, name: str) -> str:
    """What it is in a sentence: of a definition, the first paragraph of its docstring."""
    definition = app.definitions.get(name)
    doc = inspect.getdoc(definition.function) if definition is not None else None
    if doc is None and (topic := app.topics.get(name)) is not None:
        doc = topic.doc
    if doc is None:
        doc = next((said for each in app.captures.values() if (said := each.said_of(name))), None)
    return " ".join((doc or "").split("\n\n")[0].split())


def window_of(plan: Plan | None) -> str:
    """Its operators in words: `tumbling 1 min`."""
    if plan is None:
        return ""
    said = []
    for operator in plan.operators:
        span_ms = operator.get("span_ms")
        span = f" {short_span(span_ms / 1000)}" if isinstance(span_ms, int) and span_ms else ""
        said.append(f"{str(operator.get('name', '')).replace('_', ' ')}{span}")
    return ", ".join(said)


def waits_for_time(plan: Plan | None) -> bool:
    """Whether some of what it says comes out only once the watermark allows it."""
    if plan is None or not plan.operators:
        return plan is None or plan.stateful
    return any(operator.get("name") not in _AT_ONCE for operator in plan.operators)


def short_span(seconds: float) -> str:
    """
    >>> short_span(60), short_span(90), short_span(0.5), short_span(86400)
    ('1 min', '1 min 30 s', '500 ms', '1 d 0 h')
    """
    if seconds >= 60 and seconds < 3600 and seconds % 60 == 0:
        return f"{seconds / 60:.0f} min"
    if seconds == int(seconds) and seconds < 60:
        return f"{seconds:.0f} s"
    return words.span(seconds)


def source_of(app: App, name: str) -> str:
    """The text of a definition, as far as it can be had."""
    definition = app.definitions.get(name)
    if definition is None:
        return ""
    try:
        text = textwrap.dedent(inspect.getsource(inspect.unwrap(definition.function)))
    except (OSError, TypeError):
        return ""
    return "\n".join(text.splitlines()[:_SOURCE_LINES_MAX])
