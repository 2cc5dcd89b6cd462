"""Queues do what the model does, whatever is done to them in whatever order: on both backends."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.queue.model import QueueMachine
from tests.servers import RabbitMQ

from penstock.clock import ManualClock
from penstock.queue.embedded import EmbeddedQueues
from penstock.queue.queues import Queues
from penstock.queue.rabbitmq import RabbitQueues

_ALL = list(HealthCheck)


class FileMachine(QueueMachine):
    """In a file, on a clock that moves only when it is told to: every step can be foretold."""

    def __init__(self) -> None:
        self._clock = ManualClock()
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-model-")
        super().__init__()

    def opened(self) -> Queues:
        return Queues(EmbeddedQueues(Path(self._folder.name), clock=self._clock))

    def crashed(self, client: Queues) -> None:
        assert isinstance(client.port, EmbeddedQueues)
        client.port.abandon()

    def now(self) -> float:
        return self._clock.now_us() / 1e6

    def wait(self, seconds: float) -> None:
        self._clock.advance(seconds)

    def teardown(self) -> None:
        super().teardown()
        self._folder.cleanup()


class RabbitMachine(QueueMachine):
    """On a broker that has a clock of its own."""

    is_exact = False
    moment_s = 0.2
    patience_s = 0.3
    url: ClassVar[str]

    def opened(self) -> Queues:
        return Queues(RabbitQueues(self.url))

    def crashed(self, client: Queues) -> None:
        assert isinstance(client.port, RabbitQueues)
        client.port.abandon()

    def now(self) -> float:
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


class RabbitMachineWithoutPriorities(RabbitMachine):
    """Which is another kind of queue there."""

    priorities = 0


def test_queues_in_a_file_do_what_the_model_does() -> None:
    run_state_machine_as_test(
        FileMachine,
        settings=settings(max_examples=30, stateful_step_count=40, deadline=None, suppress_health_check=_ALL),
    )


@pytest.mark.crash
@pytest.mark.timeout(1_800)
def test_queues_in_a_file_do_what_the_model_does_for_long() -> None:
    run_state_machine_as_test(
        FileMachine,
        settings=settings(
            max_examples=600, stateful_step_count=80, deadline=None, suppress_health_check=_ALL
        ),
    )


@pytest.mark.parametrize("machine", [RabbitMachine, RabbitMachineWithoutPriorities])
def test_queues_on_a_rabbitmq_do_what_the_model_does(
    rabbitmq: RabbitMQ, machine: type[RabbitMachine]
) -> None:
    machine.url = rabbitmq.url
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=2, stateful_step_count=12, deadline=None, suppress_health_check=_ALL),
    )


@pytest.mark.crash
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("machine", [RabbitMachine, RabbitMachineWithoutPriorities])
def test_queues_on_a_rabbitmq_do_what_the_model_does_for_long(
    rabbitmq: RabbitMQ, machine: type[RabbitMachine]
) -> None:
    machine.url = rabbitmq.url
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=_ALL),
    )
