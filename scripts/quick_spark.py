"""quick_spark.py ARCHIVE: keeps the classes that Spark loads, for Java to begin with (SharedArchiveFile).

For `make test`, in which many processes begin with Spark. Java passes over an archive that it cannot use.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import penstock as ps


def app_at(home: Path, java_options: str) -> ps.App:
    """With an example of everything that is compiled and kept in a way of its own."""
    app = ps.App("quick", home=home, spark_settings={"spark.driver.extraJavaOptions": java_options})
    event = {"event_time": "at", "key": "user", "partitions": 2}
    views = app.topic("views", "user BIGINT, page STRING, at TIMESTAMP", **event)
    sales = app.topic("sales", "user BIGINT, amount DOUBLE, at TIMESTAMP", **event)

    @app.view(key=["page", "window"])
    def per_minute() -> Any:
        return ps.aggregate(views.stream(), by="page", window=ps.tumbling("1 minute"), views=ps.count())

    @app.stream()
    def followed() -> Any:
        return ps.join_within(views.stream(), sales.stream(), on="user", after="10 seconds")

    begin = datetime.now(UTC)
    times = [begin + timedelta(seconds=second) for second in range(200)]
    views.append([{"user": at.second, "page": "/", "at": at} for at in times])
    sales.append([{"user": at.second, "amount": 1.0, "at": at} for at in times])
    return app


def main(archive: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / archive.name
        app = app_at(Path(folder) / "home", f"-Xss8m -Xlog:disable -XX:ArchiveClassesAtExit={made}")
        app.run(once=True)
        app.verify()
        app.close()
        session = SparkSession.active()
        java: Any = session.sparkContext._gateway
        session.stop()
        java.shutdown()
        java.proc.stdin.close()  # at which Java ends, and writes
        java.proc.wait()
        if made.exists():
            shutil.move(made, archive)
        else:
            archive.touch()  # a Java that cannot; nobody need try again


if __name__ == "__main__":
    main(Path(sys.argv[1]))
