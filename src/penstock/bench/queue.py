"""`penstock bench queue`: queues in a file, beside a real RabbitMQ through pika and through the same API."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock.bench import machine, queue_alternatives, workbench
from penstock.bench.child import Child, Line
from penstock.bench.queue_alternatives import Alternatives
from penstock.bench.queue_brokers import Broker, ThroughPenstock, ThroughPika, bare_disk
from penstock.bench.rabbitmq_server import throwaway
from penstock.bench.report import Report, Result, Setting
from penstock.bench.workbench import Progress, timed_s
from penstock.errors import NotSupported

_BODY_BYTES = 200
_BATCH = 100
_CONSUMERS = (1, 4)
_AIM = 2.0
_GO_ON_MAX = 20
_DISK = "the disk itself: 4 KiB written and synced, one by one"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything. The best of `attempts` counts."""

    attempts: int
    rounds: int  # of publishing one by one, which waits for the disk each time: many and short
    each: int  # messages of such a round
    batched: int  # messages that are published in batches, and consumed
    latency: int
    per_s: int = 100


QUICK = Sizes(attempts=2, rounds=40, each=25, batched=4_000, latency=200)
FULL = Sizes(attempts=3, rounds=240, each=25, batched=30_000, latency=2_000)


def run(*, quick: bool, home: Path | None = None, progress: Progress | None = None) -> Report:
    """Measure everything: about three minutes, or less than one with `quick`."""
    return measure(QUICK if quick else FULL, home=home, progress=progress or _to_stderr)


def measure(sizes: Sizes, *, home: Path | None, progress: Progress) -> Report:
    with workbench.scratch(home) as folder, ExitStack() as held:
        facts = machine.describe(folder)
        ours: Broker = ThroughPenstock("embedded", str(folder / "home"))
        peers: list[Broker] = []
        try:
            progress("start RabbitMQ")
            address = held.enter_context(throwaway(folder))
            peers = [ThroughPika("RabbitMQ, pika", address), ThroughPenstock("RabbitMQ, same API", address)]
        except NotSupported as reason:
            progress(f"without a peer: {reason.message}")
        others = held.enter_context(queue_alternatives.opened(folder))
        results = list(_one_by_one(sizes, folder, ours, peers, others, progress))
        results += _results(sizes, ours, peers, progress)
        progress("the same work as a log, and as a table of a database")
        results += others.measure(_bodies(sizes.batched), sizes.each, sizes.attempts)
        return Report("queue", facts, results)


def _results(sizes: Sizes, ours: Broker, peers: Sequence[Broker], progress: Progress) -> Iterator[Result]:
    yield from _rates(f"publish, {_BATCH} together", _publish_batches, sizes, ours, peers, progress)
    for consumers in _CONSUMERS:
        name = f"get and ack, {consumers} consumer{'s' if consumers > 1 else ''}"
        together = functools.partial(_consume, consumers=consumers, each=False)
        yield from _rates(name, together, sizes, ours, peers, progress)
        # RabbitMQ has no ack that is known to be kept.
        kept = functools.partial(_consume, consumers=consumers, each=True)
        yield from _rates(f"{name}, each ack kept", kept, sizes, ours, [], progress)
    yield from _latencies(sizes, ours, peers, progress)


def _rates(
    name: str,
    attempt: Callable[[Broker, Sizes], float],
    sizes: Sizes,
    ours: Broker,
    peers: Sequence[Broker],
    progress: Progress,
) -> Iterator[Result]:
    found = dict.fromkeys([broker.name for broker in (ours, *peers)], 0.0)
    progress(name)
    for broker in (ours, *peers) * sizes.attempts:  # in turn, so that all meet the same machine
        found[broker.name] = max(found[broker.name], attempt(broker, sizes))
    yield from _beside(name, found, ours, peers, _settings(sizes))


def _beside(
    name: str,
    found: Mapping[str, float],
    ours: Broker,
    peers: Sequence[Broker],
    settings: Mapping[str, Setting],
) -> Iterator[Result]:
    result = Result(name, found[ours.name], "messages/s", settings=settings)
    if not peers:
        yield result
    for peer in peers:
        yield result.beside(peer.name, found[peer.name])
        if isinstance(peer, ThroughPika):
            ratio = found[ours.name] / found[peer.name]
            yield Result(f"{name}: times {peer.name}", ratio, "", settings=settings).at_least(_AIM)


def _one_by_one(
    sizes: Sizes,
    folder: Path,
    ours: Broker,
    peers: Sequence[Broker],
    others: Alternatives,
    progress: Progress,
) -> Iterator[Result]:
    """The disk's pace: so in short turns, all of them held open, beside the disk itself; the median counts.

    The best round would be whoever's luck it was that nobody else used the disk.
    """
    name, alternatives = "publish, one by one", others.publishers()
    progress(name)
    with ExitStack() as held:
        publishers = {_DISK: held.enter_context(bare_disk(folder)), **alternatives}
        for broker in (ours, *peers):
            broker.clear(broker.queue)
            publishers[broker.name] = held.enter_context(broker.publisher(broker.queue))
        took_s: dict[str, list[float]] = {each: [] for each in publishers}
        bodies = _bodies(sizes.each)
        for _ in range(sizes.rounds):
            for each, publish in publishers.items():
                publish(bodies[0])  # what the others left undone is done
                took_s[each].append(timed_s(functools.partial(_publish_all, publish, bodies)))
    found = {each: sizes.each / float(np.median(rounds)) for each, rounds in took_s.items()}
    settings: dict[str, Setting] = {
        "body_bytes": _BODY_BYTES, "median_of": sizes.rounds, "durability": "fsync",
    }  # fmt: skip
    yield from _beside(name, found, ours, peers, settings)
    limit = Result(f"{name}: of what the disk allows", found[ours.name] / found[_DISK], "", settings=settings)
    yield Result(_DISK, found[_DISK], "writes/s", settings=settings)
    yield limit
    for each in alternatives:
        yield Result(each, found[each], "messages/s", settings=settings)


def _publish_all(publish: Callable[[bytes], object], bodies: Sequence[bytes]) -> None:
    for body in bodies:
        publish(body)


def _publish_batches(broker: Broker, sizes: Sizes) -> float:
    broker.clear(broker.queue)
    return sizes.batched / timed_s(
        lambda: broker.publish_batches(broker.queue, _bodies(sizes.batched), _BATCH)
    )


def _consume(broker: Broker, sizes: Sizes, *, consumers: int, each: bool) -> float:
    """From the word to begin until the last message was taken, by so many processes."""
    broker.clear(broker.queue)
    broker.publish_batches(broker.queue, _bodies(sizes.batched), _BATCH)
    with ExitStack() as held:
        children = [held.enter_context(Child(_consumer, broker, each)) for _ in range(consumers)]
        for child in children:
            child.hear()
        began = time.monotonic()
        for _ in range(_GO_ON_MAX):  # a broker that stalls for a while has still more to give
            for child in children:
                child.say("go")
            heard = [child.hear() for child in children]
            if sum(count for count, _ in heard) == sizes.batched:
                break
        else:
            raise AssertionError(f"{sizes.batched} messages were published, and {heard} taken")
    took_s: float = max(last for _, last in heard) - began
    return sizes.batched / took_s


def _consumer(line: Line, broker: Broker, each: bool) -> None:
    count, last = 0, 0.0

    def seen(_: bytes) -> None:
        nonlocal count, last
        count, last = count + 1, time.monotonic()

    line.say("ready")
    while line.hear():
        broker.consume(broker.queue, seen, each=each)
        line.say([count, last])


# ---- latency ------------------------------------------------------------------------------------


def _latencies(sizes: Sizes, ours: Broker, peers: Sequence[Broker], progress: Progress) -> Iterator[Result]:
    found = {}
    for broker in (ours, *peers):
        progress(f"latency at {sizes.per_s:,} messages/s: {broker.name}")
        found[broker.name] = min(
            (_latency(broker, sizes) for _ in range(sizes.attempts)), key=lambda one: one[1]
        )
    for at, name in enumerate(("publish to consumer, p50", "publish to consumer, p99")):
        settings = {**_settings(sizes), "messages": sizes.latency, "messages_per_s": sizes.per_s}
        result = Result(name, found[ours.name][at], "ms", settings=settings)
        yield from [result.beside(peer.name, found[peer.name][at]) for peer in peers] or [result]


def _latency(broker: Broker, sizes: Sizes) -> tuple[float, float]:
    """p50 and p99 in milliseconds, at a fixed pace; one that had to wait counts from when it was due."""
    broker.clear(broker.queue)
    with Child(_timing_consumer, broker, sizes.latency) as child, broker.publisher(broker.queue) as publish:
        child.hear()
        due_ns = time.monotonic_ns()
        for _ in range(sizes.latency):
            due_ns += 1_000_000_000 // sizes.per_s
            early_ns = due_ns - time.monotonic_ns()
            if early_ns > 0:
                time.sleep(early_ns / 1e9)
            sent_ns = time.monotonic_ns() if early_ns > 0 else due_ns
            publish(str(sent_ns).encode().ljust(_BODY_BYTES))
        took_ms = np.array(child.hear()[sizes.latency // 10 :]) / 1e6
    p50, p99 = np.percentile(took_ms, [50, 99]).tolist()
    return p50, p99


def _timing_consumer(line: Line, broker: Broker, messages: int) -> None:
    took_ns: list[int] = []

    def seen(body: bytes) -> None:
        took_ns.append(time.monotonic_ns() - int(body))

    line.say("ready")
    while len(took_ns) < messages:
        broker.consume(broker.queue, seen, each=False)
    line.say(took_ns)


def _bodies(count: int) -> list[bytes]:
    return [str(number).encode().ljust(_BODY_BYTES) for number in range(count)]


def _settings(sizes: Sizes) -> dict[str, Setting]:
    return {"body_bytes": _BODY_BYTES, "best_of": sizes.attempts, "batch": _BATCH, "durability": "fsync"}


def _to_stderr(step: str) -> None:
    print(f"bench queue: {step}", file=sys.stderr, flush=True)
