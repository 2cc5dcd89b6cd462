"""One app with everything that keeps data: before `forget` a subject is found in all of it, after in none.

The search opens what any key there opens, as somebody would who has all of the folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.erasure import decoded
from penstock.errors import UnknownSubject
from penstock.flow.session import start_session
from penstock.log import maintenance
from penstock.log.embedded import EmbeddedLog
from penstock.sourcing import Aggregate, Personal, applies, command
from penstock.testing import Run, find_traces, running

ANN, BOB = "ann.first-customer@example.org", "bob.other-customer@example.org"
_CHANGELOGS = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
TOWN = "Planted-on-Sea"  # in clear, to show that the search looks where it should


@dataclass(frozen=True)
class Registered:
    address: Personal[str | None]


@dataclass(frozen=True)
class Called:
    pass


@dataclass
class Customer(Aggregate):
    address: str | None = None
    calls: int = 0

    @command
    def register(self, address: str) -> Registered:
        return Registered(address)

    @command
    def call(self) -> Called:
        return Called()

    @applies
    def _registered(self, event: Registered) -> None:
        self.address = event.address

    @applies
    def _called(self, _event: Called) -> None:
        self.calls += 1


def shop() -> ps.App:
    app = ps.App("shop")
    orders = app.topic(
        "orders", "id BIGINT, customer STRING, email STRING, town STRING, at TIMESTAMP", event_time="at",
        personal={"email": "customer"}, comparable=["email"], lateness="0 seconds",
    )  # fmt: skip
    app.aggregates("customers", Customer, snapshot_every=2)

    @app.view(key=["town", "email", "window"])
    def per_hour() -> Any:
        by = ["town", "email"]
        return ps.aggregate(orders.stream(), by=by, window=ps.tumbling("1 hour"), orders=ps.count())

    return app


def fill(app: ps.App, run: Run) -> None:
    """Two batches: the state of the first is a changelog, that of the second a snapshot."""
    customers, orders = app.sourced["customers"], app.topics["orders"]
    for who, address in (("ann", ANN), ("bob", BOB)):
        customers[who].register(address)
        customers[who].call()
    for hour in range(3):
        for number, (customer, email) in enumerate((("ann", ANN), ("bob", BOB))):
            at = f"1{hour}:00:0{number}"
            run.feed(orders, {"id": hour, "customer": customer, "email": email, "town": TOWN, "at": at})
    run.process()
    late = [{"id": 9, "customer": who, "email": email, "town": TOWN, "at": "10:30"}
            for who, email in (("ann", ANN), ("bob", BOB))]  # fmt: skip
    run.feed(orders, *late, arriving="12:30")
    with state_as_snapshots():
        run.process()


@contextmanager
def state_as_snapshots() -> Iterator[None]:
    """Meanwhile RocksDB's tables go into the checkpoint with every batch, and not now and then."""
    settings = start_session("penstock-tests").conf
    settings.set(_CHANGELOGS, "false")
    try:
        yield
    finally:
        settings.set(_CHANGELOGS, "true")


def archive(port: EmbeddedLog, topic: str) -> None:
    partition, settings = port.partition(topic, 0), port.settings(topic)
    with partition.locked(settings) as head:
        partition.roll(head, settings)
    maintenance.run(partition, settings, port.groups_store(), archive_now=True)


@pytest.mark.timeout(900)
def test_a_forgotten_subject_is_nowhere_and_the_others_and_all_counts_are_as_before(home: Path) -> None:
    app = shop()
    with running(app, home=home) as run:
        fill(app, run)
        port = app.log.port
        assert isinstance(port, EmbeddedLog)
        archive(port, "orders")
        counts = run.values("per_hour", "town", "email", "orders")
        assert len(counts) == 6
        assert len(run.late("per_hour")) == 2

        before = find_traces(home, ANN, BOB, TOWN)
        assert before.unread == ()
        assert {trace.text for trace in before.clear} == {2}  # what is personal was never in clear
        places = [_places(before.found, text) for text in range(3)]
        assert places[0] == places[1]
        assert {"orders parquet", "per_hour.late arrow", "per_hour arrow", "customers arrow",
                "views sqlite", "sourcing sqlite", "flow lz4-java", "flow rocksdb"} <= places[0]  # fmt: skip
        assert {
            "orders parquet",
            "per_hour arrow",
            "views sqlite",
            "flow lz4-java",
            "flow rocksdb",
        } <= places[2]

        done = app.forget("ann")
        assert done.complete
        assert done.places == ("customers", "orders")
        after = find_traces(home, ANN, BOB, TOWN)
        assert after.unread == ()
        assert {trace.text for trace in after.found} == {1, 2}
        assert _places(after.found, 1) == places[1]

        assert run.values("per_hour", "town", "email", "orders") == counts
        run.verify()
        revealed = app.read("per_hour", reveal=["email"])
        assert (
            sorted((row["email"] or "", row["orders"]) for row in revealed) == [("", 1)] * 3 + [(BOB, 1)] * 3
        )
        assert app.sourced["customers"].state("ann").calls == 1
        assert app.sourced["customers"].state("ann").address is None
        assert app.sourced["customers"].state("bob").address == BOB
        with pytest.raises(UnknownSubject):
            app.forget("eve")


def _places(found: Any, text: int) -> set[str]:
    """ "orders parquet", "views sqlite", "flow lz4-java": which part of the home, and how it was read."""
    return {
        f"{trace.path.parts[1 if trace.path.parts[0] == 'topics' else 0]} {form}"
        for trace in found
        if trace.text == text and (form := re.split("[/:]", trace.inside)[0]) != "bytes"
    }


@pytest.mark.parametrize(
    ("compression", "version"), [("NO", 5), ("SNAPPY", 2), ("LZ4", 5), ("LZ4HC", 4), ("ZSTD", 5)]
)
def test_tables_of_rocksdb_are_read_whole(tmp_path: Path, compression: str, version: int) -> None:
    path = tmp_path / "000007.sst"
    pairs = [
        (f"key of somebody {number:05}".encode(), b"value " * 20 + b"%05d" % number) for number in range(300)
    ]
    _write_table(path, compression, version, pairs)
    found = [piece for inside, piece in decoded.pieces(path.read_bytes()) if inside == "rocksdb"]
    assert len(found) == len(pairs)
    for (key, value), piece in zip(pairs, found, strict=True):
        assert piece.startswith(key)  # on disk, most keys are only what differs from the one before
        assert piece.endswith(value)
    if compression != "NO":
        assert pairs[200][1] not in path.read_bytes()


def _write_table(path: Path, compression: str, version: int, pairs: list[tuple[bytes, bytes]]) -> None:
    jvm: Any = start_session("penstock-tests").sparkContext._jvm
    rocksdb = jvm.org.rocksdb
    rocksdb.RocksDB.loadLibrary()
    kind = rocksdb.CompressionType.valueOf(f"{compression}_COMPRESSION")
    form = rocksdb.BlockBasedTableConfig().setFormatVersion(version)
    options = rocksdb.Options().setCompressionType(kind).setTableFormatConfig(form)
    writer = rocksdb.SstFileWriter(rocksdb.EnvOptions(), options)
    writer.open(str(path))
    for key, value in pairs:
        writer.put(bytearray(key), bytearray(value))
    writer.finish()
