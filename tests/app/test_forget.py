"""`app.forget`: the key is the commit; what somebody wrote on in clear is told."""

from __future__ import annotations

import gzip
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.app import erasing
from penstock.erasure import traces
from penstock.errors import BadOption, UnknownSubject
from penstock.testing import find_traces

ANN, BOB = "ann.example@example.org", "bob.example@example.org"


def shop(home: Path) -> ps.App:
    app = ps.App("shop", home=home)
    orders = app.topic("orders", "id BIGINT, customer BIGINT, email STRING", personal={"email": "customer"})
    app.topic("mails", "order BIGINT, recipient STRING")
    orders.append([{"id": 1, "customer": 17, "email": ANN}, {"id": 2, "customer": 18, "email": BOB}])
    return app


def shop_again(home: Path) -> ps.App:
    app = ps.App("shop", home=home)
    app.topic("mails", "order BIGINT, recipient STRING")
    return app


def test_forgetting_leaves_nothing_to_read_of_one_and_everything_of_the_others(home: Path) -> None:
    app = shop(home)
    assert {trace.text for trace in find_traces(home, ANN, BOB).found} == {0, 1}
    done = app.forget(17)
    assert (done.destroyed, done.again, done.complete) == (True, False, True)
    assert (done.places, done.values, done.searched, done.clear, done.unread) == (("orders",), 1, 1, (), ())
    assert {trace.text for trace in find_traces(home, ANN, BOB).found} == {1}
    assert [row["email"] for row in app.topics["orders"].revealed().rows()] == [None, BOB]
    app.close()


def test_a_dry_run_destroys_nothing_and_tells_where_something_is_in_clear(home: Path) -> None:
    app = shop(home)
    app.topics["mails"].append({"order": 1, "recipient": ANN})  # read in clear, and written on so
    told = app.forget("17", dry_run=True)
    assert (told.destroyed, told.complete, told.values) == (False, False, 1)
    (clear,) = {each.path for each in told.clear}
    assert "/topics/mails/0/" in clear
    assert [row["email"] for row in app.topics["orders"].revealed().rows()] == [ANN, BOB]
    done = app.forget("17")
    assert done.destroyed
    assert not done.complete  # honest: that is for the program to remove
    assert {each.path for each in done.clear} == {clear}
    app.close()


def test_who_is_not_known_cannot_be_forgotten(home: Path) -> None:
    app = shop(home)
    with pytest.raises(UnknownSubject, match="99"):
        app.forget(99)
    with pytest.raises(BadOption, match="named by its id"):
        app.forget("")
    assert app.log.port.keys.store.count() == 2
    app.close()


def test_forgetting_twice_is_as_once(home: Path) -> None:
    app = shop(home)
    app.forget(17)
    again = app.forget(17)
    assert (again.destroyed, again.again, again.values, again.searched) == (False, True, None, None)
    assert not again.complete  # nobody has looked this time
    unlooked = app.forget(18, search=False)
    assert (unlooked.destroyed, unlooked.searched, unlooked.complete) == (True, None, False)
    assert [row["email"] for row in app.topics["orders"].revealed().rows()] == [None, None]
    app.close()


_DYING = """
import os, signal, sys
from pathlib import Path
from penstock.app import erasing
from penstock.erasure import traces
from penstock.erasure.keys import KeyRing
from tests.app.test_forget import shop

die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "before":
    KeyRing.destroy = die
else:
    setattr(erasing, sys.argv[2], die)
app = shop(Path(sys.argv[1]))
app.forget(17)
"""


@pytest.mark.parametrize(("moment", "forgotten"), [("before", False), ("_purged", True), ("_searched", True)])
def test_a_kill_in_the_middle_is_before_or_after_and_doing_it_again_completes(
    home: Path, moment: str, forgotten: bool
) -> None:
    died = subprocess.run(
        [sys.executable, "-c", _DYING, str(home), moment], cwd=Path(__file__).parents[2], check=False
    )
    assert died.returncode == -signal.SIGKILL
    texts = {trace.text for trace in find_traces(home, ANN, BOB).found}
    assert texts == ({1} if forgotten else {0, 1})
    app = shop_again(home)
    app.topics["mails"].append({"order": 1, "recipient": ANN})
    done = app.forget(17)
    assert done.again is forgotten
    assert not done.complete  # nobody knows any more what to look for, or it was found
    assert (done.searched, bool(done.clear)) == ((None, False) if forgotten else (1, True))
    told = app.forget(17, look_for=[ANN])
    assert (told.searched, {Path(each.path).parts[-3] for each in told.clear}) == (1, {"mails"})
    assert app.forget(17, look_for=["nowhere at all"]).complete
    app.log.delete_topic("mails")
    assert {trace.text for trace in find_traces(home, ANN, BOB).found} == {1}
    app.close()


def test_stores_are_rid_of_what_was_deleted_in_them(home: Path) -> None:
    app = shop(home)
    (home / "views").mkdir(exist_ok=True)
    with closing(sqlite3.connect(home / "views" / "other.db")) as db:
        db.execute("PRAGMA secure_delete=OFF")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE t (name TEXT)")
        db.execute("INSERT INTO t VALUES (?)", (ANN,))
        db.commit()
        db.execute("DELETE FROM t")
        db.commit()
        assert any("other.db" in each.path for each in app.forget(17, dry_run=True).clear)
        done = app.forget(17)
    assert str(home / "views" / "other.db") in done.purged
    assert done.complete
    app.close()


def test_a_store_that_is_in_use_is_told_and_does_not_stop_what_has_begun(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasing, "_BUSY_S", 0.01)
    app = shop(home)
    (home / "views").mkdir(exist_ok=True)
    with closing(sqlite3.connect(home / "views" / "other.db", isolation_level=None)) as db:
        db.execute("CREATE TABLE t (name TEXT)")
        db.execute("BEGIN IMMEDIATE")
        done = app.forget(17)
    assert done.destroyed
    assert (done.unpurged, done.complete) == ((str(home / "views" / "other.db"),), False)
    again = app.forget(17, look_for=[ANN])
    assert (again.unpurged, again.complete) == ((), True)
    app.close()


def test_messages_that_were_acknowledged_are_in_no_free_page_of_the_queues(home: Path) -> None:
    app = shop(home)
    mails = app.queue("mails-to-send")
    for number in range(3):
        mails.publish({"to": ANN, "number": number})
    for _ in range(3):
        delivery = mails.get()
        assert delivery is not None
        delivery.ack()
    assert find_traces(home / "queues", ANN).clear
    done = app.forget(17)
    assert str(home / "queues" / "queues.db") in done.purged
    assert done.complete
    mails.publish({"number": 4})  # and they go on
    delivery = mails.get()
    assert delivery is not None
    assert delivery.json() == {"number": 4}
    app.close()


def test_a_copy_of_the_key_that_lies_beside_is_told(home: Path) -> None:
    app = shop(home)
    (home / "backup").mkdir()
    (home / "backup" / "monday.gz").write_bytes(gzip.compress((home / "keys.db").read_bytes()))
    assert app.forget(17, dry_run=True).copies == ()
    done = app.forget(17)
    assert (done.searched, done.clear) == (1, ())
    assert (done.copies, done.complete) == ((str(home / "backup" / "monday.gz"),), False)
    app.close()


def test_more_values_than_are_looked_for_are_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "_VALUES_MAX", 3)
    app = shop(home)
    app.topics["orders"].append([{"id": n, "customer": 17, "email": f"ann{n}@ex.org"} for n in range(2)] * 2)
    told = app.forget(17, dry_run=True)
    assert (told.values, told.more) == (3, False)
    app.topics["orders"].append({"id": 9, "customer": 17, "email": "ann9@ex.org"})
    done = app.forget(17)
    assert (done.values, done.searched, done.more, done.complete) == (3, 3, True, False)
    app.close()


def test_bytes_that_are_no_text_are_looked_for_too(home: Path) -> None:
    app = ps.App("shop", home=home)
    faces = app.topic("faces", "customer BIGINT, face BINARY", personal={"face": "customer"})
    copies = app.topic("copies", "face BINARY")
    face = bytes(range(128, 200))
    faces.append({"customer": 17, "face": face})
    assert app.forget(17, dry_run=True).clear == ()
    copies.append({"face": face})
    done = app.forget(17)
    assert (done.values, done.searched, done.complete) == (1, 1, False)
    assert {Path(each.path).parts[-3] for each in done.clear} == {"copies"}
    app.close()


def test_what_is_out_of_reach_is_told_without_passwords(home: Path) -> None:
    app = ps.App(
        "shop", home=home, views="postgresql://me:hidden-1@127.0.0.1/none", queues="amqp://me:hidden-2@h"
    )
    app.table(
        "customers", "id BIGINT, email STRING", key="id", personal={"email": "id"},
        to=["redis://me:hidden-3@127.0.0.1:1/0", "postgresql://me:hidden-4@127.0.0.1/none?password=hidden-5",
            ps.to.webhook("https://me:hidden-6@example.org/hidden-7", headers={"X-Key": "hidden-8"}),
            ps.to.mail("smtps://me:hidden-9@example.org", to="a@b", sender="a@b", subject="", body="")],
    ).append({"id": 17, "email": ANN})  # fmt: skip
    left = app.forget(17).left
    assert len(left) == 6
    assert "hidden" not in str(left)
    assert {"redis://127.0.0.1:1/0", "https://example.org/…"} <= {each.split()[-1] for each in left}
    app.close()


def test_a_log_on_kafka_is_told_without_its_password(home: Path) -> None:
    app = ps.App("shop", log="kafka://me:hidden-1@127.0.0.1:1?ssl.key.password=hidden-2", home=home)
    (left,) = erasing._left(app)
    assert "kafka://127.0.0.1:1:" in left
    assert "hidden" not in left


def test_a_text_that_is_too_short_to_mean_anything_is_not_looked_for(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = shop(home)
    app.topics["orders"].append({"id": 3, "customer": 17, "email": "a"})
    looked: list[bytes] = []

    def searched(_app: ps.App, texts: list[bytes], _secret: list[bytes]) -> list[Any]:
        looked.extend(texts)
        return []

    with pytest.raises(BadOption, match="too short"):
        app.forget(17, look_for=["abc"])
    monkeypatch.setattr(erasing, "_searched", searched)
    done = app.forget(17)
    assert (done.values, done.searched, looked) == (2, 1, [ANN.encode()])
    app.close()
