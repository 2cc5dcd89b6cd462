"""`penstock search`: a search index of a table, by the app and by its folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.command import Command, error_of

import penstock as ps
from penstock.follow import Follower, spec_of
from penstock.follow.search import SearchSink

APP = """
import penstock as ps

app = ps.App("shop")
products = app.table(
    "products", "id BIGINT, title STRING, about STRING, price DOUBLE", key="id", to=ps.to.search({index!r})
)
other = app.table("other", "id BIGINT", key="id")
"""
PRODUCTS = [
    {"id": 1, "title": "Brown shoe", "about": "a shoe, brown as a shoe can be", "price": 40.0},
    {"id": 2, "title": "Boot", "about": "not quite a shoe", "price": 90.0},
    {"id": 3, "title": "Hat", "about": None, "price": 10.0},
    {"id": 4, "title": "Old shoe", "about": None, "price": 1.0},
]


@pytest.fixture
def index(cli: Command, tmp_path: Path) -> Path:
    """Where the products are indexed; the last one was deleted."""
    folder = tmp_path / "index"
    (tmp_path / "shop.py").write_text(APP.format(index=str(folder)))
    app = ps.App("shop", home=cli.home)
    products = app.table("products", "id BIGINT, title STRING, about STRING, price DOUBLE", key="id")
    products.upsert([{**row, "title": "shoe shoe shoe"} for row in PRODUCTS])
    products.upsert(PRODUCTS)
    products.delete({"id": 4})
    sink = SearchSink(folder)
    spec = spec_of(products.schema.arrow, ("id",), name="products")
    Follower(products, sink, spec, kind="table").step(timeout_s=0)
    sink.close()
    app.close()
    return folder


def found(cli: Command, place: object, query: str, *options: object) -> list[int]:
    return [hit["row"]["id"] for hit in cli.json("search", place, "products", query, *options)["rows"]]


def test_the_best_rows_come_first_and_only_those_that_are_there(cli: Command, index: Path) -> None:
    assert found(cli, index, "shoe") == [1, 2]
    assert found(cli, index, "shoe", "--limit", 1) == [1]
    assert found(cli, index, "shoe price:>50") == [2]
    assert sorted(found(cli, index, "NOT title:boot")) == [1, 3]
    assert found(cli, index, '"brown as a"') == [1]
    assert found(cli, index, "hta~1") == [3]
    assert found(cli, index, "bro*") == [1]
    assert found(cli, index, "old") == []


def test_an_app_knows_where_its_index_is(cli: Command, index: Path, tmp_path: Path) -> None:
    assert found(cli, tmp_path / "shop.py", "hat") == [3]
    shown = cli("search", tmp_path / "shop.py", "products", "hat").stdout.splitlines()
    assert shown[0].split() == ["score", "id", "title", "about", "price"]
    assert shown[1].split()[1:3] == ["3", "Hat"]


@pytest.mark.parametrize(
    ("name", "query", "said"),
    [
        ("products", "title:(", "fails at character"),
        ("products", "titel:x", 'did you mean "title"'),
        ("other", "x", "goes to no search index"),
    ],
)
def test_what_cannot_be_searched_is_refused(
    cli: Command, index: Path, tmp_path: Path, name: str, query: str, said: str
) -> None:
    result = cli("search", tmp_path / "shop.py", name, query, "--json")
    assert result.exit_code == 2
    told = error_of(result)
    assert said in told["message"] + told["hint"]


def test_a_folder_without_an_index_says_so(cli: Command, tmp_path: Path) -> None:
    result = cli("search", tmp_path, "products", "x")
    assert result.exit_code == 2
    assert "no search index" in result.stderr
