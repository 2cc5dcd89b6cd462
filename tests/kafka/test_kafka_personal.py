"""Personal columns of topics on Kafka: sealed before they leave the program."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

import penstock as ps
from penstock.errors import NotSupported
from penstock.kafka.cluster import State

EMAIL = "ann@example.org"


def test_what_is_personal_is_sealed_on_kafka_and_can_be_forgotten(kafka: State, tmp_path: Path) -> None:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    app = ps.App("shop", home=tmp_path, log=kafka.url)
    orders = app.topic(name, "id BIGINT, customer STRING, email STRING", personal={"email": "customer"})
    for customer in ("ann", "bob"):
        orders.append({"id": 1, "customer": f"{name}-{customer}", "email": EMAIL})
    with ps.open_log(kafka.url) as log:
        stored = [row["email"] for row in log.topic(name).rows()]
        assert [email[:12] for email in stored] == ["personal:r1:"] * 2
        with pytest.raises(NotSupported, match="nobody has said where they are"):
            log.topic(name).append({"id": 2, "customer": "eve", "email": EMAIL})
    assert [row["email"] for row in orders.revealed().rows()] == [EMAIL] * 2
    done = app.forget(f"{name}-ann")
    assert (done.destroyed, done.values, done.places, done.clear) == (True, 1, (name,), ())
    assert "the log at" in done.left[0]
    assert [row["email"] for row in orders.revealed().rows()] == [None, EMAIL]
    app.close()
