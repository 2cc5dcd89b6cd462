"""What is asked of a cluster that is not ready to answer."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock.kafka.address import Address
from penstock.kafka.clients import Clients


class Settling:
    """A consumer of a cluster that has chosen another leader a moment ago."""

    def __init__(self, code: int) -> None:
        self.refusals = [KafkaException(KafkaError(code))] * 2

    def list_topics(self, topic: str, timeout: float) -> None: ...

    def get_watermark_offsets(self, place: object, timeout: float) -> tuple[int, int]:
        if self.refusals:
            raise self.refusals.pop()
        return 3, 7


def ends(code: int) -> tuple[int, int]:
    consumer: Any = Settling(code)
    return Clients(Address.parse("kafka://127.0.0.1:9092")).ends(consumer, "orders", 0)


@pytest.mark.parametrize("code", [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.OFFSET_NOT_AVAILABLE])
def test_a_new_leader_that_cannot_tell_the_end_yet_is_asked_again(code: int) -> None:
    assert ends(code) == (3, 7)


def test_what_does_not_pass_is_an_error_at_once() -> None:
    with pytest.raises(KafkaException):
        ends(KafkaError.TOPIC_AUTHORIZATION_FAILED)
