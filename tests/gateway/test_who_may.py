"""Every endpoint with no, a wrong, a weaker and an expired token; out of the route table, so all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from tests.gateway.served import Served, serving

import penstock as ps
from penstock.gateway.application import create
from penstock.gateway.gateway import Gateway
from penstock.gateway.routing import Guarded
from penstock.gateway.tokens import Tokens

PUBLIC = {
    ("GET", "/health/live"),
    ("GET", "/health/ready"),
    ("POST", "/api/v1/session"),
    ("DELETE", "/api/v1/session"),
    ("GET", "/login"),
    ("POST", "/login"),
    ("POST", "/logout"),
}
_RANK = ("public", "read", "write", "admin")


def _endpoints() -> list[tuple[str, str, str]]:
    """Method, path and role of all there are."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        app = create(Gateway(ps.App("table", home=folder)))
    found = []
    for route in app.routes:
        if isinstance(route, Mount):
            assert (route.path, type(route.app)) == ("/static", StaticFiles)
        else:
            assert isinstance(route, Guarded), route
            found += [(method, route.path, route.role) for method in route.methods or ()]
    return sorted(found)


ENDPOINTS = _endpoints()
GUARDED = [(method, path, role) for method, path, role in ENDPOINTS if role != "public"]


def _path(template: str) -> str:
    """With something in the place of each parameter."""
    member, job = "0" * 32, "0" * 16
    named = template.replace("{member}", member).replace("{job}", job)
    return re.sub(r"\{[^}]*\}", "page_views", named)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, dict[str, str]]]:
    app = ps.App("shop", home=Path(tmp_path_factory.mktemp("tokens")))
    app.topic("page_views", "user_id BIGINT")
    with serving(app) as served:
        made = {role: served.gateway.tokens.create(role, role, lasts_us=None) for role in _RANK[1:]}  # type: ignore[arg-type]
        long_ago = Tokens(app.home, now_us=lambda: 1_700_000_000_000_000)
        made["expired"] = long_ago.create("expired", "admin", lasts_us=1)
        made["revoked"] = served.gateway.tokens.create("revoked", "admin", lasts_us=None)
        served.gateway.tokens.revoke("revoked")
        known = made["admin"]
        made["wrong"] = known[:-1] + ("0" if known[-1] != "0" else "1")
        yield served, made
    app.close()


def _ask(served: Served, method: str, path: str, token: str | None) -> httpx.Response:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with served.http.stream(method, _path(path), headers=headers) as answer:
        if "event-stream" not in answer.headers.get("content-type", ""):
            answer.read()
        return answer


def test_only_health_and_signing_in_need_no_token() -> None:
    assert {(method, path) for method, path, role in ENDPOINTS if role == "public"} == PUBLIC


@pytest.mark.parametrize("deed", ["redrive", "reset", "discard"])
def test_a_page_needs_the_role_that_the_api_needs(deed: str) -> None:
    assert {role for _, path, role in ENDPOINTS if path.endswith(f"/{deed}")} == {"admin"}


@pytest.mark.parametrize(("method", "path", "role"), GUARDED, ids=lambda part: part)
def test_an_endpoint_refuses_who_is_not_known_and_who_may_not(
    tokens: tuple[Served, dict[str, str]], method: str, path: str, role: str
) -> None:
    served, made = tokens
    for wrong in (None, made["wrong"], made["expired"], made["revoked"], "x", "pst_x_y", "a b"):
        answer = _ask(served, method, path, wrong)
        if answer.status_code == 303:  # a page, which asks for a token
            assert (method, answer.headers["Location"].partition("?")[0]) == ("GET", "/login")
            continue
        assert answer.status_code == 401, wrong
        if path.startswith("/api/"):
            assert answer.json()["error"]["type"] == "NotKnown"
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    for weaker in _RANK[1 : _RANK.index(role)]:
        answer = _ask(served, method, path, made[weaker])
        assert answer.status_code == 403
    assert _ask(served, method, path, made[role]).status_code not in (303, 401, 403)


def test_who_may_only_read_cannot_append(tokens: tuple[Served, dict[str, str]]) -> None:
    served, made = tokens
    headers = {"Authorization": f"Bearer {made['read']}"}
    answer = served.post("/topics/page_views/records", json={"user_id": 1}, headers=headers)
    assert answer.status_code == 403
    assert served.get("/topics/page_views/records", headers=headers).json()["records"] == []


def test_a_browser_signs_in_with_a_cookie_that_scripts_cannot_read(
    tokens: tuple[Served, dict[str, str]],
) -> None:
    served, made = tokens
    with httpx.Client(base_url=served.url) as browser:
        assert browser.post("/api/v1/session", json={"token": "no"}).status_code == 401
        answer = browser.post("/api/v1/session", json={"token": made["write"]})
        assert "HttpOnly" in answer.headers["Set-Cookie"]
        assert "SameSite=strict" in answer.headers["Set-Cookie"]
        assert browser.get("/api/v1/session").json() == {"token": "write", "role": "write"}
        browser.delete("/api/v1/session")
        assert browser.get("/api/v1/session").status_code == 401


@pytest.mark.parametrize(
    "to", ["//evil", "/\\evil", "/\t/evil", "/\r\n/evil", "https://evil", "\t//evil", "é€"]
)
def test_signing_in_leads_to_no_other_server(tokens: tuple[Served, dict[str, str]], to: str) -> None:
    served, made = tokens
    answer = httpx.post(f"{served.url}/login", json={"token": made["read"], "to": to})
    assert answer.status_code == 204
    assert re.fullmatch(r"/([!-.0-\[\]-~][!-\[\]-~]*)?", answer.headers["HX-Redirect"])
    page = httpx.get(f"{served.url}/login", params={"to": to}).text
    assert re.search(r'name="to" value="/([^/\\\s"][^\\\s"]*)?"', page), page


def test_tokens_are_stored_as_hashes_for_their_owner_alone(home: Path) -> None:
    gateway = Gateway(ps.App("shop", home=home))
    token = gateway.tokens.create("ann", "read", lasts_us=None)
    file = home / "gateway" / "tokens.json"
    assert token.rpartition("_")[2] not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


def test_that_the_last_token_is_revoked_opens_no_door(served: Served) -> None:
    assert served.get("/topics").status_code == 200
    served.gateway.tokens.create("ann", "read", lasts_us=None)
    assert served.get("/topics").status_code == 401
    served.gateway.tokens.revoke("ann")
    assert served.get("/topics").status_code == 401


@pytest.mark.parametrize("stream", ["/api/v1/topics/notes/tail?from=earliest", "/live?path=/topics"])
def test_a_stream_ends_when_its_token_is_revoked(served: Served, stream: str) -> None:
    served.app.topics["notes"].append({"text": "before"})
    headers = {"Authorization": f"Bearer {served.gateway.tokens.create('ann', 'read', lasts_us=None)}"}
    with (
        httpx.Client(base_url=served.url, timeout=10) as client,
        client.stream("GET", stream, headers=headers) as answer,
        suppress(httpx.RemoteProtocolError),  # it is cut off
    ):
        pieces = answer.iter_bytes()
        assert next(pieces)
        served.gateway.tokens.revoke("ann")
        for _ in pieces:
            served.app.topics["notes"].append({"text": "after"})
