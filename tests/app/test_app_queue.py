"""Queues that an app declares."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock as ps


def test_an_app_declares_queues_that_are_created_when_one_is_used(home: Path) -> None:
    app = ps.App("shop", home=home)
    mails = app.queue("mails", max_attempts=3)
    app.queue("invoices")
    assert not home.exists()
    mails.publish({"to": "ann"})
    assert app.queues.names() == ["invoices", "mails"]
    delivery = mails.get()
    assert delivery is not None
    assert delivery.json() == {"to": "ann"}
    delivery.ack()
    app.close()


def test_a_closed_app_opens_its_queues_again(home: Path) -> None:
    app = ps.App("shop", home=home)
    mails = app.queue("mails")
    mails.publish("one")
    app.close()
    assert mails.stats().ready == 1
    app.close()


def test_a_queue_declared_twice_or_badly_is_refused(home: Path) -> None:
    app = ps.App("shop", home=home)
    app.queue("mails")
    with pytest.raises(ps.BadDefinition, match="declared twice"):
        app.queue("mails")
    with pytest.raises(ps.BadOption, match="did you mean max_attempts"):
        app.queue("invoices", max_attempt=3)
    with pytest.raises(ps.BadOption, match="amqp"):
        ps.App("shop", home=home, queues="kafka://host")


def test_queues_are_where_a_test_has_the_app(tmp_path: Path) -> None:
    app = ps.App("shop", home=tmp_path / "real")
    mails = app.queue("mails")
    mails.publish("real")
    with app.relocated(ps.open_log(tmp_path / "log"), tmp_path / "test"):
        assert mails.stats().ready == 0
    assert mails.stats().ready == 1
    app.close()
