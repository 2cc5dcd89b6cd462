"""Copies of rows in Redis: a JSON text for each row, under `<prefix>:<name>:<key>`.

The hash `<prefix>:<name>` says which changelog the rows are of, in which columns, and how far they are.
It is watched, and changed in the same MULTI/EXEC as the rows: an older or a second follower changes
nothing. A Redis that was emptied has no such hash, and is filled anew.

With a `ttl` rows go away by themselves: then it is a cache of what changed lately. For one Redis with
replicas, not for a cluster of shards, which has no such transactions.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import redis
from redis.backoff import NoBackoff
from redis.client import Pipeline
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, WatchError
from redis.retry import Retry

from penstock.errors import Contended, NotAllowed, Unreachable
from penstock.follow.changes import DELETE, Changed, changed
from penstock.follow.documents import key_texts, row_texts
from penstock.follow.store import CHUNK_RECORDS, Held, Progress, Watch, checked, unwatched
from penstock.follow.table import TableSpec

Answer = TypeVar("Answer")
_WAIT_S = 10.0
_CONNECT_S = 5.0
_KEYS_AT_ONCE = 1_000


class RedisSink:
    """Thread-safe: each transaction has a connection of its own out of a pool."""

    keyed, gather_s, chunk_records = True, 0.0, CHUNK_RECORDS

    def __init__(
        self, url: str, *, label: str, prefix: str, ttl_ms: int | None = None, watch: Watch = unwatched
    ) -> None:
        self._client = redis.Redis.from_url(
            url, socket_timeout=_WAIT_S, socket_connect_timeout=_CONNECT_S, retry=Retry(NoBackoff(), 0)
        )
        self._label, self._prefix, self._ttl_ms, self._watch = label, prefix, ttl_ms, watch
        self._prepared: dict[str, str] = {}  # view -> id of the changelog it follows

    def __repr__(self) -> str:
        return f"<RedisSink {self._label}>"  # the address may hold a password

    def prepare(self, spec: TableSpec, changelog_id: str) -> Progress:
        claim = uuid.uuid4().hex
        held = self._changing(spec.name, lambda pipe: self._claimed(pipe, spec, changelog_id, claim))
        if held is None:
            self._clear(spec.name, claim)
            held = Held(changelog_id, spec.ddl, spec.key, Progress(0))
            begun = held
            self._changing(spec.name, lambda pipe: self._begin(pipe, spec.name, begun, claim))
        self._prepared[spec.name] = changelog_id
        return held.progress

    def apply(
        self, spec: TableSpec, changes: pa.Table, *, from_offset: int, next_offset: int, partition: int = 0
    ) -> None:
        todo = changed(spec, changes)

        def work(pipe: Pipeline) -> None:
            prepared = self._prepared.get(spec.name)
            before = checked(spec, self._held(pipe, spec.name), prepared, from_offset, partition)
            self._watch("begun")
            pipe.multi()
            self._queue(pipe, spec, todo)
            _note(pipe, self._place(spec.name), before.after(todo, next_offset, partition=partition))
            self._watch("queued")

        self._changing(spec.name, work)
        self._watch("committed")

    def progress(self, view: str) -> Progress | None:
        with self._errors():
            held = self._held(self._client, view)
        return held.progress if held else None

    def drop(self, view: str) -> None:
        claim = uuid.uuid4().hex
        self._changing(view, lambda pipe: self._claim(pipe, view, claim))
        self._clear(view, claim)
        self._changing(view, lambda pipe: self._removed(pipe, view, claim))
        self._prepared.pop(view, None)

    def close(self) -> None:
        self._client.close()

    # ---- one transaction ------------------------------------------------------------------------

    def _changing(self, view: str, work: Callable[[Pipeline], Answer]) -> Answer:
        """Do `work` unless somebody else changes the view's progress meanwhile."""
        with self._errors(), self._client.pipeline(transaction=True) as pipe:
            watch: Any = pipe.watch  # which has no types
            watch(self._place(view))
            answer = work(pipe)
            try:
                pipe.execute()
            except WatchError as error:
                raise Contended(
                    f'the copy of "{view}" in {self._label} was changed by somebody else meanwhile.',
                    hint="another follower works on the same Redis; stop one of them",
                ) from error
            return answer

    def _queue(self, pipe: Pipeline, spec: TableSpec, todo: Changed) -> None:
        gone = todo.removals.filter(pc.equal(todo.removals["_op"], DELETE))
        for names in _pieces([self._row(spec.name, text) for text in key_texts(gone, spec.key)]):
            pipe.unlink(*names)
        texts = zip(key_texts(todo.upserts, spec.key), row_texts(todo.upserts), strict=True)
        for key, row in texts:
            pipe.set(self._row(spec.name, key), row, px=self._ttl_ms)

    def _held(self, client: Any, view: str) -> Held | None:
        """`client`: also a pipeline that watches, and so answers at once."""
        found = {name.decode(): value.decode() for name, value in client.hgetall(self._place(view)).items()}
        if "progress" not in found:
            return None
        key, progress = tuple(json.loads(found["key"])), Progress.read(found["progress"])
        return Held(found["changelog"], found["columns"], key, progress)

    # ---- beginning anew ---------------------------------------------------------------------------

    def _claimed(self, pipe: Pipeline, spec: TableSpec, changelog_id: str, claim: str) -> Held | None:
        """What is there, where that can go on; else from now on there is nothing, and we clear it away."""
        held = self._held(pipe, spec.name)
        if held is not None and held.is_of(spec, changelog_id):
            return held
        self._claim(pipe, spec.name, claim)
        return None

    def _claim(self, pipe: Pipeline, view: str, claim: str) -> None:
        pipe.multi()
        pipe.delete(self._place(view))
        pipe.hset(self._place(view), "claim", claim)

    def _begin(self, pipe: Pipeline, view: str, held: Held, claim: str) -> None:
        self._check_claim(pipe, view, claim)
        pipe.multi()
        pipe.delete(self._place(view))
        for name, fact in (("changelog", held.changelog_id), ("columns", held.columns)):
            pipe.hset(self._place(view), name, fact)
        pipe.hset(self._place(view), "key", json.dumps(held.key))
        _note(pipe, self._place(view), held.progress)

    def _removed(self, pipe: Pipeline, view: str, claim: str) -> None:
        self._check_claim(pipe, view, claim)
        pipe.multi()
        pipe.delete(self._place(view))

    def _clear(self, view: str, claim: str) -> None:
        """Remove every row. Whoever begins anew after us has a claim of its own, and ours is void."""
        with self._errors():
            names = self._client.scan_iter(match=f"{_literal(self._row(view, ''))}*", count=_KEYS_AT_ONCE)
            found = list(names)
        for some in _pieces(found):
            self._changing(view, lambda pipe, some=some: self._unlink(pipe, view, claim, some))  # type: ignore[misc]

    def _unlink(self, pipe: Pipeline, view: str, claim: str, names: list[Any]) -> None:
        self._check_claim(pipe, view, claim)
        pipe.multi()
        pipe.unlink(*names)

    def _check_claim(self, pipe: Pipeline, view: str, claim: str) -> None:
        if pipe.hget(self._place(view), "claim") != claim.encode():
            raise Contended(
                f'the copy of "{view}" in {self._label} is begun anew by somebody else.',
                hint="another follower works on the same Redis; stop one of them",
            )

    # ---- names and errors -------------------------------------------------------------------------

    def _place(self, view: str) -> str:
        return f"{self._prefix}:{view}"

    def _row(self, view: str, key: str) -> str:
        return f"{self._prefix}:{view}:{key}"

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (AuthenticationError, NoPermissionError) as error:
            raise NotAllowed(f"Redis at {self._label}", _line(error)) from error
        except (RedisError, OSError) as error:
            raise Unreachable(
                f"Redis at {self._label}", _line(error), hint="check that it runs, and its address"
            ) from error


def _note(pipe: Pipeline, place: str, progress: Progress) -> None:
    pipe.hset(place, "progress", progress.text)


def _pieces(names: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(names), _KEYS_AT_ONCE):
        yield names[start : start + _KEYS_AT_ONCE]


def _literal(text: str) -> str:
    """As a pattern that means itself."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
