"""What the demo shows: a sentence that says what one is looking at, and below it the numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.cli import output, words
from penstock.cli.demo import latency
from penstock.cli.demo.play import VIEWS

if TYPE_CHECKING:
    from collections import Counter

    from rich.console import Group

    from penstock.cli.demo.play import Play, Proof
    from penstock.cli.demo.stage import Actor


def scene(play: Play) -> Group:
    from rich.console import Group

    blank = ""
    return Group(
        _sentence(
            "Two processes append to [cyan]page_views[/]; a record counts once the disk has confirmed it."
        ),
        _producers(play),
        blank,
        _sentence(
            "Group [cyan]mailer[/] shares the four partitions between two processes; "
            "group [cyan]audit[/] reads everything on its own."
        ),
        _members(play),
        blank,
        *_view(play),
        _sentence(
            "An import stores ten lines and its position in one atomic append; repeating it changes nothing."
        ),
        _import(play),
        blank,
        _sentence("[cyan]plans[/] is a table in SQLite, captured: a row is in the log once it is committed."),
        _plans(play),
        blank,
        *(f"[dim]{at:5.1f} s[/]  {output.escape(text)}" for at, text in play.story.lines[-4:]),
    )


def _sentence(text: str) -> str:
    return f"[bold]{text}[/]"


def _producers(play: Play) -> Any:
    rows = [(one.title, f"{one.per_second():,.0f}", words.count(one.acknowledged)) for one in play.producers]
    total = sum(one.per_second() for one in play.producers)
    rows.append(("[dim]together[/]", f"{total:,.0f}", words.count(play.acknowledged())))
    return output.table(("", "appended/s#", "acknowledged#"), rows)


def _members(play: Play) -> Any:
    columns = ("", "reads", "consumed/s#", "lag#", "oldest#", "p50#", "p99#")
    return output.table(columns, [_member_row(play, member) for member in play.members])


def _member_row(play: Play, member: Actor) -> tuple[str, ...]:
    if member.killed:
        return (f"[red]{member.title}[/]", "[red]killed[/]", "", "", "", "", "")
    info = play.lag.get(member.name)
    mine = [lag for lag in info.lag if lag.partition in member.owned] if info else []
    recent = member.recent_latencies()
    return (
        member.title,
        words.listed(member.owned) or "[dim]nothing yet[/]",
        f"{member.per_second():,.0f}",
        words.count(sum(lag.records for lag in mine)),
        words.span(max((lag.seconds for lag in mine), default=0.0)),
        _ms(recent, 50),
        _ms(recent, 99),
    )


def _view(play: Play) -> list[Any]:
    if play.views is None:
        return []
    seen = play.views.view
    told = _sentence(
        "A Spark job counts views per page and five seconds by event time, late ones kept aside, "
        "and finds carts that no checkout follows within two seconds."
    )
    if not seen.get("newest"):
        return [told, "[dim]starting Spark …[/]", ""]
    counts = "   ".join(f"{page} [green]{views:,}[/]" for page, views in sorted(seen["counts"].items()))
    facts = [
        (f"since {seen['newest']}", counts),
        ("windows", f"{seen['windows']}, {seen['final']} of them final"),
        ("late", words.count(seen["late"], "event")),
        ("carts left", words.count(seen["left"])),
    ]
    return [told, output.facts(facts), ""]


def _ms(buckets: Counter[int], percent: float) -> str:
    found = latency.percentile_ms(buckets, percent)
    return "" if found is None else f"{found:.1f} ms"


def _import(play: Play) -> Any:
    done = play.importing
    again = f"{words.count(done.sent_again, 'time')} sent again, {done.stored_again} stored again"
    return output.facts(
        [("stored", words.count(done.line, "line")), ("position()", done.position), ("repeats", again)]
    )


def _plans(play: Play) -> Any:
    latest = play.latest_plans()
    pairs = "   ".join(f"{person} [green]{plan}[/]" for person, plan in sorted(latest.items()))
    return output.facts([("changes", words.count(play.plan_changes)), ("in the log", pairs)])


def line(play: Play) -> str:
    """The same for a file or a pipe: one line."""
    appended = sum(one.per_second() for one in play.producers)
    consumed = sum(one.per_second() for one in play.members if not one.killed)
    lags = [lag for info in play.lag.values() for lag in info.lag]
    oldest = words.span(max((lag.seconds for lag in lags), default=0.0))
    recent = sum((one.recent_latencies() for one in play.members if not one.killed), _empty())
    return (
        f"{play.story.seconds():5.1f} s  appended {play.acknowledged():,} ({appended:,.0f}/s)  "
        f"consumed {sum(one.delivered for one in play.members):,} ({consumed:,.0f}/s)  "
        f"lag {sum(lag.records for lag in lags):,} records, {oldest}  "
        f"p50 {_ms(recent, 50)}  p99 {_ms(recent, 99)}{_view_line(play)}"
    )


def _view_line(play: Play) -> str:
    if play.views is None or not play.views.view.get("newest"):
        return ""
    seen = play.views.view
    total = sum(seen["counts"].values())
    left = words.count(seen["left"], "cart")
    return f"  view: {total:,} since {seen['newest']}, {words.count(seen['late'])} late, {left} left"


def _empty() -> Counter[int]:
    from collections import Counter

    return Counter()


# ---- the end ------------------------------------------------------------------------------------------


def as_object(play: Play, proof: Proof) -> dict[str, Any]:
    from dataclasses import asdict

    total = play.latencies()
    return {
        "holds": proof.holds,
        "seconds": round(proof.seconds, 1),
        "events_per_second": round(proof.stored.acknowledged / max(proof.seconds, 1e-6)),
        "stored": asdict(proof.stored),
        "groups": [asdict(group) for group in proof.delivered],
        "latency_p50_ms": latency.percentile_ms(total, 50),
        "latency_p99_ms": latency.percentile_ms(total, 99),
        "taken_over_s": proof.taken_over_s,
        "imported_exactly_once": proof.imported,
        "database_is_captured": proof.plans,
        "views": proof.views,
    }


def summary(play: Play, proof: Proof) -> list[Any]:
    stored, total = proof.stored, play.latencies()
    rows = [
        _claim(
            not (stored.lost or stored.twice),
            f"{stored.acknowledged:,} events acknowledged, {stored.lost} lost, {stored.twice} stored twice",
        ),
        _claim(not stored.out_of_order, f"order per key: {stored.out_of_order:,} records out of order"),
        *(
            _claim(
                not group.lost,
                f"group {group.group}: {words.count(group.delivered)} delivered, {group.lost} lost, "
                f"{words.count(group.repeated)} repeated",
            )
            for group in proof.delivered
        ),
        *([_claim(proof.taken_over_s is not None, _takeover(proof))] if proof.killed else []),
        _claim(proof.imported, f"import: {words.count(play.importing.line, 'line')} stored exactly once"),
        *(_claim(*_verified(proof, name)) for name in VIEWS if proof.spark),
        _claim(
            proof.plans,
            f"plans: the log has the rows of the database, after {words.count(play.plan_changes, 'change')}",
        ),
    ]
    speed = words.rate(stored.acknowledged, proof.seconds)
    pace = f"{speed} appended on two processes, end to end p50 {_ms(total, 50)}, p99 {_ms(total, 99)}"
    verdict = "[bold green]All of it holds.[/]" if proof.holds else "[bold red]Not all of it holds.[/]"
    return [
        "",
        "[bold]Compared with what the log holds:[/]",
        output.table(("", ""), rows),
        "",
        f"{pace}. {verdict}",
    ]


def _takeover(proof: Proof) -> str:
    if proof.taken_over_s is None:
        return "nobody took over from the killed member"
    return f"a killed member's partitions were taken over after {words.span(proof.taken_over_s)}"


def _verified(proof: Proof, name: str) -> tuple[bool, str]:
    if proof.views is None:
        return False, f"{name}: the Spark job did not come to its end"
    found = proof.views[name]
    kept = f"{words.count(found['rows'], 'row')} and {words.count(found['late'], 'late event')}"
    if found["verdict"] != "equal":
        return False, f"{name}: {kept}, {found['verdict']} from its recomputation"
    return True, f"{name}: {kept}, equal to its recomputation from the log"


def _claim(holds: bool, text: str) -> tuple[str, str]:
    return ("[green]✓[/]" if holds else "[red]✗[/]"), text
