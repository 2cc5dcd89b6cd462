"""What every queue backend has to keep, as tests that a backend's test class inherits.

    from penstock.testing.queue_contract import QueueContract

    class TestMyQueues(QueueContract):
        @pytest.fixture
        def queues(self):
            with Queues(MyQueues()) as queues:
                yield queues

        def reopen(self, queues):
            return Queues(MyQueues())

        def crash(self, queues):
            ...

        def pass_time(self, queues, seconds):
            ...

The suite asks for no more than the port promises, and every test takes names of its own, so a broker may be
shared between tests.
"""

import pytest

_CHAPTERS = (
    "backend", "consuming", "dead_letters", "exchanges", "limits", "opening", "publishing", "requests",
    "time",
)  # fmt: skip
pytest.register_assert_rewrite(*(f"{__name__}.{chapter}" for chapter in _CHAPTERS))

from penstock.testing.queue_contract.consuming import Consuming  # noqa: E402
from penstock.testing.queue_contract.dead_letters import DeadLetters  # noqa: E402
from penstock.testing.queue_contract.exchanges import Exchanges  # noqa: E402
from penstock.testing.queue_contract.limits import Limits  # noqa: E402
from penstock.testing.queue_contract.opening import Opening  # noqa: E402
from penstock.testing.queue_contract.publishing import Publishing  # noqa: E402
from penstock.testing.queue_contract.requests import Requests  # noqa: E402
from penstock.testing.queue_contract.time import Time  # noqa: E402

__all__ = ["QueueContract"]


class QueueContract(Publishing, Consuming, Time, Limits, DeadLetters, Exchanges, Requests, Opening):
    """All chapters of the contract. Override `queues`, `reopen`, `crash` and `pass_time`."""
