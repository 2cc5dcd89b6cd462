"""What a page of another site cannot do through its reader's browser, and what names cannot reach."""

from __future__ import annotations

import socket

import pytest
from tests.gateway.served import WAIT_S, Served

APPEND = "/topics/notes/records"


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1", "https://127.0.0.1"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
def test_a_request_of_a_foreign_origin_is_refused(shared: Served, method: str, origin: str) -> None:
    answer = shared.http.request(
        method, f"/api/v1{APPEND}", headers={"Origin": origin}, json={"text": "foreign"}
    )
    assert (answer.status_code, answer.json()["error"]["type"]) == (403, "ForeignRequest")
    assert "access-control-allow-origin" not in answer.headers
    assert shared.get(APPEND, params={"where": "text = 'foreign'"}).json()["records"] == []


def test_a_request_of_its_own_pages_is_taken(shared: Served) -> None:
    answer = shared.post(APPEND, json={"text": "a"}, headers={"Origin": shared.url})
    assert answer.status_code == 200


def test_a_name_that_somebody_else_gave_this_machine_is_refused(shared: Served) -> None:
    foreign = ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::1", "localhost@evil",
               "evil@localhost", "localhost/evil", "localhost:x")  # fmt: skip
    for host in foreign:
        answer = shared.get("/topics", headers={"Host": host})
        assert answer.status_code in (400, 403), host
    for host in ("localhost", "LOCALHOST:9", "127.0.0.1:1", "[::1]:5"):
        assert shared.get("/topics", headers={"Host": host}).status_code == 200, host


def test_a_second_name_or_origin_does_not_hide_behind_the_first(shared: Served) -> None:
    own = shared.url.removeprefix("http://")
    host, port = own.split(":")
    for second in ("Host: evil.example", f"Origin: {shared.url}\r\nOrigin: http://evil.example"):
        with socket.create_connection((host, int(port)), timeout=WAIT_S) as client:
            client.sendall(f"GET /api/v1/topics HTTP/1.1\r\nHost: {own}\r\n{second}\r\n\r\n".encode())
            assert client.recv(4_096).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_a_body_that_any_page_can_send_is_refused(shared: Served, kind: str) -> None:
    for path in (APPEND, "/verify", "/groups/g/topics/notes/reset", "/session"):
        answer = shared.post(path, content=b'{"text": "a"}', headers={"Content-Type": kind})
        assert (answer.status_code, answer.json()["error"]["type"]) == (415, "BadMediaType")


def test_a_page_that_refuses_is_called_by_what_it_refuses(served: Served) -> None:
    form = {"Content-Type": "text/plain"}
    missing = served.http.get("/nowhere", headers={"Accept": "text/html"})
    refused = served.http.post("/topics/notes/produce", content=b"{}", headers=form)
    served.gateway.tokens.create("ann", "read", lasts_us=None)
    unknown = served.http.post("/topics/notes/produce", json={"record": "{}"})
    told = [
        (answer.status_code, answer.text.partition("<title>")[2].partition("<")[0])
        for answer in (missing, refused, unknown)
    ]
    assert told == [
        (404, "Not found · Penstock"),
        (415, "Unsupported media type · Penstock"),
        (401, "Unauthorized · Penstock"),
    ]


def test_a_foreign_page_gets_nothing_without_an_origin_either(shared: Served) -> None:
    for site in ("cross-site", "same-site"):  # another port of this machine is the same site
        headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
        assert shared.get("/topics", headers=headers).status_code == 403
    visit = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert shared.http.get("/", headers=visit).status_code == 200
    assert shared.get("/topics", headers=visit).status_code == 403


@pytest.mark.parametrize("path", ["/api/v1/topics", "/health/live", "/nowhere", "/", "/static/nothing.js"])
def test_every_answer_has_the_headers_that_browsers_heed(shared: Served, path: str) -> None:
    headers = shared.http.get(path).headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "server" not in headers


HOSTILE = [
    "..",
    ".",
    "../../etc/passwd",
    "a/b",
    "a\0b",
    "a\nb",
    "a'b",
    'a"b',
    "<script>",
    "a b",
    "é",
    "x" * 250,
]


@pytest.mark.parametrize("name", HOSTILE, ids=repr)
def test_a_hostile_name_is_refused_before_it_touches_anything(shared: Served, name: str) -> None:
    from urllib.parse import quote

    quoted = quote(name, safe="")
    for path in (
        f"/topics/{quoted}", f"/topics/{quoted}/records", f"/topics/{quoted}/tail", f"/views/{quoted}/rows",
        f"/tables/{quoted}/rows", f"/groups/{quoted}", f"/views/{quoted}/late", f"/views/{quoted}/changes",
    ):  # fmt: skip
        status, kind, body = shared.raw(path)
        assert (status in (404, 422), kind) == (True, "application/json"), (path, body)
        assert b'"error"' in body
    answer = shared.post(f"/topics/{quoted}/records", json={"text": "a"})
    assert answer.status_code in (404, 405, 422)
    assert sorted(shared.app.log.topics()) == ["notes", "page_views", "users"]


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", "a\0b", "a\nb\r\n\r\ndata: x", "'; DROP TABLE x; --", "\u2028"]
)
def test_a_hostile_payload_is_data_and_comes_back_as_it_was(shared: Served, text: str) -> None:
    first = shared.post(APPEND, json={"text": text}).json()["partitions"]["0"]["first"]
    answer = shared.get(APPEND, params={"from": first})
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["records"][0]["value"]["text"] == text
    with shared.events("/topics/notes/tail", params={"from": first}) as stream:
        assert stream.take(1)[0].data["value"]["text"] == text


def test_a_path_that_is_not_there_is_a_page_for_a_browser_and_json_for_a_program(shared: Served) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    page = shared.http.get("/nowhere", headers=browser)
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert 'href="/"' in page.text
    for path, headers in (("/nowhere", {}), ("/api/v1/nowhere", browser)):
        answer = shared.http.get(path, headers=headers)
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "BadRequest")
