"""Standing queries matched with events: against the reference, and case by case."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.flow.operators.events import TIME, Row, plain

from penstock.errors import BadDefinition
from penstock.flow import search_index
from penstock.flow.search_match import Search, Searched, check, step
from penstock.flow.search_reference import edits, search_reference

EVENTS = pa.schema(
    [
        ("title", pa.string()),
        ("text", pa.string()),
        ("price", pa.int64()),
        ("rating", pa.float64()),
        ("_timestamp", TIME),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
    ]
)
QUERIES = pa.schema(
    [
        ("id", pa.string()),
        ("owner", pa.string()),
        ("query", pa.string()),
        ("_deleted", pa.bool_()),
        ("_timestamp", TIME),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
    ]
)
SEARCH = Search(key=("id",), fields=("title", "text", "price", "rating"))
thorough = settings(max_examples=250, deadline=None)  # each makes several indexes


def _table(rows: list[Row], schema: pa.Schema) -> pa.Table:
    arrays = [
        pa.array([row.get(field.name) for row in rows], pa.int64()).cast(TIME)
        if field.type == TIME
        else pa.array([row.get(field.name) for row in rows], field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def event(number: int, text: str | None = None, at: int | None = None, **rest: Any) -> Row:
    return {
        "text": text,
        **rest,
        "_timestamp": at if at is not None else number,
        "_partition": 0,
        "_offset": number,
    }


def saved(number: int, id: str, query: str | None, at: int = 0, deleted: bool = False) -> Row:
    return {
        "id": id, "query": query, "_deleted": deleted, "_timestamp": at, "_partition": 1, "_offset": number,
    }  # fmt: skip


def searched(
    events: list[Row], queries: list[Row], state: pa.Table | None = None, search: Search = SEARCH
) -> Searched:
    return step(state, _table(events, EVENTS), _table(queries, QUERIES), search=search)


def found(events: list[Row], queries: list[Row]) -> list[tuple[int, str]]:
    """Offsets of events, and the ids that they match."""
    return [(row["_offset"], row["query_id"]) for row in plain([searched(events, queries).output])]


def matching(query: str, *texts: str | None) -> list[int]:
    """The numbers of the texts that a query matches."""
    rows = [event(number, text, at=5) for number, text in enumerate(texts)]
    result = searched(rows, [saved(0, "q", query)])
    assert result.misfits.num_rows == 0
    return [row["_offset"] for row in plain([result.output])]


# What a query matches.


@pytest.mark.parametrize(
    ("query", "texts", "wanted"),
    [
        ("house", ["the House.", "houses", None, ""], [0]),
        ("house garden", ["garden and house", "house", "garden"], [0]),
        ("house OR garden", ["garden and house", "house", "flat"], [0, 1]),
        ("house -garden", ["garden and house", "house", "flat"], [1]),
        ("NOT house", ["garden and house", None, "flat"], [1, 2]),
        ("flat OR -house", ["house", "flat house", "garden"], [1, 2]),
        ('"new york"', ["New York", "york new", "new big york"], [0]),
        ('"new york"~1', ["New York", "york new", "new big york", "new very big york"], [0, 2]),
        ('"a a"~3', ["a", "a b", "a b a"], [2]),
        ('"a b c"~1', ["a x b c", "a b x c", "a x b x c"], [0, 1]),
        ("appart*", ["Appartement", "appart", "apart"], [0, 1]),
        ("hause~1", ["house", "haus", "huase", "mouse", "hause"], [0, 1, 2, 4]),
        ("hause~2", ["mouse", "hose", "hs"], [0, 1]),
        ("straße", ["STRASSE", "strase"], [0]),
        ("東京", ["東京都", "京東", "東 京"], [0, 2]),
        ("wi-fi", ["Wi-Fi here", "wi fi", "wifi"], [0, 1]),
        ("x" * 300, ["x" * 300, "x" * 255, "x" * 254], [0, 1]),
        ("x" * 300 + "*", ["x" * 300, "x" * 255 + "y"], [0, 1]),
    ],
)
def test_a_query_matches(query: str, texts: list[str | None], wanted: list[int]) -> None:
    assert matching(query, *texts) == wanted


def test_more_words_share_a_prefix_than_an_index_would_expand() -> None:
    assert len(matching("pre*", *(f"pre{number}" for number in range(500)))) == 500


def test_a_field_is_looked_into_alone_and_a_word_without_one_in_all_that_are_text() -> None:
    rows = [event(0, "garden", title="house"), event(1, "house", title="garden", price=5)]
    queries = {
        "title:house": [0],
        "text:house": [1],
        "house": [0, 1],
        '"house garden"': [],
        "house garden": [0, 1],
    }
    for query, wanted in queries.items():
        assert [row["_offset"] for row in plain([searched(rows, [saved(0, "q", query)]).output])] == wanted


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("price:[1 TO 3]", [1, 2]),
        ("price:{1 TO 3]", [2]),
        ("price:[1 TO 3}", [1]),
        ("price:[3 TO 1]", []),
        ("price:[* TO *]", [0, 1, 2, 4]),
        ("price:>=9223372036854775807", [4]),
        ("price:>9223372036854775807", []),
        ("price:<-9223372036854775808", []),
        ("price:<=-9223372036854775808", [0]),
        ("NOT price:1", [0, 2, 3, 4]),
        ("rating:0", [0, 1]),
        ("rating:<0", [2]),
        ("rating:>0", [4]),
        ("rating:[* TO *]", [0, 1, 2, 4]),
    ],
)
def test_a_range_of_numbers_matches(query: str, wanted: list[int]) -> None:
    prices = [-(2**63), 1, 3, None, 2**63 - 1]
    ratings = [-0.0, 0.0, -1e-300, float("nan"), float("inf")]
    rows = [
        event(number, price=price, rating=rating)
        for number, (price, rating) in enumerate(zip(prices, ratings, strict=True))
    ]
    assert [row for row, _ in found(rows, [saved(0, "q", query)])] == wanted


def test_a_decimal_is_compared_as_a_double() -> None:
    column = pa.array([Decimal("19.99"), Decimal("20.01"), None], pa.decimal128(10, 2))
    events = _table([event(number) for number in range(3)], EVENTS).set_column(2, "price", column)
    output = step(None, events, _table([saved(0, "q", "price:<=19.99")], QUERIES), search=SEARCH).output
    assert output["_offset"].to_pylist() == [0]


# Versions and time.


def test_a_query_that_changes_within_a_batch_is_matched_by_the_time_of_each_event() -> None:
    rows = [event(number, "house garden", at) for number, at in enumerate([9, 10, 19, 20, 29, 30, 31])]
    changes = [
        saved(0, "q", "house", at=10), saved(1, "q", "flat", at=20), saved(2, "q", "garden", at=25),
        saved(3, "q", None, at=30, deleted=True),
    ]  # fmt: skip
    output = plain([searched(rows, changes).output])
    assert [(row["_offset"], row["query_offset"]) for row in output] == [(1, 0), (2, 0), (4, 2)]


def test_of_two_changes_at_one_time_the_later_in_the_log_counts() -> None:
    changes = [saved(1, "q", "flat", at=5), saved(0, "q", "house", at=5)]
    assert found([event(0, "house", 5), event(1, "flat", 5)], changes) == [(1, "q")]


def test_the_state_is_the_queries_in_force_and_matches_the_next_batch() -> None:
    changes = [saved(0, "p", "house", 1), saved(1, "q", "flat", 1), saved(2, "q", "", 2, deleted=True)]
    first = searched([], changes)
    assert first.state.schema.names == ["id", "query", "_timestamp", "_partition", "_offset"]
    assert first.state["id"].to_pylist() == ["p"]
    second = searched([event(0, "house flat", 7)], [], first.state)
    assert [(row["query_id"], row["query_offset"]) for row in plain([second.output])] == [("p", 0)]
    assert second.state.equals(first.state)


def test_an_output_row_is_the_event_and_the_version() -> None:
    output = searched([event(3, "house", 7, title="t", price=4)], [saved(8, "q", "house", 1)]).output
    assert output.schema.names == [*EVENTS.names, "query_id", "query_partition", "query_offset"]
    assert plain([output]) == [
        {
            "title": "t", "text": "house", "price": 4, "rating": None, "_timestamp": 7, "_partition": 0,
            "_offset": 3, "query_id": "q", "query_partition": 1, "query_offset": 8,
        }
    ]  # fmt: skip


def test_matches_come_in_the_order_of_events_and_then_of_versions() -> None:
    rows = [event(2, "a", 7), event(1, "a", 9), event(0, "a b", 7)]
    assert found(rows, [saved(5, "x", "a"), saved(3, "z", "a"), saved(4, "y", "b")]) == [
        (0, "z"), (0, "y"), (0, "x"), (2, "z"), (2, "x"), (1, "z"), (1, "x"),
    ]  # fmt: skip


def test_a_key_may_be_several_columns() -> None:
    search = Search(key=("owner", "id"), fields=("text",))
    queries = [{**saved(0, "q", "house"), "owner": "ann"}, {**saved(1, "q", "flat"), "owner": "bob"}]
    output = plain([searched([event(0, "house flat", 1)], queries, search=search).output])
    assert [(row["query_owner"], row["query_id"]) for row in output] == [("ann", "q"), ("bob", "q")]


def test_a_batch_larger_than_an_index_takes_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_index, "ROWS_MAX", 4)
    rows = [event(number, "a b" if number % 3 else "b") for number in range(23)]
    changes = [saved(0, "q", "a"), saved(1, "p", "b", 5), saved(2, "p", "a", 11)]
    wanted = search_reference(_table(rows, EVENTS), _table(changes, QUERIES), search=SEARCH)
    assert searched(rows, changes).output.equals(wanted.output)


def test_a_query_is_read_once_and_not_again_in_every_batch() -> None:
    first = searched(
        [event(0, "once")], [saved(number, str(number), f"once{number}*") for number in range(50)]
    )
    misses = search_index.compiled.cache_info().misses
    searched([event(1, "once7", 5)], [], first.state)
    assert search_index.compiled.cache_info().misses == misses


# What cannot be read.


def test_a_bad_query_is_a_misfit_and_the_others_go_on() -> None:
    changes = [saved(0, "p", "house"), saved(1, "q", "titel:house"), saved(2, "r", None), saved(3, "s", "(")]
    result = searched([event(0, "house", 1)], changes)
    assert result.output["query_id"].to_pylist() == ["p"]
    assert result.state["id"].to_pylist() == ["p"]
    assert result.misfits.schema.names == ["id", "query", "reason", "_partition", "_offset"]
    misfits = result.misfits.to_pylist()
    assert [(row["id"], row["query"], row["_partition"], row["_offset"]) for row in misfits] == [
        ("q", "titel:house", 1, 1), ("r", None, 1, 2), ("s", "(", 1, 3),
    ]  # fmt: skip
    assert 'did you mean "title"' in misfits[0]["reason"]
    assert "NULL" in misfits[1]["reason"]
    assert "character 2" in misfits[2]["reason"]


def test_a_bad_version_puts_the_good_one_before_it_out_of_force_until_it_is_mended() -> None:
    rows = [event(number, "house", at) for number, at in enumerate([5, 15, 25])]
    changes = [saved(0, "q", "house", 1), saved(1, "q", "house AND", 10), saved(2, "q", "house*", 20)]
    result = searched(rows, changes)
    assert [(row["_offset"], row["query_offset"]) for row in plain([result.output])] == [(0, 0), (2, 2)]
    assert result.misfits["_offset"].to_pylist() == [1]
    again = searched([event(9, "house", 99)], [], result.state)
    assert (len(again.misfits), len(again.output)) == (0, 1), "a misfit is told once"


def test_the_text_of_a_deletion_is_not_read() -> None:
    assert len(searched([], [saved(0, "q", "(((", deleted=True)]).misfits) == 0


@pytest.mark.parametrize(
    ("search", "reason"),
    [
        (Search(key=("id",), fields=("titel",)), '"titel"'),
        (Search(key=("idd",), fields=("title",)), '"idd"'),
        (Search(key=(), fields=("title",)), "no key"),
        (Search(key=("id",), fields=()), "no field"),
        (Search(key=("id",), fields=("_timestamp",)), "timestamp"),
        (Search(key=("id",), fields=("title",), query="text"), '"text"'),
        (Search(key=("id",), fields=("title",), query="_deleted"), "no STRING"),
    ],
)
def test_a_definition_with_wrong_columns_is_refused(search: Search, reason: str) -> None:
    with pytest.raises(BadDefinition, match=reason):
        check(search, EVENTS, QUERIES)


def test_an_output_with_two_columns_of_one_name_is_refused() -> None:
    check(SEARCH, EVENTS, QUERIES)
    with pytest.raises(BadDefinition, match="query_id"):
        check(SEARCH, EVENTS.append(pa.field("query_id", pa.string())), QUERIES)
    with pytest.raises(BadDefinition, match="query_offset"):
        check(
            Search(key=("offset",), fields=("text",)), EVENTS, QUERIES.append(pa.field("offset", pa.int64()))
        )


def test_without_tantivy_it_says_what_to_install() -> None:
    code = """
import sys
sys.modules["tantivy"] = None
import penstock.flow.search_reference
from penstock.errors import NotSupported
try:
    import penstock.flow.search_index
except NotSupported as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "penstock[search]"' in ran.stdout


# The kernel against the reference.

VOCABULARY = ["a", "ab", "abc", "acb", "bac", "abcd", "Öl", "öle", "Straße", "STRASSEN", "東京", "b-c", "7"]
_some_word = st.sampled_from(VOCABULARY)
_some_text = st.none() | st.lists(_some_word, max_size=8).map(" ".join)
_phrases = st.builds(
    '"{}"{}'.format,
    st.lists(_some_word, min_size=1, max_size=3).map(" ".join),
    st.sampled_from(["", "~0", "~1", "~3"]),
)
_single = st.sampled_from([word for word in VOCABULARY if word not in ("東京", "b-c")])
_in_text = (
    _some_word
    | st.builds("{}*".format, st.sampled_from(["a", "ab", "abc", "ö", "stras", "東", "b"]))
    | st.builds("{}~{}".format, _single, st.sampled_from([1, 2]))
    | _phrases
)
_bound = st.sampled_from(["*", "-2", "0", "1", "3"])
_numbers = st.builds("{}{} TO {}{}".format, st.sampled_from("[{"), _bound, _bound, st.sampled_from("]}"))
_compared = st.builds("{}{}".format, st.sampled_from(["", "<", "<=", ">", ">="]), st.integers(-2, 3))
_leaves = (
    _in_text
    | st.builds("{}:{}".format, st.sampled_from(["title", "text"]), _in_text)
    | st.builds("{}:{}".format, st.sampled_from(["price", "rating"]), _numbers | _compared)
)


def _combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    joined = st.builds("{} {} {}".format, inner, st.sampled_from(["AND", "OR", "", "AND NOT", "-"]), inner)
    joined = joined.map(lambda text: text.replace("- ", "-"))
    return joined | st.builds("NOT {}".format, inner) | st.builds("({})".format, inner)


good_queries = st.recursive(_leaves, _combined, max_leaves=6)
any_query = good_queries | st.sampled_from(["(", "titel:a", "", None, "a AND"])
_prices = st.none() | st.integers(-3, 4)
_ratings = st.none() | st.sampled_from([-2.0, -0.0, 0.0, 0.5, 1.0, 3.0, float("nan"), float("inf")])


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Row], list[Row]]:
    """Events and changes of queries, several at one time, in partitions whose times never go back."""
    events: list[Row] = [
        {
            "title": draw(_some_text), "text": draw(_some_text), "price": draw(_prices),
            "rating": draw(_ratings), "_timestamp": draw(st.integers(0, 12)), "_partition": number % 2,
        }
        for number in range(draw(st.integers(0, 14)))
    ]  # fmt: skip
    changes: list[Row] = [
        {
            "id": draw(st.sampled_from(["p", "q", "r", None])), "query": draw(any_query),
            "_deleted": draw(st.sampled_from([False, False, False, None, True])),
            "_timestamp": draw(st.integers(0, 12)),
        }
        for _ in range(draw(st.integers(1, 8)))
    ]  # fmt: skip
    for change in changes:
        change["_partition"] = len(change["id"] or "")  # a key stays in its partition
    for rows in (events, changes):
        rows.sort(key=lambda row: row["_timestamp"])
        for offset, row in enumerate(rows):
            row["_offset"] = offset
    return draw(st.permutations(events)), draw(st.permutations(changes))


def _batch(rows: list[Row], after: int, up_to: int) -> list[Row]:
    return [row for row in rows if after < row["_timestamp"] <= up_to]


@thorough
@given(logs(), st.sets(st.integers(0, 12)))
def test_however_the_log_is_cut_the_kernel_gives_what_the_reference_gives(
    log: tuple[list[Row], list[Row]], cuts: set[int]
) -> None:
    events, changes = log
    state, output, misfits = None, [], []
    edges = [-1, *sorted(cuts), 12]
    for after, up_to in pairwise(edges):
        result = searched(_batch(events, after, up_to), _batch(changes, after, up_to), state)
        state = result.state if len(result.state) else None
        output += plain([result.output])
        misfits += plain([result.misfits])
    wanted = search_reference(_table(events, EVENTS), _table(changes, QUERIES), search=SEARCH)
    assert repr(output) == repr(plain([wanted.output])), "as text, since NaN is not itself"
    assert sorted(map(repr, misfits)) == sorted(map(repr, plain([wanted.misfits])))
    left = [] if state is None else plain([state])
    assert sorted(map(repr, left)) == sorted(map(repr, plain([wanted.state])))


@thorough
@given(good_queries, st.lists(st.tuples(_some_text, _some_text, st.integers(-3, 4), _ratings), max_size=12))
def test_a_query_of_the_grammar_is_read_and_matches_as_in_the_reference(query: str, rows: list[Any]) -> None:
    events = [
        event(number, text, title=title, price=price, rating=rating)
        for number, (title, text, price, rating) in enumerate(rows)
    ]
    result = searched(events, [saved(0, "q", query)])
    wanted = search_reference(_table(events, EVENTS), _table([saved(0, "q", query)], QUERIES), search=SEARCH)
    assert result.misfits.to_pylist() == []
    assert result.output["_offset"].to_pylist() == wanted.output["_offset"].to_pylist()


@thorough
@given(st.text("abé", min_size=1, max_size=7), st.lists(st.text("abé", min_size=1, max_size=7), max_size=20))
def test_edits_are_counted_as_the_index_counts_them(word: str, others: list[str]) -> None:
    for distance in (1, 2):
        wanted = [number for number, other in enumerate(others) if edits(word, other) <= distance]
        assert matching(f"{word}~{distance}", *others) == wanted


@thorough
@given(st.text() | st.text('ab ()[]{}:"*~+-\\ANDORT12<>=.titlepr', max_size=30), st.text(max_size=20))
def test_any_text_as_a_query_is_a_misfit_or_matches_as_in_the_reference(query: str, text: str) -> None:
    events, changes = [event(1, text), event(2, query)], [saved(0, "q", query)]
    result = searched(events, changes)
    wanted = search_reference(_table(events, EVENTS), _table(changes, QUERIES), search=SEARCH)
    assert result.output.to_pylist() == wanted.output.to_pylist()
    assert result.misfits.to_pylist() == wanted.misfits.to_pylist()
    assert len(result.misfits) + len(result.state) == 1
