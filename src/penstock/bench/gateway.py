"""`penstock bench gateway`: appends and streams over HTTP, beside the Python API in the same run."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import pyarrow as pa

from penstock.app.app import App
from penstock.bench import machine, sample, workbench
from penstock.bench.child import Child, Line
from penstock.bench.report import Report, Result, Setting
from penstock.bench.sample import DDL, Sample
from penstock.bench.workbench import Progress
from penstock.log.json_rows import to_json
from penstock.log.topic import Topic

_WRITERS = 16
_BATCH_WRITERS = 4
_CLIENTS = 100
_OFFERED_PER_S = 5_000  # records to the topic that is streamed: what is not taken in time waits
_START_S = 120.0


@dataclass(frozen=True, slots=True)
class Sizes:
    singles: int
    batches: int  # requests of `batch_rows` records
    batch_rows: int
    streamed: int  # records, to each of the clients of the stream
    spaced: int  # records whose way is timed, one at a time


QUICK = Sizes(singles=1_500, batches=15, batch_rows=1_000, streamed=2_000, spaced=100)
FULL = Sizes(singles=8_000, batches=60, batch_rows=1_000, streamed=10_000, spaced=500)


def run(*, quick: bool, home: Path | None = None, progress: Progress | None = None) -> Report:
    """Works in a folder of its own inside `home` and removes it."""
    sizes, tell = QUICK if quick else FULL, progress or _to_stderr
    with workbench.scratch(home) as folder:
        facts = machine.describe(folder)
        return Report("gateway", facts, list(_results(folder / "log", sizes, tell)))


def _results(home: Path, sizes: Sizes, tell: Progress) -> Iterator[Result]:
    events = sample.make(sizes.batch_rows)
    with _served(home) as (app, address):
        yield from _singles(app, address, events, sizes, tell)
        yield from _batches(app, address, events, sizes, tell)
        yield from _fan_out(app, address, events, sizes, tell)


# ---- appends ----------------------------------------------------------------------------------


def _singles(app: App, address: str, events: Sample, sizes: Sizes, tell: Progress) -> Iterator[Result]:
    tell(f"append {sizes.singles:,} records, one for each request, {_WRITERS} clients")
    body = _json(events.dicts[0])
    took: list[float] = []
    over_http_s = _by_writers(
        sizes.singles, lambda client, _: took.append(_post(client, body, "json")), address
    )
    topic = app.log.topic("bench")
    python_s = _by_threads(sizes.singles, lambda: topic.append(events.dicts[0]))
    settings: dict[str, Setting] = {"records": sizes.singles, "clients": _WRITERS, "durability": "fsync"}
    found = Result(
        "append, one record per request", sizes.singles / over_http_s, "appends/s", settings=settings
    )
    yield found.beside("topic.append by as many threads", sizes.singles / python_s)
    yield Result(
        "append, one record per request, p99",
        _percentile(took[_WRITERS:], 0.99) * 1e3,  # without those that connected
        "ms",
        settings=settings,
    )


def _batches(app: App, address: str, events: Sample, sizes: Sizes, tell: Progress) -> Iterator[Result]:
    lines = b"".join(_json(event) + b"\n" for event in events.dicts)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, events.table.schema) as writer:
        writer.write_batch(events.table)
    topic = app.log.topic("bench")
    arrow = "vnd.apache.arrow.stream"
    yield _batch("JSON lines", "x-ndjson", lines, lambda: topic.append(events.dicts), address, sizes, tell)
    yield _batch("Arrow", arrow, sink.getvalue(), lambda: topic.append(events.table), address, sizes, tell)


def _batch(
    name: str,
    kind: str,
    body: bytes,
    python: Callable[[], object],
    address: str,
    sizes: Sizes,
    tell: Progress,
) -> Result:
    rows = sizes.batches * sizes.batch_rows
    tell(f"append {rows:,} records as {name}")

    def post(client: HTTPConnection, _: int) -> None:
        _post(client, body, kind)

    took_s = _by_writers(sizes.batches, post, address, writers=_BATCH_WRITERS)
    python_s = _by_threads(sizes.batches, python, threads=_BATCH_WRITERS)
    settings = {"records": rows, "records_per_request": sizes.batch_rows, "clients": _BATCH_WRITERS}
    found = Result(f"append, {name}", rows / took_s, "records/s", settings=settings)
    return found.beside("topic.append by as many threads", rows / python_s)


def _by_writers(
    count: int, work: Callable[[HTTPConnection, int], None], address: str, *, writers: int = _WRITERS
) -> float:
    """Seconds for so many requests over as many connections, each kept open."""
    local = threading.local()

    def one(number: int) -> None:
        if not hasattr(local, "client"):
            client = HTTPConnection(address.removeprefix("http://"), timeout=60)
            local.client = opened.enter_context(closing(client))
        work(local.client, number)

    with ExitStack() as opened, ThreadPoolExecutor(writers) as pool:
        list(pool.map(one, range(writers)))  # connected, before the clock runs
        began = time.perf_counter()
        list(pool.map(one, range(count)))
        return time.perf_counter() - began


def _by_threads(count: int, work: Callable[[], object], *, threads: int = _WRITERS) -> float:
    with ThreadPoolExecutor(threads) as pool:
        began = time.perf_counter()
        list(pool.map(lambda _: work(), range(count)))
        return time.perf_counter() - began


def _post(client: HTTPConnection, body: bytes, kind: str) -> float:
    began = time.perf_counter()
    client.request("POST", "/api/v1/topics/bench/records", body, {"Content-Type": f"application/{kind}"})
    answer = client.getresponse()
    answer.read()
    assert answer.status == 200, answer.status
    return time.perf_counter() - began


# ---- streams ----------------------------------------------------------------------------------


def _fan_out(app: App, address: str, events: Sample, sizes: Sizes, tell: Progress) -> Iterator[Result]:
    tell(f"{_CLIENTS} clients follow a topic")
    topic = app.log.topic("streamed")
    with Child(_listen, address, _CLIENTS, sizes.streamed, sizes.spaced) as listeners:
        listeners.hear()
        began = time.perf_counter()
        for start in range(0, sizes.streamed, 100):
            topic.append(events.dicts[:100])
            _pace(began, start)
        took_s = float(listeners.hear()) - began
        for _ in range(sizes.spaced):
            topic.append({**events.dicts[0], "ms": time.perf_counter()})
            listeners.hear()
        late = [float(value) for value in listeners.hear()]
    settings = {"clients": _CLIENTS, "records": sizes.streamed, "offered_records_per_s": _OFFERED_PER_S}
    yield Result(
        f"stream to {_CLIENTS} clients", sizes.streamed * _CLIENTS / took_s, "events/s", settings=settings
    ).beside("topic.events, one reader", _read_rate(topic))
    yield Result(
        f"from append to all {_CLIENTS} clients, p99",
        _percentile(late, 0.99) * 1e3,
        "ms",
        settings={"clients": _CLIENTS, "records": sizes.spaced},
    )


def _pace(began: float, sent: int) -> None:
    """Not so fast that a client would be dropped, and faster than a hundred can be told."""
    ahead_s = began + sent / _OFFERED_PER_S - time.perf_counter()
    if ahead_s > 0:
        time.sleep(ahead_s)


def _read_rate(topic: Topic) -> float:
    began = time.perf_counter()
    count = sum(1 for _ in topic.events())
    return count / (time.perf_counter() - began)


def _listen(line: Line, address: str, clients: int, streamed: int, spaced: int) -> None:
    """In a process of its own: what it costs to read is not the server's."""
    asyncio.run(_listening(line, address, clients, streamed, spaced))


async def _listening(line: Line, address: str, clients: int, streamed: int, spaced: int) -> None:
    host, port = address.removeprefix("http://").split(":")
    request = f"GET /api/v1/topics/streamed/tail HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
    opened = [await asyncio.open_connection(host, int(port), limit=1 << 20) for _ in range(clients)]
    for reader, writer in opened:
        writer.write(request)
        await reader.readuntil(b"\r\n\r\n")
    await asyncio.sleep(1.0)  # each is answered before it has joined
    line.say("ready")
    readers = [reader for reader, _ in opened]
    await asyncio.gather(*(_heard(reader, streamed) for reader in readers))
    line.say(time.perf_counter())
    late = []
    for _ in range(spaced):
        sent = await asyncio.gather(*(_heard(reader, 1) for reader in readers))
        late.append(time.perf_counter() - float(sent[0].partition(b'"ms":')[2].partition(b",")[0]))
        line.say("heard")
    line.say(late)


async def _heard(reader: asyncio.StreamReader, count: int) -> bytes:
    """The last of so many events."""
    last = b""
    while count:
        found = await reader.readline()
        if found.startswith(b"data: "):
            last, count = found, count - 1
    return last


# ---- the server -------------------------------------------------------------------------------


@contextmanager
def _served(home: Path) -> Iterator[tuple[App, str]]:
    """A gateway in a process of its own, and the same log here."""
    app = App("bench", home=home)
    for name in ("bench", "streamed"):
        app.topic(name, DDL)
    try:
        app.log.topics()
        with Child(_serve, str(home)) as server:
            yield app, str(server.hear(_START_S))
    finally:
        app.close()


def _serve(line: Line, home: str) -> None:
    from penstock.gateway.gateway import Gateway
    from penstock.gateway.serving import Address, Server

    Server(Gateway(App("bench", home=home)), Address(), on_ready=line.say).run()


def _json(event: dict[str, object]) -> bytes:
    from penstock.gateway.json import dumps

    return dumps(to_json(event))


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def _to_stderr(step: str) -> None:
    print(f"bench gateway: {step}", file=sys.stderr, flush=True)
