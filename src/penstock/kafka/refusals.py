"""What a Kafka cluster says when it says no, in our words."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from penstock.errors import BadOption, NotAllowed, PenstockError, StorageError, Unreachable

_NOT_ALLOWED = {
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError._SSL,
}
_UNREACHABLE = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._WAIT_COORD,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
}
FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
LOST_MEMBER = {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError._STATE,
    KafkaError._ASSIGNMENT_LOST,
}


_FRESH_S = 30.0


class Heard:
    """The last thing a client's connections complained about: a request only says that time was up."""

    def __init__(self) -> None:
        self._refused: KafkaError | None = None
        self._at = 0.0

    def __call__(self, error: KafkaError) -> None:
        if error.code() in _NOT_ALLOWED:
            self._refused, self._at = error, time.monotonic()

    def translated(self, error: KafkaError, server: str) -> PenstockError:
        code, said = error.code(), error.str()
        if code in _UNREACHABLE and self._refused and time.monotonic() - self._at < _FRESH_S:
            code, said = self._refused.code(), self._refused.str()
        if code in _NOT_ALLOWED:
            return NotAllowed(server, said)
        if code in _UNREACHABLE:
            return Unreachable(server, said, hint="is it running? what was under way may have arrived or not")
        if code in (KafkaError._INVALID_ARG, KafkaError.INVALID_CONFIG):
            return BadOption(f"{server}: {said}.", hint="see librdkafka's list of settings")
        return StorageError(f"{server}: {said} ({error.name()}).", hint="see the brokers' logs")


def error_of(failure: KafkaException) -> KafkaError:
    found: Any = failure.args[0]
    return found if isinstance(found, KafkaError) else KafkaError(KafkaError._FAIL, str(found))
