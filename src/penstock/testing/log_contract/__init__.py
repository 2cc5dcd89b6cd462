"""What every log backend has to keep, as tests that a backend's test class inherits.

    from penstock.testing.log_contract import LogContract

    class TestMyLog(LogContract):
        @pytest.fixture
        def port(self, tmp_path):
            with contextlib.closing(MyLog(tmp_path)) as port:
                yield port

        def reopen(self, port):
            return MyLog(port.home)

        def expire(self, port, topic, partition):
            ...

The suite asks for no more than the port promises: offsets may have gaps, the end of a partition
may move and lie past its last record, other clients see a change some time later, and timestamps
are the backend's. Every test takes names of its own, so a log may be shared between tests.
"""

import pytest

_CHAPTERS = (
    "appends", "atomic", "backend", "compacted", "delivery", "evolution", "groups", "membership", "producers",
    "reads", "records", "topics",
)  # fmt: skip
pytest.register_assert_rewrite(*(f"{__name__}.{chapter}" for chapter in _CHAPTERS))

from penstock.testing.log_contract.appends import Appends  # noqa: E402
from penstock.testing.log_contract.atomic import Atomic  # noqa: E402
from penstock.testing.log_contract.compacted import Compacted  # noqa: E402
from penstock.testing.log_contract.delivery import Delivery  # noqa: E402
from penstock.testing.log_contract.evolution import Evolution  # noqa: E402
from penstock.testing.log_contract.groups import Groups  # noqa: E402
from penstock.testing.log_contract.membership import Membership  # noqa: E402
from penstock.testing.log_contract.producers import Producers  # noqa: E402
from penstock.testing.log_contract.reads import Reads  # noqa: E402
from penstock.testing.log_contract.records import Records  # noqa: E402
from penstock.testing.log_contract.topics import Topics  # noqa: E402

__all__ = ["LogContract"]


class LogContract(
    Topics, Evolution, Records, Appends, Reads, Atomic, Compacted, Producers, Groups, Membership, Delivery
):
    """All chapters of the contract. Override `port`, `reopen` and `expire`."""
