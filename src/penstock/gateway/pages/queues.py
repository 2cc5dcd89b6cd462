"""Queues: what waits, what is being worked on, and what died; redrive."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from penstock.errors import BadOption
from penstock.gateway.pages import words
from penstock.gateway.pages.health import Sentence, Words
from penstock.gateway.pages.look import Look
from penstock.gateway.pages.page import PAGES, Asked, Page
from penstock.gateway.pages.site import Site
from penstock.log.port import to_us
from penstock.queue.delivery import Attempt, DeadLetter
from penstock.queue.message import JSON

_LETTERS = 50
_TEXT_MAX = 4_000


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter, as it is shown. `text`: its body, None where it is no text."""

    id: str
    key: str
    text: str | None
    is_whole: bool  # what is shown in part cannot be edited: the rest would be lost
    size: int
    cause: str
    reason: str
    attempts: int
    at_us: int | None
    headers: tuple[tuple[str, str], ...]
    history: tuple[Attempt, ...]


@PAGES.at("/queues")
def queues(site: Site, look: Look, asked: Asked) -> Page:
    return Page("queues.html", "Queues", {"sentence": _sentence(look)})


def _sentence(look: Look) -> Sentence:
    if not look.queues:
        return (Words("There are no queues yet.", strong=True),)
    dead = sum(queue.dead for queue in look.queues)
    ready = sum(queue.ready for queue in look.queues)
    if dead:
        return (
            Words(f"{words.count(dead, 'message')} could not be worked off", strong=True, colour="late"),
            Words(f"; {words.count(ready, 'message')} wait."),
        )
    return (Words(f"{words.count(ready, 'message')} wait, none is dead.", strong=True),)


@PAGES.at("/queues/{name}")
def queue(site: Site, look: Look, asked: Asked) -> Page:
    found = site.watcher.queueing.queue(asked.names["name"])
    known = next((each for each in look.queues if each.name == found.name), None)
    stats = found.stats()
    letters = [_letter(each) for each in found.dead_letters(limit=_LETTERS)]
    settings = [(name.replace("_", " "), words.cell(value)) for name, value in asdict(found.settings).items()]
    facts = {
        "queue": found, "stats": stats, "letters": letters, "settings": settings[1:], "known": known,
        "doc": site.app.declared_queues.said_of(found.name),
        "sentence": _one(stats.ready, stats.dead, stats.consumers),
    }  # fmt: skip
    return Page("queue.html", found.name, facts)


def _one(ready: int, dead: int, consumers: int | None) -> Sentence:
    waits = Words(f"{words.count(ready, 'message')} wait" if ready != 1 else "1 message waits", strong=True)
    work = "" if consumers is None else f", {words.count(consumers, 'consumer')} here."
    if not dead:
        return waits, Words(f"{work.rstrip('.')}; none is dead.")
    verb = "is" if dead == 1 else "are"
    return (
        waits,
        Words("; "),
        Words(f"{words.count(dead, 'message')} {verb} dead", strong=True, colour="late"),
        Words("."),
    )


def _letter(found: DeadLetter) -> Letter:
    try:
        text: str | None = found.message.body.decode()
    except UnicodeDecodeError:
        text = None
    headers = tuple((name, str(value)) for name, value in found.message.headers.items())
    return Letter(
        found.id, found.message.key, _cut(text), text is not None and len(text) <= _TEXT_MAX,
        len(found.message.body), found.cause, found.reason, found.attempts,
        to_us(found.at) if found.at else None, headers, found.history,
    )  # fmt: skip


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"


def redrive(site: Site, name: str, *, id_: str, died_us: str, body: str | None) -> int:
    """Publish dead letters anew: all, or that one, with another body if one is given."""
    found = site.watcher.queueing.queue(name)
    if not id_:
        return found.redrive()
    edit = (lambda letter: _edited(letter, body)) if body is not None else None
    return found.redrive(lambda letter: _is_it(letter, id_, died_us), edit=edit, limit=1)


def _edited(letter: DeadLetter, body: str) -> bytes:
    """As bytes, so that it stays of the type that it was."""
    if letter.message.content_type == JSON:
        try:
            json.loads(body)
        except ValueError as error:
            raise BadOption(f"that is no JSON ({error}).", hint="the message was JSON: leave it so") from None
    return body.encode()


def discard(site: Site, name: str, *, id_: str, died_us: str) -> int:
    """Remove one dead letter for good."""
    return site.watcher.queueing.queue(name).purge_dead(lambda letter: _is_it(letter, id_, died_us))


def _is_it(letter: DeadLetter, id_: str, died_us: str) -> bool:
    """Whether it is the one that was chosen. Programs give ids, and may give one twice."""
    return letter.id == id_ and died_us in ("", str(to_us(letter.at) if letter.at else None))
