"""Idempotency keys: an append that carries one happens once, however often it is sent.

Each such append stores, in one atomic append with its records, a record of its key in the topic
`_gateway.keys`, which keeps a day. So a key is there if and only if its records are, after any crash. Keys
are spread over a few producers; only one gateway can hold a producer, and one that takes it over reads all
keys before its first append.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.app.app import App
from penstock.errors import BadInput, Fenced
from penstock.gateway.refusals import Busy, KeyReused
from penstock.log.log import AtomicProducer
from penstock.log.topic import Topic

TOPIC = "_gateway.keys"
_SCHEMA = "key BINARY NOT NULL, body BINARY NOT NULL"
_KEPT_US = 86_400_000_000
_KNOWN_MAX = 1_000_000
_LANES = 4
_TRIES_MAX = 5


@dataclass(frozen=True, slots=True)
class Known:
    """An append that was stored. Where its records are is known to the gateway that stored it."""

    body: bytes  # its fingerprint
    time_us: int
    ends: Mapping[int, int] = field(default_factory=dict)
    firsts: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Appended:
    known: Known
    duplicate: bool


@dataclass(slots=True)
class _Lane:
    number: int
    mutex: threading.Lock = field(default_factory=threading.Lock)
    producer: AtomicProducer | None = None


class Keys:
    """Thread-safe."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._lanes = [_Lane(number) for number in range(_LANES)]
        self._mutex = threading.Lock()
        self._known: OrderedDict[bytes, Known] = OrderedDict()
        self._topic: Topic | None = None
        self._read_to = 0

    def append(self, topic: Topic, records: Any, *, key: str, body: bytes) -> Appended:
        """Store them, unless that was done under this key. `body`: a fingerprint of what was sent.

        Raises KeyReused when it was done with another body, Busy when another gateway was always faster.
        """
        name = hashlib.blake2b(f"{topic.name}\0{key}".encode(), digest_size=16).digest()
        lane = self._lanes[name[0] % _LANES]
        with lane.mutex:
            for _ in range(_TRIES_MAX):
                producer = lane.producer or self._take_over(lane)
                if known := self._find(name):
                    if known.body != body:
                        raise KeyReused(key)
                    return Appended(known, duplicate=True)
                try:
                    return Appended(self._store(producer, topic, records, name, body), duplicate=False)
                except Fenced:  # another gateway has it, and may have stored this very key
                    lane.producer = None
                except BadInput:  # nothing was stored
                    raise
                except BaseException:  # it may be stored: who takes the producer over learns it from the keys
                    lane.producer = None
                    raise
            raise Busy("another gateway of this log appends with keys, too")

    def close(self) -> None:
        for lane in self._lanes:
            with lane.mutex:
                if lane.producer is not None:
                    lane.producer.close()
                    lane.producer = None

    def _take_over(self, lane: _Lane) -> AtomicProducer:
        # First the producer, so that nobody else appends under it, and then what they had appended.
        producer = self._app.log.producer(f"_gateway-{lane.number}")
        self._read()
        lane.producer = producer
        return producer

    def _find(self, name: bytes) -> Known | None:
        with self._mutex:
            return self._known.get(name)

    def _store(self, producer: AtomicProducer, topic: Topic, records: Any, name: bytes, body: bytes) -> Known:
        own = self._opened()
        result = producer.append({topic: records, own: [{"key": name, "body": body}]})
        placed = next((found for found in result.positions if found.topic == topic.name), None)
        known = Known(body, _now_us(), placed.ends if placed else {}, placed.firsts if placed else {})
        with self._mutex:
            self._remember(name, known)
        return known

    def _read(self) -> None:
        """Keys that are stored and not yet known here."""
        topic = self._opened()
        with self._mutex:
            start, end = topic.bounds()[0]
            for batch in topic.read(partition=0, start=max(start, self._read_to), end=end):
                times = batch.column("_timestamp").cast(pa.int64()).to_pylist()
                keys, bodies = batch.column("key").to_pylist(), batch.column("body").to_pylist()
                for name, body, time_us in zip(keys, bodies, times, strict=True):
                    if name not in self._known:
                        self._remember(name, Known(body, time_us))
            self._read_to = end

    def _remember(self, name: bytes, known: Known) -> None:
        self._known[name] = known
        oldest = next(iter(self._known.values()))
        while len(self._known) > _KNOWN_MAX or oldest.time_us < known.time_us - _KEPT_US:
            self._known.popitem(last=False)
            oldest = next(iter(self._known.values()))

    def _opened(self) -> Topic:
        if self._topic is None:
            self._topic = self._app.log.create_topic(TOPIC, _SCHEMA, retention="1 day", if_missing=True)
        return self._topic


def fingerprint(kind: str, body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16, person=kind[-16:].encode()).digest()


def _now_us() -> int:
    import time

    return time.time_ns() // 1_000
