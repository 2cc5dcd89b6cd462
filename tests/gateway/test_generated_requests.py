"""Generated requests for every endpoint of the OpenAPI document: no 500, and no answer it does not know."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.gateway.conftest import shop
from tests.gateway.served import WAIT_S, Served, serving

import penstock as ps
from penstock.gateway.application import create
from penstock.gateway.gateway import Gateway, Settings
from penstock.gateway.limits import Limits

CHECKS: list[Any] = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance,
]  # fmt: skip


def _document() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return create(Gateway(ps.App("schema", home=folder))).openapi()


DOCUMENT = _document()
# What is generated depends on the constants of all modules that are imported: alone, and among other tests,
# these are different requests.
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
STREAMS = r"/(tail|changes)$"
LITTLE = settings(
    max_examples=15, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate],
)  # fmt: skip


@schemathesis.serializer("application/x-ndjson", "application/vnd.apache.arrow.stream")
def _as_it_is(_: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    app = shop(tmp_path_factory.mktemp("schema"))
    app.topics["notes"].append([{"text": str(number)} for number in range(20)])
    app.topics["users"].append([{"id": number, "name": "Ann", "city": "Bern"} for number in range(20)])
    with serving(app, Settings(limits=Limits(wait_s=0.05))) as served:
        yield served
    app.close()


@SCHEMA.exclude(path_regex=STREAMS).parametrize()
@LITTLE
def test_an_endpoint_answers_as_its_document_says(case: Any, filled: Served) -> None:
    answer = case.call(base_url=filled.url, timeout=WAIT_S)
    case.validate_response(answer, checks=CHECKS)


@SCHEMA.include(path_regex=STREAMS).parametrize()
@LITTLE
def test_a_stream_begins_as_its_document_says(case: Any, filled: Served) -> None:
    sent = case.as_transport_kwargs(base_url=filled.url)
    sent["headers"] = {name: value for name, value in sent["headers"].items() if name != "Authorization"}
    allowed = {"method", "url", "headers", "params"}
    chosen = {name: value for name, value in sent.items() if name in allowed}
    # Not httpx: it has a bound of its own on addresses, and the server's is to be met.
    with requests.request(**chosen, timeout=WAIT_S, stream=True) as answer:
        assert answer.status_code in (200, 400, 404, 405, 410, 416, 422, 431), answer.status_code
        kind = "text/event-stream" if answer.status_code == 200 else "application/json"
        assert answer.headers["content-type"].startswith(kind)


def test_every_operation_is_documented() -> None:
    for path, operations in DOCUMENT["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"].endswith((".", "?", ")")), (method, path)
            assert operation["description"], (method, path)
            assert operation["x-role"], (method, path)
            assert {"408", "431"} <= set(operation["responses"]), (
                method,
                path,
            )  # any request may be too long
