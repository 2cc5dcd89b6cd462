"""What is written into the filters of the pages: words, `column=value`, or an expression."""

from __future__ import annotations

import httpx
import pytest
from tests.gateway.served import Served

from penstock.gateway.pages import tables

ROWS = [{"user_id": 7, "page": "/"}, {"user_id": 700, "page": "/cart"}, {"user_id": 701, "page": "it's <b>"}]


@pytest.fixture(scope="module")
def filled(shared: Served) -> Served:
    shared.post("/topics/page_views/records", json=ROWS).raise_for_status()
    users = [{"id": 1, "name": "Ann", "city": "New York"}, {"id": 2, "name": "Bob", "city": "New Delhi"}]
    shared.post("/topics/users/records", json=users).raise_for_status()
    return shared


def _page(served: Served, path: str, filter_: str) -> httpx.Response:
    return served.http.get(path, params={"filter": filter_})


@pytest.mark.parametrize(
    ("filter_", "users"),
    [
        ("user_id > 100", [700, 701]),
        ("user_id > 100 and page in ('/cart', '/search')", [700]),
        ("user_id=700 and page='/cart'", [700]),
        ("user_id = 7", [7]),
        ("page is not null", [7, 700, 701]),
        ("page=/cart", [700]),
        ("user_id=700 page=/cart", [700]),
        ("it's", [701]),
        ("<b>", [701]),
        ("page=nowhere", []),
    ],
)
def test_messages_are_chosen_by_words_and_by_expressions(
    filled: Served, filter_: str, users: list[int]
) -> None:
    told = filled.http.get("/topics/page_views/export", params={"from": "earliest", "filter": filter_})
    found = [user for user in (7, 700, 701) if f'"user_id": {user},' in told.text]
    assert found == users, told.text
    noun = "message" if len(users) == 1 else "messages"
    assert f"{len(users)} {noun} with" in _page(filled, "/topics/page_views/messages", filter_).text


@pytest.mark.parametrize("filter_", ["user_idd > 100", "user_id > 'x'", "user_id=7 and page=cart"])
def test_an_expression_that_cannot_be_read_is_no_word_that_nobody_wrote(filled: Served, filter_: str) -> None:
    assert _page(filled, "/topics/page_views/messages", filter_).status_code == 400


def test_rows_of_a_table_are_chosen_also_if_there_are_none(filled: Served) -> None:
    assert "Bob" not in _page(filled, "/tables/users", "city=New York").text
    assert "Ann" in _page(filled, "/tables/users", "city=New York id=1").text
    none = _page(filled, "/tables/users", "city=Paris")
    assert none.status_code == 200
    assert "no rows like that" in none.text


@pytest.mark.parametrize("bound", ["_RECORDS_MAX", "_BYTES_MAX"])
def test_a_table_that_is_too_large_for_a_page_is_not_read(
    filled: Served, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, bound, 1)
    told = filled.http.get("/tables/users").text
    assert "Ann" not in told
    assert "more versions than a page reads" in told
    assert "penstock subscribe APP users --for 0" in told
