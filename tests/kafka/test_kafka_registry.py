"""A schema registry that is away, wants a password or says no, and the address that names it."""

from __future__ import annotations

import base64
import http.server
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.command import Command
from tests.kafka.elsewhere import fresh
from tests.kafka.registry import Running, with_registry
from tests.servers import free_port

import penstock as ps
from penstock.kafka.address import Address
from penstock.kafka.cluster import State
from penstock.opening import open_log


@pytest.fixture(scope="module")
def log(url: str) -> Iterator[ps.Log]:
    """One client for all tests, as a program has."""
    with open_log(url) as opened:
        yield opened


def test_a_registry_that_is_away_is_named(kafka: State, log: ps.Log) -> None:
    stored, plain, new = fresh("orders"), fresh("json"), fresh("new")
    log.create_topic(stored, "id BIGINT").append({"id": 1})
    log.create_topic(plain, "id BIGINT", format="json").append({"id": 1})
    away = f"http://127.0.0.1:{free_port()}"
    with open_log(with_registry(kafka, away)) as alone:
        for attempt in (
            lambda: alone.create_topic(new, "id BIGINT"),
            lambda: list(alone.topic(stored).rows()),
            lambda: alone.topic(stored).append({"id": 2}),
            lambda: alone.alter_topic(stored, schema="id BIGINT, note STRING"),
            lambda: alone.delete_topic(stored),
            lambda: alone.producer(fresh("job")).append({stored: [{"id": 2}]}),
        ):
            with pytest.raises(ps.Unreachable, match=f"the schema registry {away} does not answer"):
                attempt()
        assert list(alone.topic(plain).rows()) == [{"id": 1}]
    assert new not in log.topics()
    assert f"{stored}.poison" not in log.topics()
    assert list(log.topic(stored).rows()) == [{"id": 1}]


def test_a_wrong_address_of_a_registry_is_no_reason_to_put_records_aside(
    kafka: State, registry: Running, log: ps.Log
) -> None:
    topic = log.create_topic(fresh("orders"), "id BIGINT")
    topic.append({"id": 1})
    with open_log(with_registry(kafka, f"{registry.url}/nowhere")) as mistaken:
        with pytest.raises(ps.StorageError, match="refuses") as refused:
            list(mistaken.topic(topic.name).rows())
        assert "schema.registry.url" in refused.value.hint


def test_a_topic_of_avro_needs_its_registry_named(kafka: State, log: ps.Log) -> None:
    topic = log.create_topic(fresh("orders"), "id BIGINT")
    topic.append({"id": 1})
    with open_log(kafka.url) as without:
        for attempt in (
            lambda: list(without.topic(topic.name).rows()),
            lambda: without.topic(topic.name).append({"id": 2}),
            lambda: without.create_topic(fresh("orders"), "id BIGINT", format="avro"),
        ):
            with pytest.raises(ps.BadOption, match="no schema registry is named") as refused:
                attempt()
            assert "schema.registry.url" in refused.value.hint


def test_without_its_library_avro_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    monkeypatch.delitem(sys.modules, "penstock.kafka.avro", raising=False)
    with pytest.raises(ps.NotSupported) as refused:
        open_log(url)
    assert refused.value.hint == 'pip install "penstock[avro]"'


@contextmanager
def guarded(registry: Running, user: str) -> Iterator[str]:
    """The registry behind a door that asks for a user and a password, as a proxy in front of one does."""
    wanted = f"Basic {base64.b64encode(user.encode()).decode()}"

    class Door(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            code, answer = 401, b'{"error_code": 401, "message": "who are you"}'
            if self.headers["Authorization"] == wanted:
                headers = {"Content-Type": self.headers["Content-Type"] or "application/json"}
                request = urllib.request.Request(
                    f"{registry.url}{self.path}", body or None, headers, method=self.command
                )
                try:
                    with urllib.request.urlopen(request, timeout=20) as found:
                        code, answer = found.status, found.read()
                except urllib.error.HTTPError as error:
                    code, answer = error.code, error.read()
            self.send_response(code)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Door)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def test_a_registry_may_ask_for_a_password(kafka: State, registry: Running, home: Path) -> None:
    with guarded(registry, "ann:p@ss/word") as door:
        for url in (
            with_registry(kafka, f"http://ann:p%2540ss%252Fword@{door}"),  # in an address within an address
            with_registry(kafka, f"http://{door}") + "&schema.registry.basic.auth.user.info=ann:p%40ss/word",
        ):
            with open_log(url) as log:
                topic = log.create_topic(fresh("orders"), "id BIGINT")
                topic.append({"id": 1})
                assert list(topic.rows()) == [{"id": 1}]
            told = Command(home).json("topic", "list", "--home", url)
            assert told["home"] == kafka.url  # and no password
        with open_log(with_registry(kafka, f"http://ann:wrong@{door}")) as log:
            with pytest.raises(ps.NotAllowed, match=f"http://{door} refuses: who are you") as refused:
                log.create_topic(fresh("orders"), "id BIGINT")
            assert "wrong" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("schema.registry.url=nowhere", "is no address of a schema registry"),
        ("schema.registry.url=ftp://ann:secret@host", "is no address of a schema registry"),
        ("schema.registry.url=http://ann:secret/1@host", "is no address of a schema registry"),
        ("schema.registry.url=http://ann:1/secret@host", "is no address of a schema registry"),
        ("schema.registry.url=http://ann:secret#1@host", "in a password are written %23"),
        ("schema.registry.basic.auth.user.info=ann:secret", "is no address of a schema registry"),
        ("schema.registry.url=http://host&schema.registry.colour=red", "schema.registry.colour"),
        ("schema.registry.url=https://host&schema.registry.ssl.ca.location=/nowhere", "schema.registry.ssl"),
    ],
)
def test_options_of_a_registry_that_are_none_are_refused(options: str, told: str) -> None:
    with pytest.raises(ps.BadOption) as refused:
        open_log(f"kafka://127.0.0.1:1?{options}")
    assert told in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_registrys_options_are_no_business_of_kafkas() -> None:
    address = Address.parse("kafka://one:9092?schema.registry.url=http://ann:secret@two:8081&acks=1")
    assert address.options == {"acks": "1"}
    assert address.registry == {"url": "http://ann:secret@two:8081"}
    assert "secret" not in f"{address} {address!r}"
