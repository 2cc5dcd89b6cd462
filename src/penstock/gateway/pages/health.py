"""Is it healthy, and if nothing comes out, why? One sentence, and what needs somebody, in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from penstock.gateway.pages import words
from penstock.gateway.pages.look import Look, ViewLook

LAG_S = 60.0  # a group that is further behind needs somebody
COPY_RECORDS = 1_000  # and a copy that lacks more than this
_TOGETHER = 3  # views that are behind, told in one line

Colour = Literal["flow", "final", "open", "late", "fail", "revise"]


@dataclass(frozen=True, slots=True)
class Words:
    """A piece of a sentence; `strong` where it is what matters, `href` where it leads somewhere."""

    text: str
    strong: bool = False
    href: str = ""
    colour: str = ""


Sentence = tuple[Words, ...]


@dataclass(frozen=True, slots=True)
class Need:
    """Something for somebody to do. `kind` and `about` name it for as long as it lasts."""

    kind: Literal["failed", "stopped", "behind", "quiet", "late", "dead", "copy", "lag", "differs", "log"]
    about: str
    colour: Colour
    text: str
    why: str
    action: str = ""
    href: str = ""
    blocks: bool = True


def url(*parts: str) -> str:
    """A path of the pages. Names are quoted whole: a slash in one is no slash of ours.

    >>> url("topics", "a/b c")
    '/topics/a%2Fb%20c'
    """
    return "/" + "/".join(quote(part, safe="") for part in parts)


def overview(look: Look) -> Sentence:
    """The first thing to know."""
    if look.error:
        return (
            Words("The log does not answer.", strong=True, colour="fail"),
            Words(f" What is shown is from {words.clock(look.at_us)}: {look.error}"),
        )
    views = list(look.views.values())
    if not views:
        return _without_views(look)
    if not look.running:
        return _not_running(look, views)
    if not look.begun and not any(view.standing == "failed" for view in views):
        return (
            Words("It is coming up.", strong=True),
            Words(" No view has stored a batch yet: Spark takes a while to start."),
        )
    current = [view for view in views if view.standing == "live"]
    if len(current) == len(views):
        noun = "view is" if len(views) == 1 else "views and streams are"
        every = f"All {len(views)} {noun} current." if len(views) > 1 else "Its one view is current."
        return Words(every, strong=True), Words(_behind(look))
    return (
        Words(f"{len(current)} of {len(views)} views are current. ", strong=True),
        *_worst(views, look.at_us),
    )


def _without_views(look: Look) -> Sentence:
    count = len(look.shown_topics)
    if not count:
        return Words("There is nothing here yet.", strong=True), Words(" Create a topic and append to it.")
    rate = f", {words.rate(look.events.now)} coming in" if look.events.now else ", and nothing is coming in"
    return (Words(words.count(count, "topic"), strong=True), Words(f"{rate}. There are no views."))


def _not_running(look: Look, views: list[ViewLook]) -> Sentence:
    unread = sum(view.lag_records for view in views)
    failed = next((view for view in views if view.standing == "failed"), None)
    if failed is not None:
        return view(failed, look.at_us, named=True)
    told = look.published
    since = f" since {words.clock(told.status.at_us)}" if told else ""
    rest = f": {words.count(unread, 'record')} wait to be read" if unread else ""
    said = f"{since}{rest}. Start it with penstock run."
    return Words("Nobody runs it", strong=True, colour="open"), Words(said)


def _behind(look: Look) -> str:
    slowest = max(look.views.values(), key=lambda each: each.lag_s, default=None)
    if slowest is None or slowest.lag_s < 1:
        return f" {words.rate(look.events.now)} come in, and nothing waits."
    return f" {words.rate(look.events.now)} come in; {slowest.name} is {words.span(slowest.lag_s)} behind."


def _worst(views: list[ViewLook], now_us: int) -> Sentence:
    order = ("failed", "behind", "not run", "stopped", "waiting", "live")
    worst = min(views, key=lambda each: (order.index(each.standing), -each.lag_s))
    return view(worst, now_us, named=True)


def view(found: ViewLook, now_us: int, *, named: bool = False) -> Sentence:
    """How one view fares; `named` where the sentence is not on its own page."""
    subject = Words(found.name, strong=True, href=url("views", found.name)) if named else Words("It")
    if found.standing == "live":
        verb = " is live" if named else "Live"
        return (
            *((subject,) if named else ()),
            Words(verb, strong=True),
            Words(f", {words.span(found.lag_s)} behind."),
        )
    return (subject, *_trouble(found, now_us))


def _trouble(found: ViewLook, now_us: int) -> Iterator[Words]:
    match found.standing:
        case "failed":
            given_up = found.failure is not None and found.failure.given_up
            yield Words(f" failed and {'was given up' if given_up else 'is tried again'}", colour="fail")
            yield Words(f": {found.failure.error if found.failure else 'it stopped'}")
        case "not run":
            yield Words(" has not stored a batch yet.")
        case "behind":
            unread = words.count(found.lag_records, "record")
            yield Words(f" is {words.span(found.lag_s)} behind", strong=True, colour="late")
            yield Words(f": {unread} of {', '.join(found.topics)} are not read yet.")
        case "waiting":
            since = words.roughly((now_us - (found.quiet_us or now_us)) / 1e6)
            topic = blocker(found)
            href = url("topics", topic) if topic in found.topics else ""
            yield Words(f" has been quiet for {since}: it waits for ")
            yield Words(topic, strong=True, href=href, colour="open")
            yield Words(f", whose last record is from {words.clock(found.quiet_us)}.")
        case _:
            yield Words(" is not running.")


def blocker(found: ViewLook) -> str:
    """What its watermark waits for."""
    return (found.held.topic if found.held else None) or ", ".join(found.topics)


# ---- what needs somebody ---------------------------------------------------------------------------


def needs(look: Look) -> tuple[Need, ...]:
    """Worst first, each with what to do."""
    found = [*_log(look), *_run(look)]
    for each in look.views.values():
        found += [*_of_view(each), *_of_rows(each, look)]
    found += [*_of_groups(look), *_of_queues(look)]
    return tuple(sorted(found, key=lambda need: (not need.blocks, need.colour != "fail")))


def at_a_glance(look: Look) -> tuple[Need, ...]:
    """Many views that are behind have one reason, and would hide what else there is."""
    every = needs(look)
    behind = [need for need in every if need.kind == "behind"]
    if len(behind) < _TOGETHER:
        return every
    slow = [view for view in look.views.values() if view.standing == "behind"]
    worst = max(slow, key=lambda view: view.lag_s)
    why = f"{worst.name} the most: {words.span(worst.lag_s)}, {words.count(worst.lag_records, 'record')}."
    text = f"{len(slow)} of {len(look.views)} views are behind"
    together = Need("behind", "views", "late", text, why, "Look", url("views"))
    return tuple(together if need is behind[0] else need for need in every if need not in behind[1:])


def _log(look: Look) -> Iterator[Need]:
    if look.error:
        yield Need("log", "log", "fail", "The log does not answer", look.error)


def _run(look: Look) -> Iterator[Need]:
    if not look.views or look.running:
        return
    told = look.published
    why = f"The last run was there {words.ago(told.status.at_us, look.at_us)}." if told else "They never ran."
    yield Need("stopped", "run", "open", "Nobody runs the views", f"{why} Start it with: penstock run APP")


def _of_groups(look: Look) -> Iterator[Need]:
    for group in look.groups:
        if group.seconds <= LAG_S or group.info.group in look.queries:
            continue  # what a query lacks is told of its view
        info, members = group.info, len(group.info.members)
        text = f"{info.group} is {words.span(group.seconds)} behind on {info.topic}"
        reads = f"it has {words.count(members, 'member')}" if members else "it has no members now"
        why = f"{words.count(group.records, 'record')} wait; {reads}."
        href = url("groups", info.group, info.topic)
        yield Need("lag", f"{info.group} {info.topic}", "late", text, why, "Look", href)


def _of_queues(look: Look) -> Iterator[Need]:
    for queue in look.queues:
        if queue.dead:
            verb = "is" if queue.dead == 1 else "are"
            text = f"{words.count(queue.dead, 'message')} {verb} dead in {queue.name}"
            why = f"{queue.last_reason or 'Tried as often as the queue allows.'}"
            yield Need("dead", queue.name, "late", text, why, "Look and redrive", url("queues", queue.name))


def _of_view(found: ViewLook) -> Iterator[Need]:
    href = url("views", found.name)
    if found.failure is not None:
        again = "It was given up" if found.failure.given_up else "It is tried again"
        text, why = (
            f"{found.name} failed at {words.clock(found.failure.at_us)}",
            f"{again}: {found.failure.error}",
        )
        yield Need("failed", found.name, "fail", text, why, "Why?", href)
    elif found.standing == "behind":
        text = f"{found.name} is {words.span(found.lag_s)} behind"
        why = f"{words.count(found.lag_records, 'record')} are not read yet."
        yield Need("behind", found.name, "late", text, why, "Look", href)
    elif found.standing == "waiting" and found.windowed:
        text = f"{blocker(found)} went quiet at {words.clock(found.quiet_us)}"
        why = f"Windows of {found.name} stay open: {found.held.text if found.held else ''}."
        yield Need("quiet", found.name, "open", text, why, "Why?", href, blocks=False)


def _of_rows(found: ViewLook, look: Look) -> Iterator[Need]:
    href = url("views", found.name)
    if found.proof is not None and found.proof.verdict == "different":
        text = f"{found.name} is not what the log says"
        why = f"{words.count(found.proof.differing, 'row')} differ, as of batch {found.proof.batch}."
        yield Need("differs", found.name, "fail", text, why, "See", href)
    if found.behind > COPY_RECORDS and look.running:
        why = f"{words.count(found.behind, 'record')} of its changelog are not in the store."
        yield Need("copy", found.name, "late", f"The copy of {found.name} is behind", why, "Look", href)
    if found.late:
        text = f"{words.count(found.late, 'row')} came too late for {found.name}"
        see = f"/late?of={quote(found.name, safe='')}"
        yield Need(
            "late", found.name, "late", text, "They are kept beside it.", "See them", see, blocks=False
        )
