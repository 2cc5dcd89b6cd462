"""Queues in a file keep the contract, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.queue.embedded import EmbeddedQueues
from penstock.queue.queues import Queues
from penstock.testing.queue_contract import QueueContract

_CLOCK = ManualClock()


class TestQueuesInAFile(QueueContract):
    @pytest.fixture
    def queues(self, tmp_path: Path) -> Iterator[Queues]:
        with Queues(EmbeddedQueues(tmp_path / "queues", clock=_CLOCK)) as opened:
            yield opened

    def reopen(self, queues: Queues) -> Queues:
        assert isinstance(queues.port, EmbeddedQueues)
        return Queues(EmbeddedQueues(queues.port.file.folder, clock=_CLOCK))

    def crash(self, queues: Queues) -> None:
        assert isinstance(queues.port, EmbeddedQueues)
        queues.port.abandon()

    def pass_time(self, queues: Queues, seconds: float) -> None:
        _CLOCK.advance(seconds)
