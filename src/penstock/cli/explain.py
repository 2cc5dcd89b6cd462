"""`penstock explain`: why nothing comes out, or what a view waits for."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import engine, output, words
from penstock.cli.engine import AppFile
from penstock.cli.session import AsJson, Home, Session

if TYPE_CHECKING:
    from penstock.app.explain import Explained, Plan

_TIMES = ("at_us", "window_end_us", "watermark_us")


def explain(
    ctx: typer.Context,
    app: AppFile,
    view: Annotated[str | None, typer.Argument(metavar="VIEW", help="Only this view or stream.")] = None,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Also what the definition says: topics, windows, key (starts Spark)."),
    ] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Say why nothing comes out.

    Or what a view waits for: input, the watermark and what holds it, a failed query, its follower.
    """
    session = Session.of(ctx, home, as_json)
    found = _with_plan(session, app, view) if plan else _plainly(session, app, view)
    if session.json:
        output.emit({"definitions": [_object(one) for one in found]})
        return
    for one in found:
        _show(one)


def _plainly(session: Session, text: str, view: str | None) -> list[Explained]:
    from penstock.app import explain as explaining

    with engine.loaded(session, text) as found:
        names = [view] if view else list(found.app.definitions)
        return [explaining.explain(found.app, name, now_us=_now_us()) for name in names]


def _with_plan(session: Session, text: str, view: str | None) -> list[Explained]:
    from penstock.app import explain as explaining

    with engine.analysed(session, text, checked=(view,) if view else ()) as graph:
        explained = []
        for name in [view] if view else list(graph.analysed):
            one = explaining.explain(graph.app, name, now_us=_now_us())
            reasons = (*explaining.changed(graph, name), *one.reasons)
            explained.append(replace(one, plan=explaining.plan_of(graph, name), reasons=reasons))
        return explained


def _now_us() -> int:
    return time.time_ns() // 1_000


def _object(one: Explained) -> dict[str, Any]:
    found = asdict(one)
    found["batch_at"] = words.iso(found.pop("batch_at_us"))
    found["watermark"] = words.iso(found.pop("watermark_us"))
    found["flows"] = one.flows
    for reason in found["reasons"]:
        reason["facts"] = dict(_fact(name, value) for name, value in reason["facts"].items())
    return found


def _fact(name: str, value: Any) -> tuple[str, Any]:
    return (name.removesuffix("_us"), words.iso(value)) if name in _TIMES else (name, value)


def _show(one: Explained) -> None:
    output.show(f"[bold]{output.escape(one.name)}[/] ({one.kind})")
    for reason in one.reasons:
        mark = "[red]![/]" if reason.blocks else "[green]✓[/]" if reason.kind == "fine" else "[cyan]·[/]"
        output.show(f"  {mark} {output.escape(reason.text)}")
        if reason.hint:
            output.show(f"    [cyan]→[/] {output.escape(reason.hint)}")
    if one.plan is not None:
        output.show(output.facts((f"    {name}", output.escape(value)) for name, value in _facts(one.plan)))


def _facts(plan: Plan) -> list[tuple[str, str]]:
    told = [
        ("query", plan.query),
        ("reads", ", ".join(plan.topics)),
        ("time", f"{plan.clock}, lateness {words.span(plan.lateness_ms / 1000)}"),
        ("key", ", ".join(plan.key) or words.NONE),
        ("columns", plan.columns),
    ]
    for operator in plan.operators:
        parts = [f"late={operator['late']}", f"emit={operator['emit']}"]
        if operator["span_ms"]:
            parts.insert(0, words.span(int(str(operator["span_ms"])) / 1000))
        if operator["not_verifiable"]:
            parts.append(f"not verifiable: {operator['not_verifiable']}")
        told.append((str(operator["name"]), ", ".join(parts)))
    return told
