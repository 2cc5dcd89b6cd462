"""Any amount of data, little memory of our own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ANONYMOUS_MB_MAX = 200

_WORKER = r"""
import re, sys, threading, time
import pyarrow as pa
import penstock as ps

home, task, megabytes = sys.argv[1], sys.argv[2], int(sys.argv[3])

def anonymous_mb():
    return int(re.search(r"RssAnon:\s+(\d+)", open("/proc/self/status").read())[1]) / 1024

log = ps.open_log(home)
topic = log.create_topic("big", "id BIGINT, text STRING", if_missing=True, durability="os", partitions=2)
topic.append({"id": 0, "text": "warm"})
list(topic.read(end=1, partition=0))
batch = pa.record_batch({"id": range(10_000), "text": ["x" * 92] * 10_000})
list(topic.rows(start=0, end=1, partition=0))
baseline = peak = anonymous_mb()
stop = threading.Event()

def watch():
    global peak
    while not stop.wait(0.01):
        peak = max(peak, anonymous_mb())

watcher = threading.Thread(target=watch)
watcher.start()
amount = 0
if task == "append":
    while amount < megabytes << 20:
        topic.append(batch)
        amount += batch.nbytes
elif task == "read":
    for found in topic.read():
        amount += found.nbytes
elif task == "rows":
    for number, row in enumerate(topic.rows()):
        amount += 100
elif task == "consume":
    with topic.consume(group="g", follow=False) as consumer:
        for event in consumer:
            amount += 100
elif task == "send":
    with topic.producer() as producer:
        for number in range((megabytes << 20) // 100):
            producer.send({"id": number, "text": "y" * 92})
            amount += 100
stop.set()
watcher.join()
print(f"{task}: {amount >> 20} MB, {peak - baseline:.0f} MB above {baseline:.0f} MB", file=sys.stderr)
print(peak - baseline)
"""


def _grown_mb(home: Path, task: str, megabytes: int) -> float:
    done = subprocess.run(
        [sys.executable, "-c", _WORKER, home, task, str(megabytes)],
        capture_output=True,
        text=True,
        check=True,
    )
    print(done.stderr)
    return float(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="anonymous memory is read from /proc")
def test_appending_and_reading_hundreds_of_megabytes_needs_little_memory(home: Path) -> None:
    assert _grown_mb(home, "append", 600) < ANONYMOUS_MB_MAX
    assert _grown_mb(home, "read", 600) < ANONYMOUS_MB_MAX


@pytest.mark.skipif(sys.platform != "linux", reason="anonymous memory is read from /proc")
def test_sending_and_consuming_row_by_row_needs_little_memory(home: Path) -> None:
    assert _grown_mb(home, "send", 60) < ANONYMOUS_MB_MAX
    assert _grown_mb(home, "rows", 60) < ANONYMOUS_MB_MAX
    assert _grown_mb(home, "consume", 60) < ANONYMOUS_MB_MAX
