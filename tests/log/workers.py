"""Processes that produce and consume until they are told to stop, or killed.

python -m tests.log.workers append HOME TOPIC NAME ACKS      topic.append, batch by batch
python -m tests.log.workers send   HOME TOPIC NAME ACKS      a buffered producer, flushed now and then
python -m tests.log.workers resume HOME TOPIC NAME ACKS      a buffered producer with an id and a position
python -m tests.log.workers atomic HOME TOPIC NAME ACKS      atomic appends with a position
python -m tests.log.workers read   HOME TOPIC GROUP DELIVERY HANDLED
python -m tests.log.workers once   HOME TOPIC GROUP DATABASE

A producer numbers its records and writes to ACKS, after the acknowledgement and never before, the
number of the last one. A member writes the place of every event it handled to HANDLED, or into a
database with `ps.once`. A producer ends when the file ACKS.stop is there, a member on SIGTERM.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import penstock as ps

DDL = "producer STRING, n BIGINT, k BIGINT"
KEYS = 8
WORK_S = 0.0003  # what handling an event costs, so that a member is found in the middle of it
ROOT = Path(__file__).parents[2]


def start(*words: object) -> subprocess.Popen[bytes]:
    """One of the above as a process."""
    return subprocess.Popen([sys.executable, "-m", "tests.log.workers", *map(str, words)], cwd=ROOT)


def last_ack(acks: Path) -> int:
    """The number of the last acknowledged record; -1 before the first."""
    lines = acks.read_bytes().split(b"\n")[:-1] if acks.exists() else []
    return int(lines[-1]) if lines else -1


# ---- producers -----------------------------------------------------------------------------------


def _batches(name: str, first: int, acks: Path) -> Iterator[list[dict[str, Any]]]:
    sizes = random.Random(os.getpid())
    stop = acks.with_name(acks.name + ".stop")
    while not stop.exists():
        after = first + sizes.randrange(1, 40)
        yield [{"producer": name, "n": n, "k": n % KEYS} for n in range(first, after)]
        first = after


def append(topic: ps.Topic, name: str, acks: Path) -> None:
    with acks.open("a", buffering=1) as acknowledged:
        for batch in _batches(name, last_ack(acks) + 1, acks):
            topic.append(batch)
            acknowledged.write(f"{batch[-1]['n']}\n")


def send(topic: ps.Topic, name: str, acks: Path) -> None:
    with acks.open("a", buffering=1) as acknowledged, topic.producer(linger=0) as producer:
        for batch in _batches(name, last_ack(acks) + 1, acks):
            for record in batch:
                producer.send(record)
            producer.flush()
            acknowledged.write(f"{batch[-1]['n']}\n")


def resume(topic: ps.Topic, name: str, acks: Path) -> None:
    with acks.open("a", buffering=1) as acknowledged, topic.producer(id=name, linger=0) as producer:
        first = int(producer.position() or b"-1") + 1
        for batch in _batches(name, first, acks):
            for record in batch:
                producer.send(record, position=b"%d" % record["n"])
            producer.flush()
            acknowledged.write(f"{batch[-1]['n']}\n")


def atomic(log: ps.Log, topic: ps.Topic, name: str, acks: Path) -> None:
    producer = log.producer(name)
    with acks.open("a", buffering=1) as acknowledged:
        for batch in _batches(name, int(producer.position() or b"-1") + 1, acks):
            producer.append({topic: batch}, position=b"%d" % batch[-1]["n"])
            acknowledged.write(f"{batch[-1]['n']}\n")


# ---- members -------------------------------------------------------------------------------------


def read(topic: ps.Topic, group: str, delivery: str, handled: Path) -> None:
    # One write for each event: what was handled is on record even if the process dies right after.
    out = os.open(handled, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with topic.consume(group=group, delivery=delivery, lease="2 s", commit_every="100 ms") as consumer:  # type: ignore[arg-type]
        for event in consumer:
            os.write(out, b"%d %d\n" % (event.partition, event.offset))
            time.sleep(WORK_S)


def once(topic: ps.Topic, group: str, database: Path) -> None:
    connection = sqlite3.connect(database, timeout=60)
    connection.execute("PRAGMA journal_mode=WAL")
    with topic.consume(group=group, delivery="exactly_once", commit_every="100 ms") as consumer:
        for event in consumer:
            with ps.once(connection, event) as first:
                if first:
                    connection.execute("INSERT INTO effects VALUES (?, ?)", (event.partition, event.offset))
            time.sleep(WORK_S)


def main(role: str, home: str, topic_name: str, *words: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with ps.open_log(home) as log:
        topic = log.topic(topic_name)
        match role, words:
            case ("append", (name, acks)):
                append(topic, name, Path(acks))
            case ("send", (name, acks)):
                send(topic, name, Path(acks))
            case ("resume", (name, acks)):
                resume(topic, name, Path(acks))
            case ("atomic", (name, acks)):
                atomic(log, topic, name, Path(acks))
            case ("read", (group, delivery, handled)):
                read(topic, group, delivery, Path(handled))
            case ("once", (group, database)):
                once(topic, group, Path(database))
            case _:
                raise SystemExit(f"no such worker: {role} {words}")


def handled_in(file: Path) -> list[tuple[int, int]]:
    """Partition and offset of every event in a HANDLED file."""
    lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    return [(int(part), int(offset)) for part, offset in map(bytes.split, lines)]


def handled_in_all(files: Iterator[Path]) -> list[tuple[int, int]]:
    return list(itertools.chain.from_iterable(map(handled_in, files)))


if __name__ == "__main__":
    main(*sys.argv[1:])
