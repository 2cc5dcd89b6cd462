"""How a running app fares, where another process can find it: the page, `penstock top`.

One small file below `<home>/status/`, replaced about once a second while the app runs. A reader never sees
half of one. It is told with the moment it is from, so that an old one is known to be old.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from penstock.app.explain import Plan, plan_of
from penstock.app.status import CaptureStatus, FollowerStatus, Phases, QueryStatus, Status, Watch
from penstock.app.watermark import Held

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.app.runner import Runner

_EVERY_S = 1.0
_FOLDER = "status"
_STARTING = ("starting", "waits to start again")
_T = TypeVar("_T")
STALE_S = 5.0  # without news for so long, nobody runs it, or it hangs
STARTING_S = 30.0  # but it may be silent for longer while a query is started


@dataclass(frozen=True, slots=True)
class Published:
    """What a run has said last. `phases`: of each query's newest batches, oldest first."""

    status: Status
    pid: int
    ended: bool = False
    phases: Mapping[str, tuple[Phases, ...]] = field(default_factory=dict)
    plans: Mapping[str, Plan] = field(default_factory=dict)

    def is_live(self, now_us: int) -> bool:
        """Whether that run is going on."""
        starting = any(query.state in _STARTING for query in self.status.queries)
        silent_s = (now_us - self.status.at_us) / 1e6
        return not self.ended and silent_s < (STARTING_S if starting else STALE_S)


class Publisher:
    """Tells how a runner fares, at most about once a second. Called by the thread that looks."""

    def __init__(self, runner: Runner, watch: Watch) -> None:
        self._app, self._watch = runner.app, watch
        self._plans = {name: plan_of(runner.graph, name) for name in runner.graph.analysed}
        self._next = 0.0

    def show(self) -> None:
        """Look and tell, unless that was done a moment ago."""
        if time.monotonic() >= self._next:
            self.tell(self._watch.look())

    def tell(self, status: Status, *, ended: bool = False) -> None:
        """Tell what was seen, unless something was told a moment ago; the end is always told."""
        now = time.monotonic()
        if now < self._next and not ended:
            return
        self._next = now + _EVERY_S
        with suppress(OSError):  # a full disk must not end a run; that the file grows old says enough
            _write(self._app, Published(status, os.getpid(), ended, self._watch.phases, self._plans))


class Starting:
    """Says of an app that it is starting, until it is left: Spark takes a while. A context manager."""

    def __init__(self, app: App) -> None:
        self._app, self._over, self._began = app, threading.Event(), time.monotonic()
        before = last(app)  # what feeds what is analysed anew, but not forgotten until then
        known = before.plans if before is not None else {}
        self._plans = {name: plan for name, plan in known.items() if name in app.definitions}
        self._thread = threading.Thread(target=self._tell, name="starting", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        if error[0] is not None:
            self._say(ended=True)

    def _tell(self) -> None:
        while True:
            self._say()
            if self._over.wait(_EVERY_S):
                return

    def _say(self, *, ended: bool = False) -> None:
        queries = tuple(_starting(name) for name in self._app.definitions)
        status = Status(time.time_ns() // 1_000, time.monotonic() - self._began, queries, ())
        with suppress(OSError):
            _write(self._app, Published(status, os.getpid(), ended, plans=self._plans))


def _starting(name: str) -> QueryStatus:
    return QueryStatus(name, (name,), "starting", None, 0, 0.0, None, None, None, 0, 0, 0, 0.0, 0, 0, None)


def last(app: App) -> Published | None:
    """What was last told about an app, None if it has not run here."""
    return _read(_path(app))


def all_under(home: Path) -> dict[str, Published]:
    """What was last told about each app that has run under `home`, by its name."""
    found = {path.stem: _read(path) for path in sorted((home / _FOLDER).glob("*.json"))}
    return {name: told for name, told in found.items() if told is not None}


def _read(path: Path) -> Published | None:
    try:
        return _decoded(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):  # of another version of this program
        return None


def _write(app: App, found: Published) -> None:
    path = _path(app)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    fresh.write_text(json.dumps(asdict(found)))
    fresh.replace(path)


def _path(app: App) -> Path:
    return app.home / _FOLDER / f"{app.name}.json"


def _decoded(plain: Mapping[str, Any]) -> Published:
    told = plain["status"]
    status = Status(
        told["at_us"], told["running_s"], _each(_query, told["queries"]),
        _each(lambda each: FollowerStatus(**each), told["followers"]), told["log_error"],
        _each(lambda each: CaptureStatus(**each), told["captures"]),
    )  # fmt: skip
    phases = {name: _each(lambda each: Phases(**each), batches) for name, batches in plain["phases"].items()}
    plans = {name: _plan(each) for name, each in plain["plans"].items()}
    return Published(status, plain["pid"], plain["ended"], phases, plans)


def _each(decode: Callable[[Mapping[str, Any]], _T], plain: list[Any]) -> tuple[_T, ...]:
    return tuple(decode(each) for each in plain)


def _query(plain: Mapping[str, Any]) -> QueryStatus:
    held = Held(**plain["held_back"]) if plain["held_back"] else None
    return QueryStatus(**{**plain, "definitions": tuple(plain["definitions"]), "held_back": held})


def _plan(plain: Mapping[str, Any]) -> Plan:
    tuples = {name: tuple(plain[name]) for name in ("topics", "key", "operators")}
    return Plan(**{**plain, **tuples})
