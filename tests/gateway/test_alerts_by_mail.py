"""What needs a person, told to a real SMTP server by a gateway that runs: when it begins, when it is over."""

from __future__ import annotations

from collections.abc import Iterator
from email.message import EmailMessage
from typing import Any

import pytest
from tests.follow.receivers import MailServer, mail_server
from tests.gateway.served import WAIT_S, Served, serving
from tests.waiting import wait_until

import penstock as ps
from penstock.gateway.gateway import Settings
from penstock.gateway.pages import alarms, health


@pytest.fixture
def post() -> Iterator[MailServer]:
    with mail_server() as found:
        yield found


@pytest.fixture
def served(app: ps.App, post: MailServer) -> Iterator[Served]:
    """A gateway that tells at once."""
    place = f"smtp://127.0.0.1:{post.port}?to=ann@example.org&to=bob@example.org&from=shop@example.org"
    with serving(app, Settings(alerts=(place,))) as found:
        application: Any = found.server.config.app
        application.state.site.alarms.holding_s = 0.0
        yield found


def _mails(post: MailServer, count: int) -> list[EmailMessage]:
    wait_until(lambda: len(post.mails) >= count, timeout_s=WAIT_S, what=f"{count} mails")
    return post.mails


def test_a_dead_letter_is_told_by_mail_and_so_is_that_it_was_redriven(
    served: Served, post: MailServer
) -> None:
    with ps.open_queues(served.app.home) as queues:
        queue = queues.queue("mails", max_attempts=1)
        queue.publish({"to": "nobody"})
        (delivery,) = queue.get_many(1, timeout=10)
        delivery.nack("550 mailbox\nunknown")
        (began,) = _mails(post, 1)
        assert (began["From"], began["To"]) == ("shop@example.org", "ann@example.org, bob@example.org")
        assert began["Subject"] == "shop: 1 message is dead in mails (began)"
        assert "550 mailbox\r\nunknown" in began.get_content()
        assert served.post("/queues/mails/redrive", json={}).json() == {"redriven": 1}
        _, over = _mails(post, 2)
    assert over["Subject"] == "shop: 1 message is dead in mails (over)"
    assert over["Message-ID"] != began["Message-ID"]


def test_a_group_that_is_behind_is_told_by_mail_and_so_is_that_it_caught_up(
    served: Served, post: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "LAG_S", 0.2)
    notes = served.app.log.topic("notes")
    notes.append([{"text": "a"}, {"text": "b"}])
    served.post("/groups/mailer/topics/notes/reset", json={"to": "earliest"})
    (began,) = _mails(post, 1)
    assert began["Subject"].startswith("shop: mailer is ")
    assert began["Subject"].endswith(" behind on notes (began)")
    assert "2 records wait; it has no members now." in began.get_content()
    served.post("/groups/mailer/topics/notes/reset", json={"to": "latest"})
    _, over = _mails(post, 2)
    assert over["Subject"].endswith(" behind on notes (over)")


def test_a_mail_server_that_is_busy_gets_the_mail_later_and_once(
    served: Served, post: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alarms, "_PAUSE_S", 0.05)
    post.script.extend(["451 not now", "451 not now"])
    with ps.open_queues(served.app.home) as queues:
        queue = queues.queue("mails", max_attempts=1)
        queue.publish("x")
        queue.get_many(1, timeout=10)[0].nack("no")
        assert len(_mails(post, 1)) == 1
        assert not post.script
