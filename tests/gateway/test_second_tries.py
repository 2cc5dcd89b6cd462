"""What the disk or a lock refused once can be asked for again: nothing is lost, done twice or forgotten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.gateway.served import Served

from penstock.errors import LockTimeout, StorageError
from penstock.gateway.keys import TOPIC
from penstock.log.topic import Topic
from penstock.queue.embedded_consumer import EmbeddedConsumer

NOTES = "/topics/notes/records"


def _fails_once(work: Callable[..., Any], error: Exception, *, afterwards: bool = False) -> Callable[..., Any]:
    """`afterwards`: it is done, and nobody is told."""
    errors = [error]

    def failing(*args: Any, **options: Any) -> Any:
        found = work(*args, **options) if afterwards or not errors else None
        if errors:
            raise errors.pop()
        return found

    return failing


def _append(served: Served, key: str) -> tuple[int, Any]:
    answer = served.post(NOTES, json={"text": key}, headers={"Idempotency-Key": key})
    return answer.status_code, answer.json().get("duplicate")


def _texts(served: Served) -> list[str]:
    return [record["value"]["text"] for record in served.get(NOTES).json()["records"]]


def test_an_append_after_one_whose_end_is_unknown_is_stored(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"order-{number}" for number in range(16)]  # several for each producer
    port = served.app.log.port
    for key in keys[:8]:
        failing = _fails_once(port.append_atomically, LockTimeout("the ledger", waited_s=10), afterwards=True)
        with monkeypatch.context() as patch:
            patch.setattr(port, "append_atomically", failing)
            assert _append(served, key)[0] == 429
    assert [_append(served, key) for key in keys[8:]] == [(200, False)] * 8
    assert [_append(served, key) for key in keys[:8]] == [(200, True)] * 8
    assert sorted(_texts(served)) == sorted(keys)
