"""The language of standing queries: what is read, what is refused and where, and what a word is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.flow.operators.events import thorough

from penstock.errors import BadInput, BadOption, BadQuery
from penstock.flow.search_query import DEPTH_MAX, LENGTH_MAX, PARTS_MAX, parse
from penstock.flow.search_tree import And, Field, Fuzzy, Not, Or, Phrase, Prefix, Query, Range, Word
from penstock.flow.search_words import WORD_LENGTH_MAX, words

FIELDS = (Field("title", "text"), Field("text", "text"), Field("price", "whole"), Field("rating", "real"))
BOTH = ("title", "text")


def _word(word: str) -> Word:
    return Word(BOTH, word)


A, B, C, D = map(_word, "abcd")
_READ: dict[str, Query] = {
    "a": A,
    "  a ": A,
    "A": A,
    "a b": And((A, B)),
    "a AND b": And((A, B)),
    "a b AND c": And((A, B, C)),
    "a OR b": Or((A, B)),
    "a OR b c": Or((A, And((B, C)))),
    "a AND b OR c AND d": Or((And((A, B)), And((C, D)))),
    "(a OR b) c": And((Or((A, B)), C)),
    "( a )": A,
    "NOT a": Not(A),
    "-a": Not(A),
    "NOT NOT a": Not(Not(A)),
    "a -b": And((A, Not(B))),
    "a AND NOT b OR c": Or((And((A, Not(B))), C)),
    "+a -b": And((A, Not(B))),
    "-(a b)": Not(And((A, B))),
    "NOT(a)": Not(A),
    "a and b": And((A, _word("and"), B)),
    "ORDER NOTE": And((_word("order"), _word("note"))),
    'a "OR" b': And((A, _word("or"), B)),
    "title:a": Word(("title",), "a"),
    "-title:a": Not(Word(("title",), "a")),
    "title:(a OR b) c": And((Or((Word(("title",), "a"), Word(("title",), "b"))), C)),
    'text:"a b"': Phrase(("text",), ("a", "b")),
    '"a b"': Phrase(BOTH, ("a", "b")),
    '"a b"~3': Phrase(BOTH, ("a", "b"), 3),
    '"A"': A,
    '"a \\"b\\" c"': Phrase(BOTH, ("a", "b", "c")),
    '"a AND (b"': Phrase(BOTH, ("a", "and", "b")),
    "wi-fi": Phrase(BOTH, ("wi", "fi")),
    "house?": _word("house"),
    "Appart*": Prefix(BOTH, "appart"),
    "title:appart*": Prefix(("title",), "appart"),
    "Hause~1": Fuzzy(BOTH, "hause", 1),
    "hause~2 b": And((Fuzzy(BOTH, "hause", 2), B)),
    "price:100": Range("price", 100, 100),
    "price:-5": Range("price", -5, -5),
    "price:(-5 OR 7)": Or((Range("price", -5, -5), Range("price", 7, 7))),
    "price:[100 TO 500]": Range("price", 100, 500),
    "price:{100 TO 500]": Range("price", 100, 500, low_included=False),
    "price:[* TO 500}": Range("price", None, 500, high_included=False),
    "price:>100": Range("price", 100, None, low_included=False),
    "price:<=100": Range("price", None, 100),
    "rating:[4 TO 4.5e0]": Range("rating", 4.0, 4.5),
    "rating:>=-0.0": Range("rating", 0.0, None),
    "ÖL": _word("öl"),
    "東京": Phrase(BOTH, ("東", "京")),
}


@pytest.mark.parametrize("text", _READ)
def test_a_query_is_read(text: str) -> None:
    assert parse(text, FIELDS) == _READ[text]


_REFUSED = [
    ("", 1, "empty"),
    (" \t", 1, "empty"),
    ("a AND", 6, "missing at the end"),
    ("NOT", 4, "missing at the end"),
    ("AND a", 1, "AND has nothing before it"),
    ("a OR OR b", 6, "OR has nothing before it"),
    ("a (b", 3, "not closed"),
    ("a b)", 4, "closes nothing"),
    ("()", 2, "not expected"),
    ('a "b c', 3, "not closed"),
    ('a"b"', 2, "no space before"),
    ('""', 1, "no letter or digit"),
    ("a && b", 3, "no letter or digit"),
    ("a - b", 3, "no letter or digit"),
    ("!a", 1, "not known"),
    ("h?use", 1, "not known"),
    ("title:-a", 7, "not known"),
    ("price >5", 7, "not known"),
    ("*part", 1, "at the end of a word"),
    ("*", 1, "at the end of a word"),
    ("title:*", 7, "at the end of a word"),
    ("house *", 7, "at the end of a word"),
    ("ap*rt", 4, "not expected"),
    ("wi-fi*", 1, "only one takes"),
    ("wi-fi~1", 1, "only one takes"),
    ('"a b"*', 6, "at the end of a word"),
    ("a~", 2, "from 1 to 2"),
    ("a~3", 2, "from 1 to 2"),
    ("a~0", 2, "from 1 to 2"),
    ("a~99999999999999999999", 2, "from 1 to 2"),
    ('"a b"~21', 6, "from 0 to 20"),
    ('"a b c d e f"~9', 1, "too much for 6 words"),
    ("a^2", 2, "no score"),
    ("titel:a", 1, 'no field "titel"'),
    ("10:30", 1, 'no field "10"'),
    ("a title:", 9, "followed by nothing"),
    ("title: a", 7, "followed by nothing"),
    ("title:(text:a)", 8, "inside of"),
    ("[1 TO 2]", 1, "field of a number"),
    ("title:[a TO b]", 7, "field of a number"),
    ("price:[1 TO b]", 13, "no number"),
    ("price:[1 2]", 7, "is a number"),
    ("price:cheap", 7, "is a number"),
    ("price:1.5", 7, "whole numbers"),
    ("price:9223372036854775808", 7, "whole numbers"),
    ("rating:1e999", 8, "no number"),
    ("rating:[nan TO 1]", 9, "no number"),
    ("price:5x", 8, "not expected"),
]


@pytest.mark.parametrize(("text", "position", "reason"), _REFUSED, ids=[each[0] for each in _REFUSED])
def test_a_query_that_cannot_be_read_says_where_and_why(text: str, position: int, reason: str) -> None:
    with pytest.raises(BadQuery) as refused:
        parse(text, FIELDS)
    assert refused.value.position == position
    assert reason in refused.value.reason
    assert f"character {position}: " in str(refused.value)
    assert isinstance(refused.value, BadOption)


def test_an_unknown_field_names_the_closest_one() -> None:
    with pytest.raises(BadQuery, match=r'did you mean "title"\? \(A text with a colon'):
        parse("titel:a", FIELDS)


def test_words_need_a_text_field() -> None:
    with pytest.raises(BadQuery, match="no field is text"):
        parse("a", FIELDS[2:])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a " * LENGTH_MAX, f"{LENGTH_MAX:,} are most"),
        ("(" * 1_000 + "a" + ")" * 900, "nested deeper"),
        ("-" * 1_900 + "a", "nested deeper"),
        ("a " * (PARTS_MAX + 1), "parts"),
    ],
    ids=["long", "deep", "negated", "many"],
)
def test_a_query_is_bounded(text: str, reason: str) -> None:
    with pytest.raises(BadQuery, match=reason):
        parse(text, FIELDS)


def test_a_query_within_the_bounds_is_read() -> None:
    deep = DEPTH_MAX - 1
    assert parse("(" * deep + "a" + ")" * deep, FIELDS) == A
    many = parse("a " * PARTS_MAX, FIELDS)
    assert isinstance(many, And)
    assert len(many.parts) == PARTS_MAX


@thorough
@given(st.text() | st.text('ab ()[]{}:"*~^+-\\ANDORT12<>=.titlepr', max_size=30))
def test_any_text_is_read_or_refused_and_nothing_else_happens(text: str) -> None:
    try:
        parse(text, FIELDS)
    except BadInput as refused:
        assert isinstance(refused, BadQuery)
        assert 1 <= refused.position <= len(text) + 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("New-York, NY (10001)!", ("new", "york", "ny", "10001")),
        ("don't snake_case", ("don", "t", "snake", "case")),
        ("Straße STRASSE", ("strasse", "strasse")),
        ("ΟΔΟΣ οδος", ("οδοσ", "οδοσ")),
        ("cafe\u0301 caf\u00e9 cafe", ("café", "café", "cafe")),
        ("ﬁn²", ("fin2",)),
        ("soft\u00adhyphen a\u2003b\x00c", ("softhyphen", "a", "b", "c")),
        ("हिन्दी भाषा", ("हिन्दी", "भाषा")),
        ("東京タワー2号", ("東", "京", "タ", "ワ", "ー", "2", "号")),
        ("x" * 999 + " y", ("x" * WORD_LENGTH_MAX, "y")),
        ("🙂 !?", ()),
    ],
)
def test_a_text_is_made_of_words(text: str, found: tuple[str, ...]) -> None:
    assert words(text) == found


@thorough
@given(st.text())
def test_the_words_of_words_are_the_same_ones(text: str) -> None:
    once = words(text)
    assert words(" ".join(once)) == once
