"""An app on a real Spark cluster over a real Kafka, whose workers know nothing of it; one of them dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.kafka.standalone import Standalone, python_without, standalone
from tests.waiting import wait_until

import penstock as ps
from penstock.app import reading
from penstock.app.graph import Graph
from penstock.app.loading import load
from penstock.app.verify import verify
from penstock.flow.session import send_by_value
from penstock.kafka.cluster import State

START = datetime(2026, 11, 1, 10, 0, tzinfo=UTC)
EVENTS, PIECES = 1_200, 12
_PATIENCE_S = 300.0  # a cluster, Kafka and Spark share a machine that may be busy

pytestmark = pytest.mark.timeout(900)

SHOP = """
import os

from prices_of_the_shop import in_cents
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import penstock as ps

app = ps.App(
    "clustered",
    home=os.environ["SHOP_HOME"],
    log=os.environ["SHOP_LOG"],
    spark=os.environ.get("SHOP_SPARK"),
    checkpoints=os.environ["SHOP_CHECKPOINTS"],
    spark_settings={
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": "-Xss8m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    },
)
orders = app.topic(
    "orders", "id BIGINT, customer BIGINT, euros DOUBLE, at TIMESTAMP", key="customer", event_time="at",
    lateness="30 seconds", partitions=4,
)

payments = app.topic(
    "payments", "id BIGINT, paid DOUBLE, at TIMESTAMP", key="id", event_time="at", lateness="30 seconds",
    partitions=2,
)


def doubled(cents):
    return 2 * cents


@app.stream(key="customer")
def priced():
    regions = SparkSession.active().sql("SELECT * FROM VALUES (0, 'north'), (1, 'south') AS t(part, region)")
    cents = F.udf(doubled, "BIGINT")(F.udf(in_cents, "BIGINT")("euros"))
    parted = orders.stream().withColumn("part", F.col("customer") % 2)
    return parted.join(regions, "part").select("id", "customer", "region", cents.alias("cents"))


@app.stream(key="id")
def paid():
    return ps.join_within(orders.stream(), payments.stream(), on="id", after="1 minute", how="left")


@app.view(key=["customer", "window"])
def per_minute():
    found = dict(orders=ps.count(), euros=ps.sum("euros"))
    minutes = ps.tumbling("1 minute")
    return ps.aggregate(orders.stream(), by="customer", window=minutes, late="divert", **found)


@app.view(key=["customer", "window"])
def visits():
    return ps.aggregate(orders.stream(), by="customer", window=ps.session("20 seconds"), orders=ps.count())
"""

PRICES = """
def in_cents(euros):
    return round(euros * 100)
"""


@pytest.fixture(scope="module")
def cluster(kafka: State) -> Iterator[Standalone]:
    with standalone(workers=2) as started:
        yield started


@pytest.fixture
def shop(tmp_path: Path, kafka: State, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The app's file, in a folder that is on nobody's path."""
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "prices_of_the_shop.py").write_text(PRICES)
    (folder / "clustered_shop.py").write_text(SHOP)
    monkeypatch.setenv("SHOP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SHOP_CHECKPOINTS", f"file://{tmp_path}/shared")
    monkeypatch.setenv("SHOP_LOG", kafka.url)
    return folder / "clustered_shop.py"


@contextmanager
def running(shop: Path, settings: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """`penstock run` in a process of its own; at the end it is killed, if it was not stopped."""
    with (shop.parent / "said.txt").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "run", str(shop)], stdout=said, stderr=said,
            env={**os.environ, **settings}, cwd=shop.parent, start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):  # it has ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def events(numbers: range) -> list[dict[str, object]]:
    """Four a second; every tenth comes more than three minutes late."""
    return [
        {
            "id": number,
            "customer": number % 5,
            "euros": number / 4,
            "at": START + timedelta(seconds=number / 4 - (200 if number % 10 == 9 else 0)),
        }
        for number in numbers
    ]


def payments_of(orders: list[dict[str, object]]) -> list[dict[str, object]]:
    """Of two orders in three, a little later."""
    return [
        {"id": order["id"], "paid": order["euros"], "at": order["at"] + timedelta(seconds=5)}  # type: ignore[operator]
        for order in orders
        if order["id"] % 3  # type: ignore[operator]
    ]


def test_a_worker_that_lacks_a_package_is_named(shop: Path, cluster: Standalone, tmp_path: Path) -> None:
    """Its Python is the one that the user's own spark-defaults.conf says."""
    python = python_without(tmp_path / "python", ["penstock", "orjson"])
    (tmp_path / "spark-defaults.conf").write_text(f"spark.pyspark.python {python}\n")
    with running(shop, {"SHOP_SPARK": cluster.url, "SPARK_CONF_DIR": str(tmp_path)}) as process:
        assert process.wait(_PATIENCE_S) != 0
    said = (shop.parent / "said.txt").read_text()
    assert "cannot import orjson with" in said
    assert "pip install" in said


def joined(app: ps.App) -> set[int]:
    """The orders that have met their payment."""
    if "paid" not in app.log.topics():
        return set()
    return {row["id"] for row in app.log.topic("paid").rows() if row["paid"] is not None}


def test_a_cluster_loses_a_worker_and_the_app_goes_on(
    shop: Path, cluster: Standalone, spark: SparkSession, tmp_path: Path, report: Callable[[str], None]
) -> None:
    loaded = load(str(shop))
    app = loaded.app
    orders, payments = app.topics["orders"], app.topics["payments"]
    python = python_without(tmp_path / "python", ["penstock"])
    began = time.monotonic()

    def append(piece: int) -> ps.Position:
        each = EVENTS // PIECES
        some = events(range(piece * each, (piece + 1) * each))
        placed = orders.append(some)
        payments.append(payments_of(some))
        return placed

    def arrived() -> int:
        if "priced" not in app.log.topics():
            return 0
        return sum(end - start for start, end in app.log.topic("priced").bounds().values())

    append(0)
    with running(shop, {"SHOP_SPARK": cluster.url, "PYSPARK_PYTHON": str(python)}) as process:

        def has(count: int) -> Callable[[], bool]:
            def came() -> bool:
                assert process.poll() is None, (shop.parent / "said.txt").read_text()[-2_000:]
                return arrived() >= count

            return came

        wait_until(has(EVENTS // PIECES), timeout_s=_PATIENCE_S, what="the first batch")
        for piece in range(1, PIECES):
            last = append(piece)
            if piece == PIECES // 3:
                wait_until(has(2 * EVENTS // PIECES), timeout_s=_PATIENCE_S, what="a batch to be under way")
                cluster.kill("worker0")
        wait_until(has(EVENTS), timeout_s=_PATIENCE_S, what="every event")
        in_time = {number for number in range(EVENTS) if number % 3 and number % 10 != 9}
        wait_until(lambda: in_time <= joined(app), timeout_s=_PATIENCE_S, what="every payment")
        for view in ("per_minute", "visits"):
            app.read(view, after=last, timeout=_PATIENCE_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(_PATIENCE_S) == 0, (shop.parent / "said.txt").read_text()[-2_000:]
    # Here, where Spark was running before there was a program.
    for module in (loaded.module, sys.modules["prices_of_the_shop"]):
        send_by_value(module)
    graph = Graph(app, spark).analyse()
    found = {name: verify(app, graph, name) for name in graph.analysed}
    assert {name: each.verdict for name, each in found.items()} == dict.fromkeys(found, "equal"), found
    assert sorted(row["id"] for row in app.log.topic("priced").rows()) == list(range(EVENTS))
    late = len(list(reading.late(app, "per_minute")))
    assert late > EVENTS // 20
    app.close()
    report(
        f"Spark cluster: {EVENTS:,} events, {late} late, a worker killed: nothing lost or doubled, equal to "
        f"verify, {time.monotonic() - began:.0f} s"
    )
