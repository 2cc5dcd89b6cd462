"""An app in real-time mode, until it is killed; or what is refused there, as JSON.

python -m tests.kafka.realtime HOME URL [refused | wider] [once]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import penstock as ps
from penstock.app.graph import Graph

DDL = "id BIGINT NOT NULL, page STRING, price DECIMAL(8,2), at TIMESTAMP"


def declare(home: Path, url: str, *, wider: bool = False) -> ps.App:
    """`wider`: its topic has got a column and a partition."""
    app = ps.App("realtime", home=home, log=url)
    ddl, partitions = (f"{DDL}, note STRING", 3) if wider else (DDL, 2)
    orders = app.topic(
        "purchases", ddl, key="page", event_time="at", partitions=partitions, lateness="10 minutes"
    )

    @app.stream(key="page", latency="realtime")
    def dear() -> DataFrame:
        return orders.stream().filter("price > 10").select("id", "page", "price", "at")

    @app.stream(key=["page", "window"], latency="realtime")
    def counted() -> DataFrame:
        return orders.stream().groupBy(F.window("at", "1 hour"), "page").count()

    return app


def refused(home: Path, url: str) -> dict[str, str]:
    """What each definition is told."""
    plain = ps.App("refused", home=home, log=url)
    orders = plain.topic("slow_orders", DDL, key="page", event_time="at", partitions=2, lateness="10 minutes")
    kept = plain.topic("kept", "k BIGINT", key="k", cleanup="compact")
    plain.stream(name="fine", latency="realtime")(lambda: orders.stream().select("id"))
    session = plain.start_spark()
    twice = F.udf(lambda value: value, "string")
    cases: dict[str, Callable[[], Any]] = {
        "ours": lambda: ps.aggregate(orders.stream(), by="page", window=ps.tumbling("1 hour"), n=ps.count()),
        "python": lambda: orders.stream().select("id", twice("page").alias("page")),
        "session": lambda: orders.stream().groupBy(F.session_window("at", "1 hour"), "page").count(),
        "pandas": lambda: orders.stream().mapInPandas(lambda frames: frames, "id BIGINT"),
        "compacted": lambda: kept.stream().select("k"),
        "without a key": lambda: orders.stream().groupBy("page").count(),
    }
    found: dict[str, str] = {}
    for name, define in cases.items():
        app = ps.App("refused", home=home, log=url)
        app.topics.update(plain.topics)
        app.stream(name=f"s{len(found)}", latency="realtime")(define)
        try:
            Graph(app, session).analyse()
            found[name] = "nothing"
        except ps.PenstockError as error:
            found[name] = str(error)
        finally:
            app.close()
    plain.close()
    return found


if __name__ == "__main__":
    place = Path(sys.argv[1]), sys.argv[2]
    if "refused" in sys.argv[3:]:
        print(json.dumps(refused(*place)))
    else:
        app = declare(*place, wider="wider" in sys.argv[3:])
        app.run(every="5 seconds", once="once" in sys.argv[3:])
