"""How tests open and look into each sink that holds rows by key and is no store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import redis as client
import tantivy
from deltalake import DeltaTable

from penstock.follow import Sink
from penstock.follow.delta import DeltaSink
from penstock.follow.documents import key_texts, plain_rows
from penstock.follow.redis import RedisSink
from penstock.follow.search import SearchSink
from penstock.follow.store import Watch, unwatched

Rows = dict[str, dict[str, Any]]
KEYS = {"shop": ("k", "n"), "total": (), "counts": ("k",), "users": ("id",)}
"""Of what the tests make."""
STEPS = {
    "redis": ("begun", "queued", "committed"),
    "search": ("begun", "written", "committed"),
    "delta": ("begun", "merging", "committed"),
}
"""Of an apply, in order; the last is after its commit."""


class Keyed(Protocol):
    """One place for rows, empty at first."""

    kind: str
    address: str

    def rows(self, name: str) -> Rows:
        """What is there, by the text of the key; without revisions that are 0."""

    def close(self) -> None: ...


class RedisPlace:
    kind = "redis"

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


class SearchPlace:
    kind = "search"

    def __init__(self, folder: Path) -> None:
        self.address = str(folder)

    def rows(self, name: str) -> Rows:
        folder = Path(self.address, name)
        if not folder.exists():
            return {}
        index = tantivy.Index.open(str(folder))
        searcher = index.searcher()
        hits = searcher.search(tantivy.Query.exists_query("key"), 1_000).hits
        documents = (searcher.doc(address) for _, address in hits)
        found = [json.loads(bytes(each.get_first("row"))) for each in documents]  # type: ignore[arg-type]
        return {_key_of(name, row): row for row in found}

    def close(self) -> None:
        """Nothing is open."""


class DeltaPlace:
    kind = "delta"

    def __init__(self, folder: Path) -> None:
        self.address = str(folder)

    def rows(self, name: str) -> Rows:
        folder = Path(self.address, name)
        if not folder.exists():
            return {}
        table = pa.table(DeltaTable(folder).to_pyarrow_table())
        plain = [{n: v for n, v in row.items() if n != "_revision" or v} for row in plain_rows(table)]
        assert len(plain) == len({_key_of(name, row) for row in plain})
        return {_key_of(name, row): row for row in plain}

    def close(self) -> None:
        """Nothing is open."""


def _key_of(name: str, row: dict[str, Any]) -> str:
    return key_texts(pa.Table.from_pylist([row]), KEYS[name])[0]


def open_sink(kind: str, address: str, *, watch: Watch = unwatched) -> Sink:
    if kind == "redis":
        return RedisSink(address, label="redis", prefix="penstock", watch=watch)
    if kind == "search":
        return SearchSink(Path(address), watch=watch)
    return DeltaSink(Path(address), watch=watch)


def place(kind: str, folder: Path, redis_url: str) -> Keyed:
    if kind == "redis":
        return RedisPlace(redis_url)
    return SearchPlace(folder) if kind == "search" else DeltaPlace(folder)
