"""What the demo shows in the terminal: where the page is, how all of it fares, and what is proved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.cli import output, words
from penstock.cli.demo import latency
from penstock.cli.demo.shop import MAIL_TRIES

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable

    from rich.console import Group

    from penstock.cli.demo.mails import Sent
    from penstock.cli.demo.play import Play
    from penstock.cli.demo.proof import Proof

MEMORY_MAX = 6 * 2**30
_STORY_LINES = 5


def scene(play: Play) -> Group:
    from rich.console import Group

    parts: list[Any] = [_headline(play), "", output.facts(_facts(play)), ""]
    queries = play.query_facts()
    if queries:
        parts += [output.table(("query", "rows/s#", "batch#", "behind#", "late#"), map(_row, queries)), ""]
    parts += (f"[dim]{at:5.1f} s[/]  {output.escape(text)}" for at, text in play.story.lines[-_STORY_LINES:])
    return Group(*parts)


def _headline(play: Play) -> str:
    if not play.address:
        return "[bold]A shop, and what Penstock makes of it.[/]  [dim]Ctrl-C ends it[/]"
    return f"[bold]The shop is open: [cyan]{output.escape(play.address)}[/][/]  [dim]Ctrl-C ends it[/]"


def _facts(play: Play) -> list[tuple[str, str]]:
    found = [
        ("events", f"{play.per_second():,.0f}/s, {words.count(play.acknowledged())} so far"),
        ("groups", _groups(play)),
        ("import", _import(play)),
    ]
    told = play.customers.told if play.customers else {}
    if "changes" in told:
        found.append(("database", f"{words.count(told['changes'], 'change')} of rows, captured"))
    if "carts" in told:
        found.append(("carts", _carts(told["carts"])))
    found.append(("mails", _mails(play)))
    if play.queries:
        found.append(("queries", _queries(play)))
    if play.memory:
        memory = f"{words.size(play.memory.bytes)} in {play.memory.processes} processes"
        found.append(("memory", memory))
    return found


def _groups(play: Play) -> str:
    recent = sum((one.recent_latencies() for one in play.members if not one.killed), _empty())
    lags = [lag for info in play.lag.values() for lag in info.lag]
    killed = [one.title for one in play.members if one.killed]
    gone = f"; [red]{', '.join(killed)} killed[/]" if killed else ""
    behind = words.count(sum(lag.records for lag in lags), "record")
    took = f"{_ms(recent, 50)} (p50), {_ms(recent, 99)} (p99)"
    return f"page views reach mailer and audit in {took}, {behind} behind{gone}"


def _import(play: Play) -> str:
    done = play.importing
    again = f"{words.count(done.sent_again, 'time')} sent again, {done.stored_again} stored again"
    return f"{words.count(done.line, 'line')}, {again}"


def _carts(told: dict[str, int]) -> str:
    refused = f"{words.count(told['refused'], 'command')} refused"
    return f"{told['begun']} begun, {told['checked_out']} checked out, {refused}"


def _queries(play: Play) -> str:
    found = play.query_facts()
    if not found:
        stage = play.queries.told.get("stage", "Spark is starting") if play.queries else ""
        return f"[dim]{output.escape(stage)} …[/]"
    begun = sum(query["begun"] for query in found)
    late = sum(query["late"] for query in found)
    return f"{begun} of {len(found)} have results, {words.count(late, 'late row')} kept aside"


def _row(query: dict[str, Any]) -> tuple[str, ...]:
    mark = "" if query["state"] == "running" else f" [yellow]({query['state']})[/]"
    return (
        output.escape(query["name"]) + mark,
        f"{query['rows_per_s']:,.0f}",
        f"{query['batch_ms']:,} ms" if query["batch_ms"] is not None else words.NONE,
        words.span(query["lag_s"]),
        words.count(query["late"]),
    )


def _ms(buckets: Counter[int], percent: float) -> str:
    found = latency.percentile_ms(buckets, percent)
    return words.NONE if found is None else f"{found:.1f} ms"


def _mails(play: Play) -> str:
    mails = play.mails
    given_up = f"{words.count(mails.dead())} without an address given up after {MAIL_TRIES} tries"
    return f"{mails.sent:,} of {mails.published:,} sent; {given_up}"


def line(play: Play) -> str:
    """The same for a file or a pipe: one line."""
    recent = sum((one.recent_latencies() for one in play.members if not one.killed), _empty())
    parts = [
        f"{play.per_second():,.0f} events/s, {words.count(play.acknowledged())} so far",
        f"read within {_ms(recent, 99)} (p99)",
    ]
    found = play.query_facts()
    if found:
        behind = max((query["lag_s"] for query in found), default=0.0)
        begun = sum(query["begun"] for query in found)
        parts.append(f"{begun} of {len(found)} queries have results, at most {words.span(behind)} behind")
    if play.memory:
        parts.append(words.size(play.memory.bytes))
    return f"{play.story.seconds():5.1f} s  {'; '.join(parts)}"


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
        "page": play.address or None,
        "queries": len(play.query_facts()),
        "events": proof.events,
        "events_per_second": round(proof.events / max(proof.seconds, 1e-6)),
        "stored": asdict(proof.stored),
        "groups": [asdict(group) for group in proof.delivered],
        "latency_p50_ms": latency.percentile_ms(total, 50),
        "latency_p99_ms": latency.percentile_ms(total, 99),
        "views_behind_p50_s": _percentile(play.lags_s, 50),
        "views_behind_p99_s": _percentile(play.lags_s, 99),
        "memory_bytes_max": play.memory_max or None,
        "taken_over_s": proof.taken_over_s,
        "imported_exactly_once": proof.imported,
        "database_is_captured": proof.captured,
        "carts": asdict(proof.carts),
        "mails": asdict(proof.mails),
        "views": proof.views,
    }


def _percentile(values: list[float], percent: float) -> float | None:
    if not values:
        return None
    ordered = sorted(values)
    return round(ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)], 3)


def summary(play: Play, proof: Proof) -> list[Any]:
    return [
        "",
        "[bold]Compared with what the log holds:[/]",
        output.table(("", ""), [_claim(*claim) for claim in _claims(play, proof)]),
        "",
        output.facts(_figures(play, proof)),
        "",
        _verdict(proof),
    ]


def _verdict(proof: Proof) -> str:
    if not proof.holds:
        return "[bold red]Not all of it holds.[/]"
    if proof.cut_short:
        return "[bold green]What there was holds[/]; it was stopped before every query had begun."
    return "[bold green]All of it holds.[/]"


def _claims(play: Play, proof: Proof) -> Iterable[tuple[bool, str]]:
    stored = proof.stored
    yield (
        not (stored.lost or stored.twice),
        f"{stored.acknowledged:,} page views acknowledged, {stored.lost} lost, {stored.twice} stored twice",
    )
    yield not stored.out_of_order, f"order per key: {stored.out_of_order:,} records out of order"
    for group in proof.delivered:
        given = f"{words.count(group.delivered)} delivered, {group.lost} lost"
        yield not group.lost, f"group {group.group}: {given}, {words.count(group.repeated)} repeated"
    if proof.killed:
        yield proof.taken_over_s is not None, _takeover(proof)
    yield proof.imported, f"import: {words.count(play.importing.line, 'line')} stored exactly once"
    yield proof.captured, "database: the log has the rows of its three tables"
    recorded = f"{words.count(proof.carts.events, 'event')} of {words.count(proof.carts.carts, 'cart')}"
    yield proof.carts.holds, f"event sourcing: {recorded}, each published once and in order"
    yield proof.mails.holds, _sent(proof.mails)
    if proof.views is not None:
        told = {name: found for name, found in proof.views.items() if not proof.is_excused(found)}
        yield from (_verified(name, found) for name, found in told.items())
        if len(proof.views) < len(play.definitions) and not proof.cut_short:
            yield False, "the Spark job did not come to its end"


def _figures(play: Play, proof: Proof) -> list[tuple[str, str]]:
    total, behind, lasted = play.latencies(), _percentile(play.lags_s, 99), words.span(proof.seconds)
    found = [
        ("events", f"{words.rate(proof.events, proof.seconds)}, {words.count(proof.events)} in {lasted}"),
        ("append to reader", f"p50 {_ms(total, 50)}, p99 {_ms(total, 99)}"),
    ]
    if play.queries:
        late = "" if behind is None else f", at most {words.span(behind)} behind (p99)"
        found.append(("queries", f"{len(play.query_facts())}{late}"))
        equal = sum(one["verdict"] == "equal" for one in (proof.views or {}).values())
        found.append(
            ("verify", f"{equal} of {len(play.definitions)} equal to their recomputation from the log")
        )
    if play.memory_max:
        within = "" if play.memory_max <= MEMORY_MAX else " [red](more than 6 GiB)[/]"
        found.append(("memory", f"{words.size(play.memory_max)} at most, of all processes{within}"))
    return found


def _sent(mails: Sent) -> str:
    poison = words.count(mails.poison, "poison message")
    given_up = f"{poison}: {mails.given_up} given up after {MAIL_TRIES} tries, {mails.mended} mended and sent"
    return f"mails: {mails.once:,} of {mails.published:,} sent once; {given_up}"


def _takeover(proof: Proof) -> str:
    if proof.taken_over_s is None:
        return "nobody took over from the killed member"
    return f"a killed member's partitions were taken over after {words.span(proof.taken_over_s)}"


def _verified(name: str, found: Any) -> tuple[bool, str]:
    kept = f"{words.count(found['rows'], 'row')}, {words.count(found['late'])} late"
    if found["verdict"] == "equal":
        return True, f"{name}: {kept}, equal to its recomputation from the log"
    reason = f": {found['reason']}" if found["reason"] else ""
    return False, f"{name}: {kept}, {found['verdict']}{output.escape(reason)}"


def _claim(holds: bool, text: str) -> tuple[str, str]:
    return ("[green]✓[/]" if holds else "[red]✗[/]"), text
