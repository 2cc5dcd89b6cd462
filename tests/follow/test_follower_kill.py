"""kill -9 at every step of an apply: the copy is the changelog up to its offset, always."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from tests.follow import dying_follower
from tests.follow.backends import Backend, SQLiteBackend, changelog, delete, upsert
from tests.waiting import wait_until

import penstock as ps
from penstock.errors import Contended
from penstock.follow import Follower, Store, TableSpec, fold

CHUNK, RECORDS = 4, 12


def _by_key(rows: pa.Table) -> list[dict[str, object]]:
    found: list[dict[str, object]] = rows.sort_by([("k", "ascending")]).to_pylist()
    return found


def _is_the_fold(topic: ps.Topic, store: Store, spec: TableSpec) -> int:
    rows, progress = store.rows(spec)
    records = topic.read(end=progress.next_offset)
    assert _by_key(rows) == _by_key(fold(records, spec.key, columns=spec.columns))
    return progress.next_offset


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("step", ["begun", "removed", "written", "noted", "committed"])
def test_a_killed_follower_leaves_the_changes_up_to_its_offset(
    backend: Backend, log: ps.Log, home: Path, step: str, count: int
) -> None:
    topic, spec = changelog(log, "counts", "k STRING, v BIGINT", ("k",))
    keys = ["a", "b", None]
    make = [upsert, upsert, upsert, delete]
    topic.append([make[at % 4](k=keys[at % 3], v=at, batch=at) for at in range(RECORDS)])
    store = backend.open()
    store.prepare(spec, topic.settings.id)
    kind = "sqlite" if isinstance(backend, SQLiteBackend) else "postgres"
    child = subprocess.run(
        [sys.executable, dying_follower.__file__, kind, backend.address, str(home), step, str(count)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL, child.stderr
    done = _is_the_fold(topic, store, spec)
    assert done == CHUNK * (count if step == "committed" else count - 1)

    follower = Follower(topic, store, spec, chunk_records=CHUNK)

    def finished() -> bool:
        try:
            follower.step(timeout_s=0)
        except Contended:  # the server has not noticed yet that the dead one is gone
            return False
        return follower.lag() == 0

    wait_until(finished, what="the next follower to finish")
    assert _is_the_fold(topic, store, spec) == RECORDS
