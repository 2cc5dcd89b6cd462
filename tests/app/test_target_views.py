"""Views and streams of a whole app that also go elsewhere: a cache, an archive, a web server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession
from tests.follow.receivers import web_server
from tests.follow.sinks import RedisPlace
from tests.servers import Redis
from tests.waiting import wait_until

import penstock as ps
from penstock.app.graph import Graph
from penstock.app.runner import Runner

START = datetime(2026, 11, 1, 10, 0, tzinfo=UTC)


def test_a_view_and_a_stream_go_elsewhere(
    home: Path, tmp_path: Path, redis: Redis, spark: SparkSession
) -> None:
    with web_server() as web:
        app = ps.App("shop", home=home)
        visits = app.topic("visits", "page STRING, at TIMESTAMP", event_time="at", lateness="5 seconds")

        @app.view(key="page", to=[redis.url, web.url])
        def per_page() -> DataFrame:
            return ps.latest(visits.stream(), by="page")

        @app.stream(to=ps.to.parquet(tmp_path / "archive", every=0))
        def starts() -> DataFrame:
            return visits.stream().where("page = '/'")

        @app.stream(key="page", name="pages", to=[f"sqlite:///{tmp_path}/pages.db"])
        def keyed() -> DataFrame:
            return visits.stream().select("page")

        def append(*seconds: float) -> None:
            for s in seconds:
                visits.append({"page": "/" if s % 2 else "/even", "at": START + timedelta(seconds=s)})

        cache = RedisPlace(redis.url)
        append(1, 2)
        graph = Graph(app, spark).analyse()
        Runner(app, graph).once()
        assert {key: row["at"] for key, row in cache.rows("per_page").items()} == {
            "/": "2026-11-01T10:00:01Z",
            "/even": "2026-11-01T10:00:02Z",
        }
        assert {(body["op"], body["row"]["page"]) for _, body in web.taken} == {("u", "/"), ("u", "/even")}
        assert [row["page"] for row in _archived(tmp_path)] == ["/"]

        runner = Runner(app, Graph(app, spark).analyse())
        runner.start()
        try:
            append(3, 4)
            wait_until(
                lambda: cache.rows("per_page")["/even"]["at"] == "2026-11-01T10:00:04Z",
                timeout_s=60,
                what="the newest visit in Redis",
            )
            wait_until(lambda: len(web.good) == 4, timeout_s=60, what="both changes by HTTP")
            wait_until(lambda: len(_archived(tmp_path)) == 2, timeout_s=60, what="both in the archive")
            assert len(set(web.keys)) == len(web.taken) == 4
            assert set(runner.followers) == {
                "per_page",
                f"per_page to {redis.url}",
                f"per_page to http://127.0.0.1:{web.port}/…",
                f"starts to parquet:///{str(tmp_path / 'archive').lstrip('/')}",
                f"pages to sqlite:///{tmp_path}/pages.db",
            }
        finally:
            runner.stop()
            cache.close()
            app.close()


def _archived(folder: Path) -> list[dict[str, object]]:
    files = sorted((folder / "archive" / "starts").rglob("*.parquet"))
    return [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]
