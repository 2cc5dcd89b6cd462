"""The key store: one key for each subject, and nothing left of one that was destroyed."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import stat
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from penstock.erasure import keys
from penstock.erasure.keys import KeyRing, subject_of
from penstock.erasure.sqlite_keys import SqliteKeys, _create
from penstock.errors import BadOption, StorageError, UnknownSubject


@pytest.fixture
def store(tmp_path: Path) -> SqliteKeys:
    return SqliteKeys(tmp_path / "keys.db")


def test_a_subject_has_one_key_in_every_process(store: SqliteKeys) -> None:
    made = store.make(["ann", "bob"])
    again = SqliteKeys(store.path)
    assert again.make(["ann"])["ann"].secret == made["ann"].secret
    assert again.find(["ann", "eve"]).keys() == {"ann"}
    (bob,) = again.by_id([made["bob"].id, bytes(16)]).values()
    assert bob is not None
    assert bob.secret == made["bob"].secret
    assert again.count() == 2


def test_looking_for_keys_creates_nothing(store: SqliteKeys) -> None:
    assert (store.find(["ann"]), store.by_id([bytes(16)]), store.count(), store.destroyed()) == ({}, {}, 0, 0)
    assert not store.is_forgotten("ann")
    assert not store.path.exists()


def test_a_destroyed_key_is_gone_and_never_made_again(store: SqliteKeys) -> None:
    made = store.make(["ann", "bob"])
    assert store.destroy("ann") is True
    assert store.destroy("ann") is False
    assert store.make(["ann", "bob"]).keys() == {"bob"}
    assert store.find(["ann"]) == {}
    assert store.by_id([made["ann"].id, bytes(16)]) == {made["ann"].id: None}
    assert store.is_forgotten("ann")
    assert not store.is_forgotten("bob")
    assert store.destroyed() == 1


def test_no_byte_of_a_destroyed_key_stays_in_any_file(store: SqliteKeys) -> None:
    made = store.make(f"subject {number}" for number in range(600))  # pages that are split and filled again
    gone = [f"subject {number}" for number in range(0, 600, 97)]
    assert all(made[subject].secret in store.path.read_bytes() for subject in gone)
    for subject in gone:
        store.destroy(subject)
    left = b"".join(file.read_bytes() for file in store.path.parent.iterdir())
    for subject in gone:
        assert not any(made[subject].secret[at : at + 8] in left for at in range(0, 64, 8))
    assert made["subject 1"].secret in left


def test_the_store_does_not_know_the_names_of_its_subjects(store: SqliteKeys) -> None:
    store.make(["ann@example.org", "bob@example.org"])
    store.destroy("ann@example.org")
    assert b"example" not in store.path.read_bytes()


def test_only_its_owner_can_read_the_store(store: SqliteKeys) -> None:
    store.make(["ann"])
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600


def test_nobody_can_be_forgotten_who_was_never_known(store: SqliteKeys) -> None:
    with pytest.raises(UnknownSubject, match="eve"):
        store.destroy("eve")
    store.make(["ann"])
    with pytest.raises(UnknownSubject, match="eve"):
        store.destroy("eve")
    assert store.destroyed() == 0


def test_a_ring_drops_what_another_process_destroyed(store: SqliteKeys) -> None:
    ring = KeyRing(store)
    made = ring.make(["ann", "bob"])
    assert ring.find(["ann"]) == {"ann": made["ann"]}  # in hand
    SqliteKeys(store.path).destroy("ann")
    assert ring.find(["ann", "bob"]).keys() == {"bob"}
    assert ring.by_id([made["ann"].id]) == {made["ann"].id: None}
    assert ring.make(["ann"]) == {}


def test_a_ring_holds_a_bounded_number_of_keys(store: SqliteKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_KEPT_MAX", 3)
    ring = KeyRing(store)
    made = ring.make(f"{number}" for number in range(10))
    assert len(ring._by_subject) == len(ring._by_id) == 3
    assert ring.find(["0"])["0"].secret == made["0"].secret


def test_opening_the_store_once_more_leaves_the_locks_of_its_process_alone(store: SqliteKeys) -> None:
    store.make(["ann"])
    begins = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN IMMEDIATE')"
    with contextlib.closing(sqlite3.connect(store.path, isolation_level=None, timeout=0)) as busy:
        busy.execute("BEGIN IMMEDIATE")
        _create(store.path)
        again = subprocess.run(
            [sys.executable, "-c", begins, str(store.path)], check=False, capture_output=True
        )
    assert b"database is locked" in again.stderr
    assert [path.name for path in store.path.parent.iterdir()] == ["keys.db"]


def _make(path: Path) -> list[bytes]:
    made = SqliteKeys(path).make(f"{number}" for number in range(50))
    return [key.secret for key in made.values()]


def test_processes_that_come_at_once_get_the_same_keys(store: SqliteKeys) -> None:
    with ThreadPoolExecutor(4) as pool:
        several = list(pool.map(lambda _: _make(store.path), range(4)))
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        several += processes.map(_make, [store.path] * 2)
    assert len({tuple(secrets) for secrets in several}) == 1


_DYING = """
import os, signal, sqlite3, sys
from pathlib import Path
from penstock.erasure.sqlite_keys import SqliteKeys, _create

store = SqliteKeys(Path(sys.argv[1]))
db = store._open()
db.create_function("die", 0, lambda: os.kill(os.getpid(), signal.SIGKILL))
if sys.argv[2] == "before":
    db.execute("CREATE TEMP TRIGGER t AFTER INSERT ON forgotten BEGIN SELECT die(); END")
else:
    store._reading = lambda: os.kill(os.getpid(), signal.SIGKILL)
store.destroy("ann")
"""


@pytest.mark.parametrize(("moment", "forgotten"), [("before", False), ("after", True)])
def test_a_kill_in_the_middle_leaves_the_key_or_destroys_it(
    store: SqliteKeys, moment: str, forgotten: bool
) -> None:
    secret = store.make(["ann", "bob"])["ann"].secret
    store.close()
    died = subprocess.run([sys.executable, "-c", _DYING, str(store.path), moment], check=False)
    assert died.returncode == -signal.SIGKILL
    assert store.is_forgotten("ann") is forgotten
    assert (store.find(["ann"]) == {}) is forgotten
    assert store.destroy("ann") is not forgotten  # again: whole
    assert secret not in b"".join(file.read_bytes() for file in store.path.parent.iterdir())
    assert list(store.path.parent.iterdir()) == [store.path]


@pytest.mark.parametrize("value", [None, True, 1.5, b"ann", "", "x" * 1_001])
def test_what_names_no_subject_is_refused(value: object) -> None:
    with pytest.raises(BadOption, match="named by its id"):
        subject_of(value)


def test_a_number_and_its_digits_are_the_same_subject() -> None:
    assert subject_of(17) == subject_of("17") == "17"


def test_a_store_that_cannot_be_opened_is_told_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    with pytest.raises(StorageError, match=r"the key store .*a-file/keys\.db cannot be opened"):
        SqliteKeys(tmp_path / "a-file" / "keys.db").make(["ann"])
    (tmp_path / "keys.db").write_bytes(b"no database, and longer than the header of one" * 10)
    with pytest.raises(StorageError, match="not a database"):
        SqliteKeys(tmp_path / "keys.db").find(["ann"])
