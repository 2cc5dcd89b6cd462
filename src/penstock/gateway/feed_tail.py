"""The rows of a view or table and every change of them, for a channel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from penstock.app.app import App
from penstock.app.feed import Change, Feed
from penstock.errors import BadOption
from penstock.follow.token import FeedPosition
from penstock.follow.where import Wanted
from penstock.gateway import sse
from penstock.gateway.channel import Entry, Line, Places
from penstock.gateway.json import dumps
from penstock.log.json_rows import to_json


class FeedTail:
    """Every row there is, and then every change."""

    def __init__(self, app: App, name: str, *, where: Wanted, rows_max: int, bytes_max: int) -> None:
        self._app, self._name, self._where = app, name, where
        self._held = _Held(name, rows_max, bytes_max)
        self._feed: Feed | None = None

    def run(self, line: Line) -> None:
        rows: dict[str, bytes] = {}
        places: Places | None = None  # None until all rows there are have been told
        with self._app.subscribe(self._name, where=self._where) as feed:
            self._feed = feed
            for change in feed:
                if line.closed.is_set():
                    return
                if places is None and change.op != "current":
                    key = _key(change)
                    rows[key] = _row(change)
                    self._held.put(key, rows[key])
                    continue
                assert change.position is not None, "it is current"
                now = places_of(change.position)
                if places is None:
                    line.begin(rows, now, change.position)
                    rows = {}
                else:
                    entry = _entry(change, places, now)
                    self._held.put(entry.key, entry.row)
                    line.hand([entry], now, change.position)
                places = now

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()


class _Held:
    """How much is kept for who subscribes: every row as it is now."""

    def __init__(self, name: str, rows_max: int, bytes_max: int) -> None:
        self._name, self._rows_max, self._bytes_max = name, rows_max, bytes_max
        self._sizes: dict[str, int] = {}
        self._size_bytes = 0

    def put(self, key: str, row: bytes | None) -> None:
        """A row that is there now, or None for one that is gone. Raises BadOption for more than the bound."""
        self._size_bytes -= self._sizes.pop(key, 0)
        if row is not None:
            self._sizes[key] = len(row)
            self._size_bytes += len(row)
        if len(self._sizes) > self._rows_max:
            raise self._too_much(f"{self._rows_max:,} rows")
        if self._size_bytes > self._bytes_max:
            raise self._too_much(f"{self._bytes_max:,} bytes")

    def _too_much(self, bound: str) -> BadOption:
        return BadOption(
            f'"{self._name}" has more than {bound}: too much for one subscription.',
            hint="say which rows: where=...",
        )


def places_of(position: str) -> dict[int, int]:
    return FeedPosition.decode(position).ends_by_partition


def told(change: Change) -> dict[str, Any]:
    """A change as clients get it."""
    found: dict[str, Any] = {"key": to_json(change.key), "row": to_json(change.row)}
    return found if change.before is None else {**found, "before": to_json(change.before)}


def piece_of(change: Change) -> bytes:
    return sse.event(change.op, told(change), change.position)


def _key(change: Change) -> str:
    return dumps(to_json(list(change.key.values()))).decode()


def _row(change: Change) -> bytes:
    return sse.event("insert", {"key": to_json(change.key), "row": to_json(change.row)})


def _entry(change: Change, before: Places, now: Places) -> Entry:
    """The record behind a change is the last that its position has read, in the partition that moved."""
    moved = next((n for n in now if now[n] != before.get(n, 0)), 0)
    row = None if change.op == "delete" else _row(change)
    return Entry(moved, now[moved] - 1, piece_of(change), _key(change), row)


def snapshot(rows: Iterable[bytes], position: str) -> Iterator[bytes]:
    """Every row as an insert, then the event that says that this was all."""
    yield from rows
    yield sse.event("current", {}, position)


def replayed(entries: Iterable[Entry], places: Places) -> Iterator[bytes]:
    """Kept entries for a client that was at `places`.

    One whose position lies behind what the client has elsewhere comes without it: to come back from there
    would be to hear something again.
    """
    for entry in entries:
        place, _, rest = entry.piece.partition(b"\n")
        at = places_of(place.removeprefix(b"id: ").decode())
        is_further = all(at.get(number, 0) >= offset for number, offset in places.items())
        yield entry.piece if is_further else rest
