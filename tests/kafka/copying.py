"""An app that copies a topic of Kafka into another one, until it is killed.

python -m tests.kafka.copying HOME URL
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

import penstock as ps

KEYS, PARTITIONS = 97, 4


def declare(home: Path, url: str) -> ps.App:
    app = ps.App("copying", home=home, log=url)
    options: dict[str, Any] = {"key": "k", "partitions": PARTITIONS, "durability": "fsync"}
    events = app.topic("events", "k BIGINT, n BIGINT", **options)

    @app.stream(**options)
    def copied() -> DataFrame:
        return events.stream()

    return app


def table(numbers: range) -> pa.Table:
    return pa.table({"k": [number % KEYS for number in numbers], "n": list(numbers)})


if __name__ == "__main__":
    declare(Path(sys.argv[1]), sys.argv[2]).run()
