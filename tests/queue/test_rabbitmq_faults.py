"""A RabbitMQ that does not answer, refuses, or dies."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from tests.servers import RabbitMQ, Unavailable, free_port, start_rabbitmq
from tests.waiting import wait_until

import penstock as ps
from penstock.queue.rabbitmq import RabbitQueues
from penstock.testing.queue_contract.backend import fresh


@contextlib.contextmanager
def _stopped(server: RabbitMQ) -> Iterator[None]:
    """It hears nothing meanwhile, and its connections stay."""
    os.killpg(server.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(server.process.pid, signal.SIGCONT)


def test_a_connection_lost_before_the_confirm_is_an_error_that_says_so(rabbitmq: RabbitMQ) -> None:
    with ps.open_queues(rabbitmq.url) as queues:
        queue = queues.queue(fresh("jobs"))
        queue.publish("first")
        assert isinstance(queues.port, RabbitQueues)
        link = queues.port._publisher._link
        assert link is not None
        found: list[ps.PenstockError] = []

        def publish() -> None:
            try:
                queue.publish("unsure")
            except ps.PenstockError as error:
                found.append(error)

        with _stopped(rabbitmq):
            publisher = threading.Thread(target=publish)
            publisher.start()
            wait_until(lambda: link._waiting, what="a message on its way")
            link.drop()
            publisher.join(60)
        assert isinstance(found[0], ps.Unreachable)
        assert "may be stored or not" in found[0].hint
        assert queue.publish("after")  # over a new connection


def test_a_consumer_goes_on_over_a_new_connection(rabbitmq: RabbitMQ) -> None:
    with ps.open_queues(rabbitmq.url) as queues:
        queue = queues.queue(fresh("jobs"))
        queue.publish("job")
        with queue.consume() as consumer:
            held = consumer.get(timeout=30)
            assert held is not None
            consumer._port._link.drop()  # type: ignore[attr-defined]
            with pytest.raises(ps.DeliveryExpired, match="connection was lost"):
                held.ack()
            again = consumer.get(timeout=30)
            assert again is not None
            assert (again.text, again.redelivered) == ("job", True)
            again.ack()


def test_of_messages_with_one_attempt_a_consumer_that_closes_has_at_most_one(rabbitmq: RabbitMQ) -> None:
    """The broker gives up what it has sent ahead."""
    with ps.open_queues(rabbitmq.url) as queues:
        queue = queues.queue(fresh("jobs"), max_attempts=1)
        queue.publish_many(["a", "b", "c", "d"])
        with queue.consume() as consumer:
            (first,) = consumer.get_many(timeout=20)
            first.ack()
        wait_until(lambda: queue.stats().ready + queue.stats().dead == 3, what="what was sent ahead")
        assert queue.stats().dead <= 1


def test_a_message_that_cannot_be_published_anew_goes_back(
    rabbitmq: RabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ps.open_queues(rabbitmq.url) as queues:
        queue = queues.queue(fresh("jobs"))
        queue.publish("job")
        assert isinstance(queues.port, RabbitQueues)

        def lost(*_: object) -> None:
            raise ps.Unreachable("RabbitMQ", "the connection was lost", hint="try again")

        with queue.consume(prefetch=1) as consumer:
            for _ in range(2):
                held = consumer.get(timeout=30)
                assert held is not None
                with monkeypatch.context() as patched:
                    patched.setattr(queues.port._publisher, "publish", lost)
                    with pytest.raises(ps.Unreachable):
                        held.nack("busy", delay=1)
            again = consumer.get(timeout=30)
            assert again is not None
            assert (again.text, again.attempts) == ("job", 3)
            again.ack()


def test_headers_of_other_programs_are_taken_as_they_are(rabbitmq: RabbitMQ) -> None:
    ours = {
        "penstock-attempts": "many", "penstock-history": "{{", "penstock-floats": "[]",
        "penstock-expires-us": "soon", "penstock-cause": 7, "penstock-at-us": 2**62, "x-death": "?",
    }  # fmt: skip
    with ps.open_queues(rabbitmq.url) as queues:
        queue = queues.queue(fresh("jobs"))
        connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.url))
        channel = connection.channel()
        for route in (queue.name, f"{queue.name}.dead"):
            about = pika.BasicProperties(headers={**ours, "list": [1, 2]})
            channel.basic_publish("", route, b"theirs", about)
        connection.close()
        got = queue.get(timeout=30)
        assert got is not None
        assert (got.text, got.id, got.attempts, dict(got.headers)) == ("theirs", "", 1, {"list": "[1, 2]"})
        got.nack("busy", delay=0.01)
        again = queue.get(timeout=30)
        assert again is not None
        again.ack()
        wait_until(lambda: queue.stats().dead == 1, what="the dead letter")
        (letter,) = queue.dead_letters()
        assert (letter.message.text, letter.attempts, letter.history) == ("theirs", 0, ())


def test_many_long_reasons_fit(rabbitmq: RabbitMQ) -> None:
    with ps.open_queues(rabbitmq.url) as queues:
        queue = queues.queue(fresh("jobs"), max_attempts=40)
        queue.publish("job", headers={"a": "x" * 30_000})
        with queue.consume(prefetch=1) as consumer:
            for attempt in range(1, 41):
                delivery = consumer.get(timeout=30)
                assert delivery is not None
                assert delivery.attempts == attempt
                delivery.nack("é" * 1_000, delay=0.01)
        wait_until(lambda: queue.stats().dead == 1, what="the dead letter")
        (letter,) = queue.dead_letters()
        assert (letter.attempts, letter.history[-1].number) == (40, 40)


def test_an_address_where_nobody_answers_is_an_error_without_the_password() -> None:
    with pytest.raises(ps.Unreachable) as refused:
        ps.open_queues(f"amqp://guest:secret@127.0.0.1:{free_port()}/")
    assert "secret" not in str(refused.value)


def test_a_wrong_password_is_refused_without_being_shown(rabbitmq: RabbitMQ) -> None:
    with pytest.raises(ps.NotAllowed) as refused:
        ps.open_queues(f"amqp://guest:secret@127.0.0.1:{rabbitmq.port}/")
    assert "secret" not in str(refused.value)


def test_what_a_rabbitmq_lacks_says_what_to_do(rabbitmq: RabbitMQ) -> None:
    with ps.open_queues(rabbitmq.url) as queues:
        queue = queues.queue(fresh("jobs"))
        exchange = queues.exchange(fresh("events"), "fanout")
        exchange.bind(queue)
        for ask in (
            queues.names,
            lambda: queues.alter(queue.name, ttl=5),
            lambda: exchange.publish("a", delay=1),
        ):
            with pytest.raises(ps.NotSupported) as refused:
                ask()
            assert refused.value.hint


def _written_down(folder: Path, *queues: str) -> bool:
    (register,) = folder.glob("mnesia/*/quorum/*/names.dets")
    written = register.read_bytes()
    return all(queue.encode() in written for queue in queues)


@pytest.mark.crash
@pytest.mark.timeout(1_200)
def test_what_was_confirmed_survives_kill_of_the_broker() -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        try:
            server = start_rabbitmq(Path(folder))
        except Unavailable as reason:
            pytest.skip(str(reason))
        try:
            with ps.open_queues(server.url) as queues:
                plain, ranked = queues.queue("plain"), queues.queue("ranked", max_priority=3)
                for queue in (plain, ranked):
                    queue.publish_many([str(n) for n in range(100)])
                    queue.publish("later", delay="1 second")
                # A quorum queue that the broker has not yet written down comes back empty: see QUEUES.md.
                wait_until(
                    lambda: _written_down(Path(folder), "plain.1000.later", "ranked.1000.later"),
                    what="the broker's register of queues on the disk",
                )
                server.kill()
                server = server.started_again()
                for queue in (plain, ranked):
                    found = []
                    # A delayed message that finds its queue not there yet is tried again after 3 minutes.
                    with queue.consume(idle=300) as consumer:
                        for delivery in consumer:
                            found.append(delivery.text)
                            delivery.ack()
                            if len(found) == 101:
                                break
                    assert sorted(found) == sorted([*map(str, range(100)), "later"])
        finally:
            server.stop()
