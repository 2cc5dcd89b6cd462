"""How tests open and look into each sink that holds rows by key and is no store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import redis as client

from penstock.follow import Sink
from penstock.follow.redis import RedisSink
from penstock.follow.store import Watch, unwatched

Rows = dict[str, dict[str, Any]]


class Keyed(Protocol):
    """One place for rows, empty at first."""

    kind: str
    address: str
    steps: tuple[str, ...]  # of an apply, in order; the last is after its commit

    def rows(self, name: str) -> Rows:
        """What is there, by the text of the key; without revisions that are 0."""

    def close(self) -> None: ...


class RedisPlace:
    kind, steps = "redis", ("begun", "queued", "committed")

    def __init__(self, url: str) -> None:
        self.address = url
        self.client = client.Redis.from_url(url)
        self.client.flushdb()

    def rows(self, name: str) -> Rows:
        found: Any = self.client.keys(f"penstock:{name}:*")
        values: Any = self.client.mget(found) if found else []
        start = len(f"penstock:{name}:")
        return {key.decode()[start:]: json.loads(row) for key, row in zip(found, values, strict=True)}

    def close(self) -> None:
        self.client.close()


def open_sink(kind: str, address: str, *, watch: Watch = unwatched) -> Sink:
    return RedisSink(address, label="redis", prefix="penstock", watch=watch)


def place(kind: str, folder: Path, redis_url: str) -> Keyed:
    return RedisPlace(redis_url)
