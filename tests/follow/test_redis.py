"""What is special about Redis: it can be emptied, be away, and forget."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.follow.backends import changelog, upsert
from tests.follow.sinks import RedisPlace
from tests.follow.test_follower import running
from tests.servers import Redis, Unavailable, start_redis
from tests.waiting import wait_until

import penstock as ps
from penstock.errors import NotAllowed, Unreachable
from penstock.follow import Follower, Sink, TableSpec
from penstock.follow.redis import RedisSink
from penstock.follow.target import Site


@pytest.fixture
def counted(log: ps.Log) -> tuple[ps.Topic, TableSpec]:
    return changelog(log, "counts", "k STRING, v BIGINT", ("k",))


@pytest.fixture
def kept(redis: Redis) -> Iterator[RedisPlace]:
    place = RedisPlace(redis.url)
    yield place
    place.close()


def opened(url: str) -> Sink:
    return RedisSink(url, label="redis", prefix="penstock")


def test_a_redis_that_is_emptied_while_nothing_happens_is_filled_again(
    kept: RedisPlace, counted: tuple[ps.Topic, TableSpec]
) -> None:
    topic, spec = counted
    topic.append([upsert(k="a", v=1), upsert(k="b", v=2)])
    follower = Follower(topic, opened(kept.address), spec, look_s=0)
    with running(follower) as ended:
        wait_until(lambda: len(kept.rows("counts")) == 2, what="both rows")
        kept.client.flushall()
        wait_until(lambda: len(kept.rows("counts")) == 2, what="both rows again")
        assert ended() is None


def test_a_redis_that_is_away_is_waited_for_and_filled_again(
    counted: tuple[ps.Topic, TableSpec],
) -> None:
    topic, spec = counted
    with tempfile.TemporaryDirectory() as folder:
        try:
            server = start_redis(Path(folder))
        except Unavailable as reason:
            pytest.skip(str(reason))
        follower = Follower(topic, opened(server.url), spec)
        topic.append([upsert(k="a", v=1)])
        with running(follower) as ended:
            place = RedisPlace(server.url)
            wait_until(lambda: len(place.rows("counts")) == 1, what="the first row")
            server.stop()  # with all that it held
            topic.append([upsert(k="b", v=2)])
            wait_until(lambda: follower.retries >= 2, what="two more tries")
            assert "does not answer" in str(follower.last_error)
            server = start_redis(Path(folder), port=server.port)
            try:
                wait_until(lambda: len(place.rows("counts")) == 2, what="both rows")
                assert ended() is None
            finally:
                place.close()
        server.stop()


def test_rows_go_away_after_their_time(kept: RedisPlace, counted: tuple[ps.Topic, TableSpec]) -> None:
    topic, spec = counted
    topic.append([upsert(k="a", v=1)])
    sink = RedisSink(kept.address, label="redis", prefix="shop:eu", ttl_ms=3_600_000)
    Follower(topic, sink, spec).step(timeout_s=0)
    left: Any = kept.client.pttl("shop:eu:counts:a")
    assert 0 < left <= 3_600_000
    stored: Any = kept.client.get("shop:eu:counts:a")
    assert json.loads(stored) == {"k": "a", "v": 1}
    assert kept.client.pttl("shop:eu:counts") == -1


def test_only_the_rows_of_the_view_are_cleared(kept: RedisPlace, counted: tuple[ps.Topic, TableSpec]) -> None:
    topic, spec = counted
    topic.append([upsert(k="a", v=1)])
    sink = RedisSink(kept.address, label="redis", prefix="s*p")
    Follower(topic, sink, spec).step(timeout_s=0)
    others = ["shop:counts:x", "s*p:counts2:x", "s*p:count:x"]
    for name in others:
        kept.client.set(name, "theirs")
    sink.prepare(spec, "another changelog")
    left: Any = kept.client.keys()
    assert sorted(name.decode() for name in left) == sorted([*others, "s*p:counts"])


def test_a_follower_that_clears_gives_way_to_one_that_came_after_it(
    kept: RedisPlace, counted: tuple[ps.Topic, TableSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, spec = counted
    topic.append([upsert(k="a", v=1)])
    slow, fast = opened(kept.address), opened(kept.address)
    clear = RedisSink._clear

    def interrupted(self: RedisSink, view: str, claim: str) -> None:
        monkeypatch.setattr(RedisSink, "_clear", clear)
        Follower(topic, fast, spec).step(timeout_s=0)
        clear(self, view, claim)

    monkeypatch.setattr(RedisSink, "_clear", interrupted)
    with pytest.raises(ps.Contended):
        slow.prepare(spec, topic.settings.id)
    assert kept.rows("counts") == {"a": {"k": "a", "v": 1}}


def test_a_wrong_password_is_told_without_it(
    counted: tuple[ps.Topic, TableSpec], home: Path, log: ps.Log
) -> None:
    topic, spec = counted
    with tempfile.TemporaryDirectory() as folder:
        try:
            server = start_redis(Path(folder), password="right")
        except Unavailable as reason:
            pytest.skip(str(reason))
        try:
            target = ps.to.redis(f"redis://:hidden-word@127.0.0.1:{server.port}/0")
            with pytest.raises(NotAllowed) as told:
                Follower(topic, target.open(Site("shop", home, log)), spec).step(timeout_s=0)
        finally:
            server.stop()
    assert f"127.0.0.1:{server.port}" in str(told.value)
    assert "hidden-word" not in str(told.value) + repr(target)
    with pytest.raises(Unreachable):
        Follower(topic, target.open(Site("shop", home, log)), spec).step(timeout_s=0)
