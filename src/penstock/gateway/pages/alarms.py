"""Telling somebody: what needs a person goes to a webhook or by mail, when it begins and when it is over.

A need must last a while before it is told, and be gone as long before it is over, so that what comes and goes
does not ring. Deliveries are tried again a few times, those to each place in a thread of its own; what cannot
be delivered is shown on the page of alerts.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal
from urllib.parse import parse_qs, urlsplit, urlunsplit

import xxhash

from penstock.errors import BadOption, PenstockError
from penstock.follow.deliveries import Message, Refused, Sender
from penstock.follow.mail import Mail
from penstock.follow.webhook import Webhook
from penstock.gateway.pages import words
from penstock.gateway.pages.health import Need

HOLDING_S = 15.0
_KEPT = 100
_WAITING_MAX = 200
_TRIES = 5
_PAUSE_S = 2.0
_TIMEOUT_S = 10.0
_LOOK_S = 0.5
_HINT = "give https://… or smtp://host?to=you@example.org"
State = Literal["began", "over"]
_TOLD = frozenset({"failed", "stopped", "behind", "dead", "lag", "differs", "log", "copy", "quiet"})


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that needed somebody. `over_us`: since when it does not."""

    need: Need
    since_us: int
    told: bool = False
    over_us: int | None = None
    error: str = ""


class Alarms:
    """`look` is called by the thread that looks, `history` by any."""

    def __init__(self, app: str, senders: Sequence[Sender], *, holding_s: float = HOLDING_S) -> None:
        self.holding_s = holding_s
        self.places = tuple(sender.label for sender in senders)
        self._app = app
        self._now: dict[tuple[str, str], Alarm] = {}
        self._absent: dict[tuple[str, str], int] = {}
        self._past: deque[Alarm] = deque(maxlen=_KEPT)
        self._mutex = threading.Lock()
        self._ended = threading.Event()
        self._lines = tuple(_Line(sender, self._deliver, self._ended) for sender in senders)

    def look(self, needs: Sequence[Need], now_us: int) -> None:
        """Note what is needed now."""
        held_us = self.holding_s * 1e6
        found = {(need.kind, need.about): need for need in needs if need.kind in _TOLD}
        with self._mutex:
            for key, need in found.items():
                known = self._now.get(key) or Alarm(need, now_us)
                self._absent.pop(key, None)
                if not known.told and now_us - known.since_us >= held_us:
                    known = replace(known, told=True)
                    self._tell(known, "began")
                self._now[key] = replace(known, need=need)
            for gone in [key for key in self._now if key not in found]:
                if now_us - self._absent.setdefault(gone, now_us) >= held_us or not self._now[gone].told:
                    over = replace(self._now.pop(gone), over_us=self._absent.pop(gone, now_us))
                    if over.told:
                        self._past.appendleft(over)
                        self._tell(over, "over")

    def history(self) -> list[Alarm]:
        """What is needed now and lasted long enough, then what was, newest first."""
        with self._mutex:
            lasting = [alarm for alarm in self._now.values() if alarm.told]
            return [*sorted(lasting, key=lambda alarm: -alarm.since_us), *self._past]

    def close(self) -> None:
        """What was not told yet is not told any more."""
        self._ended.set()
        for line in self._lines:
            line.join()

    def _tell(self, alarm: Alarm, state: State) -> None:
        for line in self._lines:
            line.put(alarm, state)

    def _deliver(self, sender: Sender, alarm: Alarm, state: State) -> None:
        if error := self._sent(sender, alarm, state):
            self._failed(alarm, error)

    def _sent(self, sender: Sender, alarm: Alarm, state: State) -> str:
        """Empty once it was taken; else why not."""
        key = xxhash.xxh3_128_hexdigest(
            f"{self._app} {alarm.need.kind} {alarm.need.about} {alarm.since_us} {state}".encode()
        )
        error = ""
        for attempt in range(_TRIES):
            try:
                sender.send(key, [self._message(alarm, state)])
                return ""
            except Refused as refused:
                return str(refused)
            except PenstockError as problem:
                error = problem.message
                if attempt + 1 == _TRIES or self._ended.wait(_PAUSE_S * 2**attempt):
                    break
        return error

    def _message(self, alarm: Alarm, state: State) -> Message:
        row = {
            "app": self._app, "state": state, "kind": alarm.need.kind, "about": alarm.need.about,
            "text": alarm.need.text, "why": alarm.need.why, "since": words.iso(alarm.since_us),
        }  # fmt: skip
        return Message("alerts", 0, 0, words.iso(time.time_ns() // 1_000), None, row)

    def _failed(self, alarm: Alarm, error: str) -> None:
        with self._mutex:
            key = (alarm.need.kind, alarm.need.about)
            if key in self._now:
                self._now[key] = replace(self._now[key], error=error)


class _Line:
    """What waits for one place: one that does not answer keeps no other from being told."""

    def __init__(
        self, sender: Sender, deliver: Callable[[Sender, Alarm, State], None], ended: threading.Event
    ) -> None:
        self._sender, self._deliver, self._ended = sender, deliver, ended
        self._waiting: queue.Queue[tuple[Alarm, State]] = queue.Queue(_WAITING_MAX)
        self._thread = threading.Thread(target=self._run, name="alarms", daemon=True)
        self._thread.start()

    def put(self, alarm: Alarm, state: State) -> None:
        with suppress(queue.Full):  # whoever is told of so much already knows
            self._waiting.put_nowait((alarm, state))

    def join(self) -> None:
        self._thread.join(2 * _TIMEOUT_S)

    def _run(self) -> None:
        while not self._ended.is_set():
            with suppress(queue.Empty):
                self._deliver(self._sender, *self._waiting.get(timeout=_LOOK_S))
        self._sender.close()


def senders_of(places: Sequence[str]) -> list[Sender]:
    """From addresses: `https://…` for a webhook, `smtp://host?to=a@b&from=c@d` for mail."""
    return [_sender(place) for place in places]


def _sender(place: str) -> Sender:
    try:
        parts = urlsplit(place)
        port = f":{parts.port}" if parts.port else ""
    except ValueError as error:
        raise BadOption(f"a place for alerts cannot be read ({error}).", hint=_HINT) from None
    label = f"{parts.scheme}://{parts.hostname}{port}{parts.path}"
    if parts.scheme not in ("http", "https", "smtp", "smtps"):
        raise BadOption(f"{label} is no place for alerts.", hint=_HINT)
    if not parts.hostname or not re.fullmatch(r"[!-~]+", place):
        raise BadOption(f"{label} is no address.", hint=f"{_HINT}, with %XX for what is no plain character")
    if parts.scheme in ("http", "https"):
        return Webhook(place, label=label, headers={}, batch=1, timeout_s=_TIMEOUT_S)
    said = parse_qs(parts.query)
    if not said.get("to"):
        raise BadOption(f"{label} does not say who gets the mail.", hint=f"write {label}?to=you@example.org")
    return Mail(
        urlunsplit(parts._replace(query="")), label=f"{label} to {', '.join(said['to'])}", to=said["to"],
        sender=(said.get("from") or ["penstock@localhost"])[0], subject="{app}: {text} ({state})",
        body="{text}\n\n{why}\n\nsince {since}\n", timeout_s=_TIMEOUT_S,
    )  # fmt: skip
