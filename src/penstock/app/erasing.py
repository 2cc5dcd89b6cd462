"""`app.forget`: a subject's key is destroyed, and what can still be read of them is told.

The destruction of the key is the commit: before it nothing has happened, after it everything that was sealed
is unreadable, wherever it is. What follows may be repeated: stores are rid of what they do not use any more,
and files are searched for values that somebody has written on in clear.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.erasure.cipher import Key
from penstock.erasure.keys import subject_of
from penstock.erasure.traces import Held, Traces, find_sealed, find_traces, pieces_under
from penstock.errors import BadOption, UnknownSubject
from penstock.follow.target import DeltaTarget, ParquetTarget, SearchTarget, SQLiteTarget
from penstock.kafka.address import Address
from penstock.opening import is_kafka
from penstock.queue.opening import FOLDER as QUEUES

if TYPE_CHECKING:
    from penstock.app.app import App

_BYTES_MIN = 4  # a shorter text is found everywhere, and means nothing
_BUSY_S = 10.0
_STORES = ("views", "sourcing", "follow", QUEUES)
_Local = SQLiteTarget | SearchTarget | DeltaTarget | ParquetTarget


@dataclass(frozen=True, slots=True)
class Clear:
    """A file in which something of the subject can be read without any key."""

    path: str
    inside: str
    values: int


@dataclass(frozen=True, slots=True)
class Erasure:
    """What `app.forget` has done, or with `dry_run` would do."""

    subject: str
    destroyed: bool  # the key, by this call
    again: bool  # it was destroyed before
    places: tuple[str, ...]  # topics and aggregates with something of the subject, sealed
    values: int | None  # how many different ones; None where that cannot be known any more
    more: bool  # there are more of them than are gathered: a part was not looked for
    searched: int | None  # how many were looked for; None where nobody has looked
    clear: tuple[Clear, ...]  # and where they can be read
    copies: tuple[str, ...]  # files that have the destroyed key, as a backup of the key store has
    unread: tuple[str, ...]  # files that could not be looked into
    purged: tuple[str, ...]  # stores that were written anew, without what they do not use any more
    unpurged: tuple[str, ...]  # stores that could not be, mostly since others are using them
    left: tuple[str, ...]  # what is out of reach: the rest is up to whoever runs it

    @property
    def complete(self) -> bool:
        """Whether the key is destroyed, and somebody has looked everywhere here and found nothing."""
        looked = self.searched is not None and not self.more and not self.unread
        found = self.clear or self.copies or self.unpurged
        return (self.destroyed or self.again) and looked and not found


def forget(app: App, subject: object, *, dry_run: bool, search: bool, look_for: Sequence[str]) -> Erasure:
    name = subject_of(subject)
    _check_texts(look_for, search=search)
    keys = app.log.port.keys
    key = keys.store.find([name]).get(name)
    again = key is None and keys.store.is_forgotten(name)
    if key is None and not again:
        raise UnknownSubject(name)
    held = _held(app, key) if key and search else None
    destroyed = not dry_run and keys.destroy(name)
    purged, unpurged = ([], []) if dry_run else _purged(app)
    texts = {value for value in held.values if len(value) >= _BYTES_MIN} if held else set()
    texts.update(text.encode() for text in look_for)
    looks = held is not None or bool(texts)
    secret = [key.secret] if destroyed and key else []
    found = _searched(app, sorted(texts), secret) if looks else []
    return Erasure(
        name, destroyed, again,
        places=tuple(sorted(held.places)) if held else (),
        values=len(held.values) if held else None,
        more=held.more if held else False,
        searched=len(texts) if looks else None,
        clear=tuple(each for place, traces in found for each in _clear(place, traces, len(texts))),
        copies=tuple(each for place, traces in found for each in _copies(place, traces, len(texts))),
        unread=tuple(str(place / path) for place, traces in found for path, _ in traces.unread),
        purged=tuple(purged),
        unpurged=tuple(unpurged),
        left=tuple(_left(app)),
    )  # fmt: skip


def _check_texts(look_for: Sequence[str], *, search: bool) -> None:
    if look_for and not search:
        raise BadOption("look_for and search=False contradict each other.", hint="choose one of them")
    if any(len(text.encode()) < _BYTES_MIN for text in look_for):
        raise BadOption(
            "a text to look for is too short: it would be found everywhere.",
            hint=f"give {_BYTES_MIN} characters or more",
        )


def _places(app: App) -> list[Path]:
    """Everything on this machine that the app writes: folders and files."""
    sent = [path for target in _sent(app) for path in (target.path, _beside(target.path))]
    return [app.home, *(path for path in (app.checkpoints, *sent) if app.home not in path.parents)]


def _sent(app: App) -> list[_Local]:
    """What `to=` writes on this machine."""
    targets = (target for targets in app.followed.values() for target in targets)
    return list(dict.fromkeys(target for target in targets if isinstance(target, _Local)))


def _beside(path: Path) -> Path:
    """The write-ahead log, where it is a SQLite file."""
    return path.with_name(f"{path.name}-wal")


def _held(app: App, key: Key) -> Held:
    files = (piece for place in _places(app) for piece in pieces_under(place))
    return find_sealed(chain(files, _records(app) if is_kafka(app.address) else ()), key)


def _records(app: App) -> Iterator[bytes]:
    """The personal columns of topics on servers."""
    for name in app.log.topics():
        topic = app.log.topic(name)
        for batch in topic.read() if topic.settings.personal else ():
            for each in topic.settings.personal:
                yield from (
                    value for value in batch.column(each.column).cast(pa.binary()).to_pylist() if value
                )


def _searched(app: App, texts: Sequence[bytes], secret: Sequence[bytes]) -> list[tuple[Path, Traces]]:
    """For the values, and for copies of the key."""
    places = [place for place in _places(app) if place.exists()]
    return [(place, find_traces(place, *texts, *secret, keys=[])) for place in places]


def _clear(place: Path, traces: Traces, texts: int) -> Iterator[Clear]:
    clear = [trace for trace in traces.clear if trace.text < texts]
    for path, inside in sorted({(trace.path, trace.inside) for trace in clear}):
        values = {trace.text for trace in clear if (trace.path, trace.inside) == (path, inside)}
        yield Clear(str(place / path), inside, len(values))


def _copies(place: Path, traces: Traces, texts: int) -> list[str]:
    """Files with the key itself, which is looked for after the texts."""
    return sorted({str(place / trace.path) for trace in traces.clear if trace.text == texts})


def _purged(app: App) -> tuple[list[str], list[str]]:
    """Rid stores of deleted rows in free pages and write-ahead logs: those it was done to, and the others."""
    kept = [path for folder in _STORES for path in sorted((app.home / folder).glob("*.db"))]
    sent = [each.path for each in _sent(app) if isinstance(each, SQLiteTarget) and each.path.exists()]
    tried = {str(path): _written_anew(path) for path in (*kept, *sent)}
    return [path for path, done in tried.items() if done], [path for path, done in tried.items() if not done]


def _written_anew(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)) as db:
            db.execute("PRAGMA temp_store=MEMORY")  # or a copy would be in a temporary file
            db.execute("PRAGMA secure_delete=ON")
            db.execute("VACUUM")
            (in_use, *_) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error:  # the key is destroyed by now, so this is told, and not raised
        return False
    return not in_use


def _left(app: App) -> Iterator[str]:
    """Where this process cannot look, in words, and without what is secret in an address."""
    if is_kafka(app.address):
        yield f"the log at {Address.shown(app.address)}: only what is sealed there is known"
    if app.views is not None:
        yield "the store of the views, which is on a server"
    if app.declared_queues.is_on_server:
        yield "the queues, which are on a server"
    for name, aggregates in app.sourced.items():
        if aggregates.is_on_server:
            yield f'the events of "{name}", which are on a server'
    for name, targets in app.followed.items():
        yield from (f'what "{name}" sends to {to.label}' for to in targets if not isinstance(to, _Local))
