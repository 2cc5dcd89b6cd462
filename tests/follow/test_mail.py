"""Records as mails, to a real mail server that fails as it is told."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.follow import dying_delivery
from tests.follow.receivers import MailServer, mail_server

import penstock as ps
from penstock.errors import BadOption, NotAllowed, Unreachable
from penstock.follow import Follower, spec_of
from penstock.follow.target import Site

Mailing = Callable[..., Follower]


@pytest.fixture
def server() -> Iterator[MailServer]:
    with mail_server() as running:
        yield running


@pytest.fixture
def orders(log: ps.Log) -> ps.Topic:
    return log.create_topic("orders", "id BIGINT, customer STRING")


@pytest.fixture
def mailing(server: MailServer, orders: ps.Topic, log: ps.Log, home: Path) -> Iterator[Mailing]:
    opened = []

    def make(*, user: str = "", **options: Any) -> Follower:
        said = {"subject": "Order {id}", "body": "For {customer}.", **options}
        url = f"smtp://{user}127.0.0.1:{server.port}"
        target = ps.to.mail(url, **{"to": ["ann@example.com"], "sender": "shop@example.com", **said})
        opened.append(target.open(Site("shop", home, log)))
        spec = spec_of(orders.schema.arrow, (), name="orders")
        return Follower(orders, opened[-1], spec, kind="stream")

    yield make
    for sink in opened:
        sink.close()


def test_each_record_is_a_mail_by_the_templates(
    server: MailServer, orders: ps.Topic, mailing: Mailing
) -> None:
    orders.append([{"id": 1, "customer": "Ünal\nBcc: all"}, {"id": 2, "customer": None}])
    mailing(subject="Order {id:04} of {customer}").step(timeout_s=0)
    first, second = server.mails
    assert first["Subject"] == "Order 0001 of Ünal Bcc: all"
    assert (first["From"], first["To"], first["Bcc"]) == ("shop@example.com", "ann@example.com", None)
    assert abs(first["Date"].datetime - datetime.now(UTC)) < timedelta(minutes=5)
    assert first.get_content().splitlines() == ["For Ünal", "Bcc: all."]
    assert second["Message-ID"] == f"<orders-{orders.settings.id}-0-1@penstock>"
    mailing().step(timeout_s=0)
    assert len(server.mails) == 2


def test_a_server_that_says_later_is_asked_later(
    server: MailServer, orders: ps.Topic, mailing: Mailing
) -> None:
    server.script += ["451 later"]
    orders.append([{"id": 1, "customer": "Ann"}, {"id": 2, "customer": "Bea"}])
    sending = mailing()
    with pytest.raises(Unreachable, match="451"):
        sending.step(timeout_s=0)
    assert sending.step(timeout_s=0) == 2
    assert [mail["Subject"] for mail in server.mails] == ["Order 1", "Order 2"]


def test_a_mail_that_is_refused_is_put_aside(
    server: MailServer, orders: ps.Topic, mailing: Mailing, log: ps.Log
) -> None:
    server.script += ["554 no thanks"]
    orders.append([{"id": 1, "customer": "Ann"}, {"id": 2, "customer": "Bea"}])
    mailing().step(timeout_s=0)
    assert [mail["Subject"] for mail in server.mails] == ["Order 2"]
    (dead,) = log.topic("orders.dead").rows()
    assert (dead["offset"], dead["reason"]) == (0, "it answers 554 no thanks")


def test_a_server_that_takes_nobody_is_asked_later(
    orders: ps.Topic, log: ps.Log, mailing: Mailing, server: MailServer
) -> None:
    """Nothing was said of any mail, so none is put aside."""
    orders.append({"id": 1, "customer": "Ann"})
    sending, port = mailing(), server.port
    with socket.create_server(("127.0.0.1", 0)) as closed:
        server.port = closed.getsockname()[1]
        turned_away = mailing()

        def greet() -> None:
            connection, _ = closed.accept()
            with connection:
                connection.sendall(b"554 No service here\r\n")
                connection.recv(100)

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(Unreachable, match="it answers 554 No service here"):
            turned_away.step(timeout_s=0)
        thread.join()
    server.port = port
    assert "orders.dead" not in log.topics()
    assert sending.step(timeout_s=0) == 1


def test_who_does_not_take_a_mail_is_told_and_the_others_get_it_once(
    server: MailServer, orders: ps.Topic, mailing: Mailing, log: ps.Log
) -> None:
    later, never = "bea@example.com", "cid@example.com"
    server.refusals = {later: deque(["450 busy"]), never: deque(["550 who?"] * 2)}
    orders.append({"id": 1, "customer": "Ann"})
    sending = mailing(to=["ann@example.com", later, never])
    with pytest.raises(Unreachable, match=f"450 busy for {later}, {never}"):
        sending.step(timeout_s=0)
    sending.step(timeout_s=0)
    assert server.recipients == [["ann@example.com"], [later]]
    (dead,) = log.topic("orders.dead").rows()
    assert dead["reason"] == f"it answers 550 who? for {never}"


def test_a_row_that_does_not_fit_the_template_is_put_aside(
    server: MailServer, orders: ps.Topic, mailing: Mailing, log: ps.Log
) -> None:
    orders.append([{"id": None, "customer": "Ann"}, {"id": 2, "customer": "Bea"}])
    mailing(subject="Order {id:04}").step(timeout_s=0)
    assert [mail["Subject"] for mail in server.mails] == ["Order 0002"]
    assert [row["offset"] for row in log.topic("orders.dead").rows()] == [0]


def test_a_template_with_an_unknown_column_is_an_error(mailing: Mailing) -> None:
    with pytest.raises(BadOption, match='did you mean "customer"'):
        mailing(body="Dear {custmer}").step(timeout_s=0)


@pytest.mark.parametrize("step", ["begun", "sent", "noted"])
def test_a_killed_follower_mails_everything_and_under_the_same_ids(
    server: MailServer, orders: ps.Topic, mailing: Mailing, home: Path, step: str
) -> None:
    orders.append([{"id": number, "customer": "Ann"} for number in range(4)])
    url = f"smtp://127.0.0.1:{server.port}"
    child = subprocess.run(
        [sys.executable, dying_delivery.__file__, url, str(home), step, "2", "1"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL, child.stderr
    mailing().step(timeout_s=0)
    sent = [(mail["Message-ID"], mail["Subject"]) for mail in server.mails]
    assert len(sent) == 4 + (step == "sent")
    assert [subject for _, subject in dict(sent).items()] == [f"Order {number}" for number in range(4)]


def test_a_password_is_sent_and_shown_nowhere(
    server: MailServer, orders: ps.Topic, mailing: Mailing, home: Path
) -> None:
    orders.append({"id": 1, "customer": "Ann"})
    with pytest.raises(NotAllowed) as told:
        mailing(user="shop:wrong-word@").step(timeout_s=0)
    mailing(user="shop:right@").step(timeout_s=0)
    assert server.logins[-1] == ("shop", "right")
    assert len(server.mails) == 1
    assert "wrong-word" not in str(told.value)
    files = b"".join(path.read_bytes() for path in (home / "follow").rglob("*"))
    assert b"mail-" in files
    assert b"wrong-word" not in files
