"""`to=`: what may be said, and tables that go to several places while an app runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from tests.follow.receivers import web_server
from tests.follow.sinks import RedisPlace
from tests.servers import Redis, free_port
from tests.waiting import wait_until

import penstock as ps
from penstock.app.graph import Graph
from penstock.app.runner import Runner
from penstock.app.status import Watch
from penstock.errors import BadOption, StorageError
from penstock.follow.sqlite import SQLiteStore
from penstock.follow.table import TableSpec, spec_of


def without_spark(app: ps.App) -> Runner:
    """An app of tables alone has no query, and needs no Spark."""
    return Runner(app, Graph(app, None))


def declare(app: ps.App, to: Any, **options: Any) -> None:
    app.table("users", "id BIGINT, name STRING", key="id", to=to, **options)


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("archive", "parquet:///path"),
        ("ftp://host/x", "parquet:///path"),
        ("smtp://host", "ps.to.mail"),
        ([7], "nothing can follow to int"),
        ("redis://", "redis://host:6379/0"),
        ("http://", "https://example.com/hook"),
        ("http://host:99999/", "https://example.com/hook"),
        ("http://shop..example/", "https://example.com/hook"),
        ("parquet:///", "names no path"),
        (["parquet:///x", "parquet:///x"], "twice"),
    ],
    ids=str,
)
def test_what_means_nothing_is_refused_when_it_is_declared(home: Path, to: Any, said: str) -> None:
    app = ps.App("shop", home=home)
    with pytest.raises(BadOption) as told:
        declare(app, to)
    assert said in str(told.value)
    declare(app, ())  # the name is still free
    assert app.followed == {}


@pytest.mark.parametrize(
    "make",
    [
        lambda: ps.to.redis("redis://h", prefix=""),
        lambda: ps.to.redis("redis://h", ttl=0),
        lambda: ps.to.webhook("http://h/", batch=0),
        lambda: ps.to.webhook("http://h/", headers={"a": "b\r\nc: d"}),
        lambda: ps.to.mail("smtp://h", to=[], sender="a@b", subject="", body=""),
        lambda: ps.to.mail("smtp://h", to="nobody", sender="a@b", subject="", body=""),
        lambda: ps.to.mail("smtp://h", to="a@b", sender="a@b", subject="{", body=""),
        lambda: ps.to.mail("smtp://h", to="a@b", sender="a@b", subject="{0}", body=""),
        lambda: ps.to.postgres("mysql://h/db"),
    ],
)
def test_options_out_of_range_are_refused(make: Any) -> None:
    with pytest.raises(BadOption):
        make()


def test_rows_by_key_need_a_key_and_one_order(home: Path) -> None:
    app = ps.App("shop", home=home)
    with pytest.raises(BadOption, match="has no key"):
        app.stream(name="s", to="redis://h")(lambda: None)
    with pytest.raises(BadOption, match=r"ps\.latest"):
        app.table("t", "id BIGINT, at TIMESTAMP", key="id", event_time="at", to="redis://h")
    app.stream(name="s", to=["parquet:///x", "https://h/hook"])(lambda: None)
    app.table("t", "id BIGINT, at TIMESTAMP", key="id", event_time="at", to="https://h/hook")
    assert {name: len(targets) for name, targets in app.followed.items()} == {"s": 2, "t": 1}


@pytest.mark.parametrize(
    ("package", "address", "extra"),
    [
        ("redis", "redis://h", "redis"),
        ("tantivy", "search:///x", "search"),
        ("deltalake", "delta:///x", "delta"),
    ],
)
def test_a_missing_package_is_named_when_it_is_declared(package: str, address: str, extra: str) -> None:
    program = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "import penstock as ps\n"
        f"try: ps.App('shop', home='x').table('t', 'id BIGINT', key='id', to={address!r})\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.startswith("NotSupported")
    assert f'pip install "penstock[{extra}]"' in said


def test_a_table_goes_to_several_places_and_one_that_is_down_holds_nobody_back(
    home: Path, tmp_path: Path, redis: Redis
) -> None:
    port = free_port()
    hook = f"http://127.0.0.1:{port}/"
    app = ps.App("shop", home=home)
    users = app.table(
        "users", "id BIGINT, name STRING", key="id", partitions=2,
        to=[redis.url, ps.to.parquet(tmp_path / "archive", every=0), f"sqlite:///{tmp_path}/users.db", hook],
    )  # fmt: skip
    users.upsert([{"id": number, "name": f"u{number}"} for number in range(10)])
    cache, store = RedisPlace(redis.url), SQLiteStore(tmp_path / "users.db")
    spec = spec_of(users.settings.schema.arrow, ("id",), name="users")
    runner = without_spark(app)
    watch = Watch(runner)
    runner.start()
    try:
        wait_until(lambda: len(cache.rows("users")) == 10, what="Redis")
        users.delete({"id": 3})
        wait_until(lambda: len(cache.rows("users")) == 9, what="the delete in Redis")
        wait_until(lambda: _rows(store, spec) == 9, what="SQLite")
        wait_until(lambda: _archived(tmp_path) == 11, what="the archive")
        failing = {follower.view: follower for follower in watch.look().followers}
        assert watch.look().log_error is None
        assert (failing[f"users to {hook}"].behind, failing[f"users to {redis.url}"].behind) == (11, 0)
        assert "does not answer" in str(failing[f"users to {hook}"].last_error)
        assert failing[f"users to {redis.url}"].last_error is None
        with web_server(port) as web:
            wait_until(lambda: len(set(web.good)) == 11, what="the web server to have everything")
            assert len(web.taken) == 11
    finally:
        runner.stop()
        cache.close()
        store.close()
        app.close()


def _rows(store: SQLiteStore, spec: TableSpec) -> int | None:
    return None if store.progress(spec.name) is None else len(store.rows(spec)[0])


def _archived(folder: Path) -> int:
    files = (folder / "archive").rglob("*.parquet")
    return sum(pyarrow.parquet.read_table(file).num_rows for file in files)


def test_once_catches_up_and_says_what_it_could_not_deliver(home: Path, redis: Redis) -> None:
    app = ps.App("shop", home=home)
    hook = f"http://127.0.0.1:{free_port()}/"
    users = app.table("users", "id BIGINT, name STRING", key="id", to=[hook, redis.url])
    cache = RedisPlace(redis.url)
    users.upsert([{"id": number, "name": f"u{number}"} for number in range(10)])
    runner = without_spark(app)
    with pytest.raises(StorageError, match="does not answer"):
        runner.once()
    assert len(cache.rows("users")) == 10
    assert runner.followers[f"users to {hook}"].last_error
    users.delete({"id": 0})
    with pytest.raises(StorageError):
        without_spark(app).once()
    assert len(cache.rows("users")) == 9
    cache.close()
    app.close()


def test_a_target_added_later_has_everything(home: Path, redis: Redis) -> None:
    before = ps.App("shop", home=home)
    declare(before, ())
    before.topics["users"].append([{"id": number, "name": None} for number in range(5)])
    before.close()
    after = ps.App("shop", home=home)
    declare(after, redis.url)
    cache = RedisPlace(redis.url)
    without_spark(after).once()
    assert sorted(cache.rows("users")) == ["0", "1", "2", "3", "4"]
    cache.close()
    after.close()


def test_nothing_goes_out_while_an_app_is_tested(home: Path, tmp_path: Path, redis: Redis) -> None:
    app = ps.App("shop", home=home)
    declare(app, redis.url)
    cache = RedisPlace(redis.url)
    with app.relocated(ps.open_log(tmp_path / "elsewhere"), tmp_path / "elsewhere"):
        app.topics["users"].append({"id": 1, "name": "test"})
        without_spark(app).once()
    assert cache.client.dbsize() == 0
    cache.close()
    assert list(app.followed) == ["users"]
