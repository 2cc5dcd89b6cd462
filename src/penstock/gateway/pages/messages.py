"""Messages of a topic, for looking at: from a place on, or the newest; filtered.

A filter is words that must occur and `column=value`, or an expression of the gateway's small language.
Bounded: so many records are looked at for one answer, and the answer says how many that were.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import BadOption, PenstockError
from penstock.follow.where import Where
from penstock.gateway import filter as filters
from penstock.gateway.facts.records import columns_of
from penstock.log.json_rows import to_json
from penstock.log.port import to_us
from penstock.places import offsets_of, parse_place

if TYPE_CHECKING:
    from penstock.app.app import App

SHOWN = 50
LOOKED_AT_MAX = 20_000
_SHOWN_CHARACTERS = 4_000  # of one
_HELD_CHARACTERS = 16 << 20  # of all that are found; one is always taken
_OWN = ("_partition", "_offset", "_timestamp", "_deleted")
_FILTER_MAX = 500
_MAYBE = re.compile(r"[<>']|==|!=|\s=\s|\b(is|in|and|or|not)\b.*[(=n]", re.IGNORECASE)  # an expression
_COMPARED = re.compile(
    r"[\w`)]\s*(==|!=|<=|>=|<|>|\s=\s)\s*[\w'`(-]|\bin\s*\(|\bis\s+(not\s+)?null\b", re.IGNORECASE
)
_JOINED = re.compile(r"\b(and|or|not)\b.*[(=]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Message:
    """`value`: the record as JSON, as it could be sent again."""

    partition: int
    offset: int
    at_us: int
    value: str
    deleted: bool = False

    @property
    def is_long(self) -> bool:
        """Then a page shows its beginning."""
        return len(self.value) > _SHOWN_CHARACTERS

    @property
    def shown(self) -> str:
        return f"{self.value[:_SHOWN_CHARACTERS]}…" if self.is_long else self.value


@dataclass(frozen=True, slots=True)
class Found:
    """Messages, newest first where `newest`. `after`: where the next ones begin, by partition."""

    messages: tuple[Message, ...]
    looked_at: int
    newest: bool
    after: str = ""
    truncated: bool = False  # there may be more that was not looked at


@dataclass(frozen=True, slots=True)
class Filter:
    """Which messages are wanted: by an expression over whole batches, or by the text of each."""

    where: Where | None
    terms: tuple[tuple[str, str, str], ...]

    def matches(self, row: dict[str, Any], told: str) -> bool:
        for name, equals, value in self.terms:
            if equals and name in row:
                if _text(row[name]).lower() != value.lower():
                    return False
            elif f"{name}{equals}{value}".lower() not in told.lower():
                return False
        return True


def filter_of(text: str, columns: pa.Schema) -> Filter:
    """What a text asks for. Raises BadOption for one too long to be meant, BadQuery for an expression."""
    if len(text) > _FILTER_MAX:
        raise BadOption("the filter is too long.", hint="a few words, column=value, or an expression")
    terms = tuple(term.partition("=") for term in text.split())
    if _MAYBE.search(text):
        try:
            return Filter(filters.where(text, columns), ())
        except PenstockError:
            if _is_expression(text, [name for name, equals, _ in terms if equals], columns.names):
                raise
    return Filter(None, terms)


def _is_expression(text: str, named: list[str], columns: list[str]) -> bool:
    """Whether a text that cannot be read as one was meant to be: `it's` and `page=<b>` are only words."""
    is_plain = bool(named) and all(name in columns for name in named)
    is_joined = bool(_JOINED.search(text)) and any(name in columns for name in named)
    return is_joined or (bool(_COMPARED.search(text)) and not is_plain)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def newest(app: App, topic: str, *, partition: int | None, filter_: str, limit: int = SHOWN) -> Found:
    """The newest messages that match."""
    opened = app.log.topic(topic)
    wanted = filter_of(filter_, columns_of(opened))
    found: list[Message] = []
    looked_at, truncated = 0, False
    bounds = {n: b for n, b in opened.bounds().items() if partition in (None, n)}
    room = max(limit, LOOKED_AT_MAX // max(1, len(bounds)))
    for number, (first, end) in bounds.items():
        kept = _Kept(limit, _HELD_CHARACTERS // max(1, len(bounds)))
        width, start = limit if not filter_ else 2_000, end
        while start > first and not kept.is_full and end - start < room:
            until, start = start, max(first, start - width)
            kept.put_before(_messages(app.log.port.read(topic, number, start, until=until), wanted))
            looked_at += until - start
        truncated |= start > first or kept.left_out
        found += kept.messages
    found.sort(key=lambda message: (message.at_us, message.partition, message.offset), reverse=True)
    return Found(tuple(found[:limit]), looked_at, newest=True, truncated=truncated)


class _Kept:
    """The newest messages of a partition, no more than so many and so long; found from its end backwards."""

    def __init__(self, most: int, characters_max: int) -> None:
        self._most, self._characters_max = most, characters_max
        self.messages: list[Message] = []
        self.left_out = False
        self._characters = 0

    @property
    def is_full(self) -> bool:
        return len(self.messages) >= self._most or self.left_out or self._characters > self._characters_max

    def put_before(self, piece: Iterator[Message]) -> None:
        """Those before what is there, the oldest first: of them, too, the newest are kept."""
        kept: deque[Message] = deque()
        for message in piece:
            kept.append(message)
            self._characters += len(message.value)
            while len(kept) > 1 and self._has_too_many(len(kept)):
                self._characters -= len(kept.popleft().value)
                self.left_out = True
        self.messages = [*kept, *self.messages]

    def _has_too_many(self, more: int) -> bool:
        return len(self.messages) + more > self._most or self._characters > self._characters_max


def onwards(
    app: App, topic: str, *, place: str, after: str, partition: int | None, filter_: str, limit: int = SHOWN
) -> Found:
    """Messages from a place on: earliest, an offset or a time, or where an earlier answer ended."""
    opened = app.log.topic(topic)
    wanted = filter_of(filter_, columns_of(opened))
    starts = _resumed(after) if after else {}
    if not starts:
        starts = offsets_of(opened, parse_place(place, now=datetime.now(UTC)), partition)
    found: list[Message] = []
    nexts: dict[int, int] = {}
    looked_at, truncated = 0, False
    room = max(limit, LOOKED_AT_MAX // max(1, len(starts)))
    for number, start in starts.items():
        first, end = app.log.port.bounds(topic, number)
        begin = min(max(first, start), end)
        until = min(end, begin + room)
        own = []
        characters = _HELD_CHARACTERS // len(starts)
        for message in _messages(app.log.port.read(topic, number, begin, until=until), wanted):
            own.append(message)
            characters -= len(message.value)
            if len(own) >= limit or characters < 0:
                until = message.offset + 1
                break
        looked_at += until - begin
        nexts[number] = until
        truncated |= until < end
        found += own
    found.sort(key=lambda message: (message.at_us, message.partition, message.offset))
    shown = found[:limit]
    for message in found[limit:]:  # those are for the next page
        nexts[message.partition] = min(nexts[message.partition], message.offset)
        truncated = True
    token = ",".join(f"{number}:{offset}" for number, offset in sorted(nexts.items())) if truncated else ""
    return Found(tuple(shown), looked_at, newest=False, after=token, truncated=truncated)


def _resumed(text: str) -> dict[int, int]:
    try:
        pairs = [part.split(":") for part in text.split(",")]
        return {int(number): int(offset) for number, offset in pairs}
    except ValueError:
        raise BadOption("that is no place to go on from.", hint="begin anew") from None


def _messages(batches: Iterator[pa.RecordBatch], wanted: Filter) -> Iterator[Message]:
    for batch in batches:
        kept = batch if wanted.where is None else batch.filter(pa.array(wanted.where.holds(batch)))
        for row in kept.to_pylist():
            own = {name: to_json(value) for name, value in row.items() if name not in _OWN}
            told = json.dumps(own, ensure_ascii=False)
            if wanted.matches(own, told):
                yield Message(
                    row["_partition"],
                    row["_offset"],
                    to_us(row["_timestamp"]),
                    told,
                    bool(row.get("_deleted")),
                )
