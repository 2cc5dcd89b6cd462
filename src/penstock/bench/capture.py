"""`penstock bench capture`: databases into the log, beside Debezium's engine on the same database.

Debezium's events are only counted, ours are stored: in two topics, durably, with the position.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psycopg

from penstock.bench import debezium_peer, redis_server
from penstock.bench.child import Child, Line
from penstock.bench.machine import describe
from penstock.bench.postgres_server import throwaway
from penstock.bench.report import Report, Result
from penstock.capture.engine import Capture, stored_progress
from penstock.capture.postgres_source import PostgresSource
from penstock.capture.sqlite_source import SQLiteSource
from penstock.errors import NotSupported
from penstock.follow import to
from penstock.follow.follower import Follower
from penstock.follow.table import spec_of
from penstock.follow.target import Site, Target
from penstock.log.log import Log, home_of
from penstock.log.topic import Topic
from penstock.opening import open_log

Progress = Callable[[str], None]

TABLE = """CREATE TABLE orders (id BIGINT PRIMARY KEY, customer TEXT, item TEXT,
    price NUMERIC(9, 2), at TIMESTAMPTZ, note TEXT, sent BIGINT)"""
ROWS = """INSERT INTO orders SELECT i, 'customer ' || i %% 1000, 'item ' || i %% 97, i %% 10000 / 100.0,
    now(), 'a note of some length about order ' || i, NULL FROM generate_series(1, %s) i"""
CHANGES = "UPDATE orders SET price = price + 1 WHERE id > %s AND id <= %s"
SENT = "UPDATE orders SET sent = %s WHERE id = %s"
_TIMES = 5.0  # how many times Debezium's rate is the aim
_LATENCY_MS = 5.0
_ROUNDS = 3  # of changes; the median counts
_WAIT_S = 120.0
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sizes:
    rows: int
    changes: int
    transaction: int  # changes in each
    commits: int  # single ones, for the latency


FULL = Sizes(500_000, 200_000, 100, 500)
QUICK = Sizes(100_000, 50_000, 100, 200)


@dataclass(frozen=True, slots=True)
class Measured:
    """What one of the two did."""

    snapshot: float  # rows/s
    changes: float  # /s
    p50_ms: float
    p99_ms: float
    memory_mb: float


class Reader(Protocol):
    """Somebody who follows the database in a process of its own."""

    name: str
    pid: int

    def count(self) -> int:
        """How many changes it has so far."""

    def arrivals(self) -> dict[int, float]:
        """When each order arrived, from the first call on."""


def run(*, quick: bool, home: Path | None = None, progress: Progress | None = None) -> Report:
    return measure(QUICK if quick else FULL, home=home, tell=progress or (lambda _: None))


def measure(sizes: Sizes, *, home: Path | None, tell: Progress) -> Report:
    place = home_of(home)
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=place) as text:
        folder = Path(text)
        results = [*_postgres(sizes, folder, tell), *_sqlite(sizes, folder, tell), *_followers(folder, tell)]
        return Report("capture", describe(folder), results)


# ---- PostgreSQL -------------------------------------------------------------------------------------


def _postgres(sizes: Sizes, folder: Path, tell: Progress) -> Iterator[Result]:
    with throwaway() as url:
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(TABLE)
            db.execute(ROWS, (sizes.rows,))
            db.execute("VACUUM ANALYZE orders")
            # Whoever writes should not be slower than those who read.
            db.execute("SET synchronous_commit = off")
            tell("PostgreSQL by Penstock")
            with (
                open_log(folder / "log") as log,
                Child(_capture, url, str(folder / "log")) as child,
                closing(_Ours(log, child)) as reader,
            ):
                ours = _measured(db, sizes, reader)
            peer = None
            if debezium_peer.installed():
                tell("PostgreSQL by Debezium")
                # As we found it: no slot that keeps WAL, and no room in the table that updates have left.
                PostgresSource(url, name="bench").drop()
                db.execute("VACUUM FULL ANALYZE orders")
                with Child(debezium_peer.serve, url, "orders", str(folder)) as child:
                    peer = _measured(db, sizes, _Debezium(child))
        yield from _compared(ours, peer, sizes)


def _compared(ours: Measured, peer: Measured | None, sizes: Sizes) -> Iterator[Result]:
    settings = {"rows": sizes.rows, "changes": sizes.changes, "transaction": sizes.transaction}
    rates = (("PostgreSQL snapshot", "snapshot", "rows/s"), ("PostgreSQL changes", "changes", "changes/s"))
    for name, field, unit in rates:
        found = Result(name, getattr(ours, field), unit, settings=settings)
        if peer is None:
            yield found
        else:
            other = getattr(peer, field)
            yield found.at_least(_TIMES * other).beside("Debezium, events only counted", other)
    for name, field, unit in (
        ("PostgreSQL latency p50", "p50_ms", "ms"),
        ("PostgreSQL latency p99", "p99_ms", "ms"),
        ("PostgreSQL memory, the most", "memory_mb", "MB"),
    ):
        found = Result(name, getattr(ours, field), unit, settings={"commits": sizes.commits})
        found = found.at_most(_LATENCY_MS) if field == "p50_ms" else found
        yield found.beside("Debezium", getattr(peer, field)) if peer else found


def _measured(db: psycopg.Connection[Any], sizes: Sizes, reader: Reader) -> Measured:
    snapshot = sizes.rows / _until(reader, sizes.rows, from_first=True)
    db.execute(CHANGES, (0, 1))
    _until(reader, sizes.rows + 1)  # it has turned from the snapshot to the stream
    changes = statistics.median(_rate_of_changes(db, sizes, reader) for _ in range(_ROUNDS))
    latencies = _latencies(db, sizes, reader)
    peak = _PEAK.search(Path(f"/proc/{reader.pid}/status").read_text())
    memory_mb = int(peak[1]) / 1024 if peak else 0.0
    p50, p99 = (latencies[int(len(latencies) * part)] for part in (0.5, 0.99))
    return Measured(snapshot, changes, p50, p99, memory_mb)


def _rate_of_changes(db: psycopg.Connection[Any], sizes: Sizes, reader: Reader) -> float:
    wanted = reader.count() + sizes.changes
    with _halted(reader.pid):  # whoever writes would take the processors from those who read
        _change(db, sizes)
    rate = sizes.changes / _until(reader, wanted)
    db.execute("VACUUM orders")  # else the server does it in the middle of what follows
    db.execute("CHECKPOINT")
    return rate


def _until(reader: Reader, wanted: int, *, from_first: bool = False) -> float:
    """Seconds until it has so many. `from_first`: from its first one on, without its start."""
    began, first, deadline = time.monotonic(), reader.count(), time.monotonic() + _WAIT_S
    while (count := reader.count()) < wanted:
        if from_first and count == first:
            began = time.monotonic()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{reader.name}: {count:,} of {wanted:,} changes within {_WAIT_S:.0f} s")
        time.sleep(0.002)
    return time.monotonic() - began


@contextmanager
def _halted(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _change(db: psycopg.Connection[Any], sizes: Sizes) -> None:
    for start in range(0, sizes.changes, sizes.transaction):
        at = start % sizes.rows
        if start + sizes.transaction >= sizes.changes:
            # Nobody is told of a commit before it is on disk, which without this may take until 400 ms later.
            db.execute("SET synchronous_commit = on")
        db.execute(CHANGES, (at, at + sizes.transaction))
    db.execute("SET synchronous_commit = off")


def _latencies(db: psycopg.Connection[Any], sizes: Sizes, reader: Reader) -> list[float]:
    """From when a commit is answered; PostgreSQL syncs its own log before that."""
    db.execute("SET synchronous_commit = on")
    reader.arrivals()
    committed = {}
    for number in range(1, sizes.commits + 1):
        db.execute(SENT, (number, number))
        committed[number] = time.time()
        time.sleep(0.01)
    db.execute("SET synchronous_commit = off")
    deadline = time.monotonic() + _WAIT_S
    while len(arrived := reader.arrivals()) < sizes.commits:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{reader.name}: {len(arrived):,} of {sizes.commits:,} commits came")
        time.sleep(0.05)
    return sorted((arrived[number] - at) * 1e3 for number, at in committed.items())


class _Ours:
    """Penstock: what is in the log counts."""

    name = "Penstock"

    def __init__(self, log: Log, child: Child) -> None:
        self._log, self.pid = log, child.pid
        self._arrived: dict[int, float] = {}
        self._looking: threading.Thread | None = None
        self._enough = False

    def count(self) -> int:
        return stored_progress(self._log, "bench").changes

    def arrivals(self) -> dict[int, float]:
        if self._looking is None:
            topic = self._log.topic("bench.orders.changes")
            self._looking = threading.Thread(target=self._look, args=(topic, topic.bounds()[0][1]))
            self._looking.start()
        return self._arrived

    def close(self) -> None:
        self._enough = True
        if self._looking is not None:
            self._looking.join()

    def _look(self, topic: Topic, end: int) -> None:
        while not self._enough:
            if topic.wait({0: end}, 0.2):
                now, start, end = time.time(), end, topic.bounds()[0][1]
                for row in topic.rows(start=start, end=end):
                    self._arrived.setdefault(row["after"]["sent"], now)


def _capture(_line: Line, url: str, home: str) -> None:
    with open_log(home) as log:
        Capture(log, "bench", PostgresSource(url, name="bench")).run(threading.Event())


class _Debezium:
    name = "Debezium"

    def __init__(self, child: Child) -> None:
        self._child, self.pid, self._word = child, child.pid, "count"

    def count(self) -> int:
        return int(self._asked()[0])

    def arrivals(self) -> dict[int, float]:
        self._word = "arrivals"
        return {int(number): at for number, at in self._asked()[1]}

    def _asked(self) -> Any:
        self._child.say(self._word)
        return self._child.hear()


# ---- SQLite -----------------------------------------------------------------------------------------


def _sqlite(sizes: Sizes, folder: Path, tell: Progress) -> Iterator[Result]:
    tell("SQLite")
    path, rows = folder / "shop.db", sizes.changes
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        for name in ("plain", "captured"):
            db.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, customer TEXT, item TEXT, price REAL)")
        with open_log(folder / "sqlite") as log:
            capture = Capture(log, "shop", SQLiteSource(path, name="shop", tables=["captured"]))
            capture.run(threading.Event(), once=True)
            plain_s, captured_s = _inserted(db, ("plain", "captured"), rows)
            began = time.monotonic()
            capture.run(threading.Event(), once=True)
            read_s = time.monotonic() - began
            capture.source.close()
    share = (captured_s / plain_s - 1) * 100
    yield Result("SQLite, more time to write", share, "%", settings={"rows": rows, "transaction": 1_000})
    yield Result("SQLite changes", rows / read_s, "changes/s", settings={"rows": rows})


def _inserted(db: sqlite3.Connection, tables: Sequence[str], rows: int) -> list[float]:
    """The median of what a transaction takes in each table; in turn, so that they meet the same disk."""
    took_s: dict[str, list[float]] = {table: [] for table in tables}
    for start in range(0, rows, 1_000):
        some = [(n, f"customer {n % 1000}", f"item {n % 97}", n / 100) for n in range(start, start + 1_000)]
        for table in tables:
            began = time.monotonic()
            db.execute("BEGIN")
            db.executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", some)
            db.execute("COMMIT")
            took_s[table].append(time.monotonic() - began)
    return [statistics.median(each) for each in took_s.values()]


# ---- followers --------------------------------------------------------------------------------------


def _followers(folder: Path, tell: Progress) -> Iterator[Result]:
    """The captured table into each kind of place, real servers among them."""
    with ExitStack() as servers:
        for name, target in _places(folder, servers, tell):
            yield _followed(folder, tell, name, target)


def _places(folder: Path, servers: ExitStack, tell: Progress) -> Iterator[tuple[str, Target]]:
    """Each server is started when its turn comes; Redis is left out where there is none."""
    yield "SQLite", to.sqlite(folder / "copy.db")
    yield "PostgreSQL", to.postgres(servers.enter_context(throwaway()))
    try:
        yield "Redis", to.redis(servers.enter_context(redis_server.throwaway(folder)))
    except NotSupported as reason:
        tell(f"without Redis: {reason.message}")
    yield "a search index", to.search(folder / "index")
    yield "Delta Lake", to.delta(folder / "lake")
    yield "Parquet", to.parquet(folder / "archive")


def _followed(folder: Path, tell: Progress, name: str, target: Target) -> Result:
    tell(f"follower: {name}")
    with open_log(folder / "log") as log, closing(target.open(Site("bench", folder, log))) as sink:
        topic = log.topic("bench.orders")
        spec = spec_of(topic.settings.schema.arrow, topic.settings.key, name="orders")
        records, began = topic.bounds()[0][1], time.monotonic()
        Follower(topic, sink, spec, kind="table").finish(threading.Event())
        rate = records / (time.monotonic() - began)
    return Result(f"followed into {name}", rate, "records/s", settings={"records": records})
