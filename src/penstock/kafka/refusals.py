"""What a Kafka cluster says when it says no, in our words."""

from __future__ import annotations

import re
import time
from collections import deque
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from penstock.errors import BadOption, NotAllowed, PenstockError, StorageError, Unreachable

_NOT_KNOWN = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED}
NO_RIGHT = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_NOT_ALLOWED = {*_NOT_KNOWN, *NO_RIGHT, KafkaError._SSL}
_UNREACHABLE = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._DESTROY_BROKER,
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


_COMPLAINTS_MAX = 10
_HOW_LONG = re.compile(r"\s*\(after \d+ ?ms[^)]*\)")


class Heard:
    """What a client's connections complained about last: a request only says that time was up."""

    def __init__(self) -> None:
        self._complaints: deque[tuple[float, KafkaError]] = deque(maxlen=_COMPLAINTS_MAX)

    def __call__(self, error: KafkaError) -> None:
        if error.code() in _NOT_ALLOWED or error.code() == KafkaError._TRANSPORT:
            self._complaints.append((time.monotonic(), error))

    def refusal(self) -> KafkaError | None:
        """That it will not have us, if it said so a moment ago."""
        return next((error for error in self._fresh() if error.code() in _NOT_ALLOWED), None)

    def translated(self, error: KafkaError, server: str, *, about: str = "") -> PenstockError:
        """`about`: what was asked for."""
        if error.code() in _UNREACHABLE:
            error = self.refusal() or next(iter(self._fresh()), error)
        code, said = error.code(), _HOW_LONG.sub("", error.str()).rstrip(".")
        if code in _NOT_ALLOWED:
            return NotAllowed(server, f"{said} ({about})" if about else said, hint=_way_out(code))
        if code in _UNREACHABLE:
            # librdkafka says so itself, or not, as the connection ends.
            without = "; this may be a listener without TLS" if "SSL" in said else ""
            return Unreachable(server, f"{said}{without}", hint=_IS_IT_THERE)
        if code in (KafkaError._INVALID_ARG, KafkaError.INVALID_CONFIG):
            return BadOption(f"{server}: {said}.", hint="see librdkafka's list of settings")
        return StorageError(f"{server}: {said} ({error.name()}).", hint="see the brokers' logs")

    def _fresh(self) -> list[KafkaError]:
        """The newest first."""
        now = time.monotonic()
        return [error for at, error in reversed(tuple(self._complaints)) if now - at < _FRESH_S]


_IS_IT_THERE = (
    "is it running? does it want TLS or a password (?security.protocol=…)? "
    "what was under way may have arrived or not"
)


def _way_out(code: int) -> str:
    if code in NO_RIGHT:
        return "give its user that right (kafka-acls --add …; docs/KAFKA.md lists which are needed)"
    if code in _NOT_KNOWN:
        return "check the user, the password, sasl.mechanism and security.protocol in the address"
    return "check security.protocol and ssl.ca.location in the address"


def error_of(failure: KafkaException) -> KafkaError:
    found: Any = failure.args[0]
    return found if isinstance(found, KafkaError) else KafkaError(KafkaError._FAIL, str(found))
