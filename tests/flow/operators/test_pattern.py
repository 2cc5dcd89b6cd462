"""The builder of patterns: what it refuses, and what it makes of what it takes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from tests.flow.operators.pattern_world import STREAMS, compiled

from penstock.errors import BadDefinition
from penstock.flow.expressions import matched_at, step
from penstock.flow.pattern import Definition, PatternBuilder, any_of, pattern

login = pattern(by="user").first("login", "logins")
PAIR = login.then("buy", "purchases")


def _ends(built: PatternBuilder, **columns: Any) -> Definition:
    return built.within("5 minutes").defined(**columns)


WRONG: dict[str, Callable[[], Any]] = {
    "without within": lambda: login.defined(at=step("login").at),
    "leaves no time": lambda: login.within("0 seconds"),
    "said twice": lambda: login.within("1 s").within("2 s"),
    "about the events of a key": lambda: pattern(by=[]),
    r'then\("buy"\) comes before first': lambda: pattern(by="user").then("buy", "purchases"),
    r"times\(\) comes before first": lambda: pattern(by="user").times(3),
    r"emit\(\) comes before first": lambda: pattern(by="user").within("1 s").defined(),
    '"again" cannot be first': lambda: login.first("again", "logins"),
    'two steps "login"': lambda: login.then("login", "logins"),
    "no name of a step": lambda: login.then("", "logins"),
    "has no stream": lambda: login.then("buy", None),
    r"any_of\(\) of nothing": lambda: login.then("buy", any_of()),
    "what must not be is not counted": lambda: login.then_not("buy", "purchases").times(2),
    "counted twice": lambda: login.times(2).at_least(2),
    r"times\(0\)": lambda: login.times(0),
    r"at_least\(True\)": lambda: login.at_least(True),
    r"times\(1.5\)": lambda: login.times(1.5),  # type: ignore[arg-type]
    "contiguity='loose'": lambda: login.then("buy", "purchases", contiguity="loose"),  # type: ignore[arg-type]
    "after_match.'skip_nothing'": lambda: login.after_match("skip_nothing"),
    "after_match.'skip_to_first'": lambda: login.after_match("skip_to_first"),
    "after_match.'no_skip:buy'": lambda: login.after_match("no_skip:buy"),
    'no step "bye" takes events': lambda: compiled(_ends(PAIR.after_match("skip_to_last:bye"))),
    "where it began|where the match began": lambda: compiled(_ends(PAIR.after_match("skip_to_first:login"))),
    "where=True is no condition": lambda: login.then("buy", "purchases", where=True),  # type: ignore[arg-type]
    'there is no step "logn"': lambda: compiled(_ends(PAIR, at=step("logn").at)),
    'there is no column "contry"': lambda: compiled(_ends(PAIR, c=step("buy").contry)),
    'there is no column "usr"': lambda: compiled(_ends(pattern(by="usr").first("login", "logins"))),
    "a string with a whole number": lambda: compiled(
        _ends(login.then("buy", "purchases", where=step("login").country == step("buy").amount))
    ),
    'step "buy" comes after "login"': lambda: compiled(
        _ends(
            pattern(by="user").first("login", "logins", where=step("buy").amount > 1).then("buy", "purchases")
        )
    ),
    "is a string and no condition": lambda: compiled(
        _ends(login.then("buy", "purchases", where=step("buy").country))
    ),
    "must not happen": lambda: compiled(_ends(login.then_not("buy", "purchases"), at=step("buy").at)),
    "takes several events": lambda: compiled(_ends(login.times(2), at=step("login").at)),
    "in the condition of that step only": lambda: compiled(_ends(PAIR, at=step("buy").previous().at)),
    "nothing comes before it": lambda: compiled(
        _ends(pattern(by="user").first("a", "a", where=step("a").x > step("a").previous().x))
    ),
    "an absence has one event": lambda: compiled(
        _ends(login.then_not("buy", "purchases", where=step("buy").last().amount > 1))
    ),
    r"matched_at\(\) in a condition": lambda: compiled(
        _ends(login.then("buy", "purchases", where=matched_at() > step("buy").at))
    ),
    "a list is for emit|in a condition": lambda: compiled(
        _ends(login.times(2).then("buy", "purchases", where=step("login").collect("ok").is_null()))
    ),
    '"user" would be there twice': lambda: compiled(_ends(PAIR, user=step("buy").user)),
    '"timed_out" would be there twice': lambda: compiled(_ends(PAIR.timeout(), timed_out=step("buy").at)),
    'no column "seconds"': lambda: compiled(
        _ends(login.then("contact", any_of("calls", "mails"), where=step("contact").seconds > 1))
    ),
    "cannot stand": lambda: _ends(PAIR, at=object()),
    "of 63 conditions": lambda: compiled(_ends(pattern(by="user").first("a", any_of(*["a"] * 63)))),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_cannot_be_is_refused_with_a_reason_and_a_hint(message: str) -> None:
    with pytest.raises(BadDefinition, match=message) as refused:
        WRONG[message]()
    assert refused.value.hint


def test_a_name_that_is_nearly_right_is_guessed() -> None:
    for asked, meant in [(step("logn").at, "login"), (step("login").contry, "country")]:
        with pytest.raises(BadDefinition) as refused:
            compiled(_ends(login, x=asked))
        assert refused.value.hint == f'did you mean "{meant}"?'


def test_keys_and_columns_of_different_types_are_refused() -> None:
    other = STREAMS["purchases"].set(0, pa.field("user", pa.int64()))
    with pytest.raises(BadDefinition, match='key "user" is string in one stream and int64 in another'):
        _ends(PAIR).compiled([STREAMS["logins"], other], ["at", "at"])
    x = STREAMS["b"].set(2, pa.field("x", pa.string()))
    mixed = _ends(pattern(by="user").first("one", any_of("a", "b")), x=step("one").x)
    with pytest.raises(BadDefinition, match="int64 in one stream and string in another"):
        mixed.compiled([STREAMS["a"], x], ["at", "at"])
    with pytest.raises(BadDefinition, match="1 schemas"):
        mixed.compiled([STREAMS["a"]], ["at"])


def test_keys_and_times_that_are_none_are_refused() -> None:
    logins = STREAMS["logins"]
    with pytest.raises(BadDefinition, match='time "country" is string'):
        _ends(login).compiled([logins], ["country"])
    with pytest.raises(BadDefinition, match='key "user" is list'):
        _ends(login).compiled([logins.set(0, pa.field("user", pa.list_(pa.string())))], ["at"])


def test_a_builder_can_be_used_twice() -> None:
    twice, thrice = login.times(2), login.times(3)
    assert (twice.steps[0].least, thrice.steps[0].least, login.steps[0].least) == (2, 3, 1)


def test_one_stream_in_several_steps_is_one_input_with_only_the_columns_it_needs() -> None:
    definition = _ends(
        login.then("buy", "purchases", where=step("buy").country != step("login").country)
        .then("again", "logins", where=step("again").ok),
        spent=step("buy").amount,
    )  # fmt: skip
    assert definition.streams == ("logins", "purchases")
    plan = compiled(definition)
    arrival = ["_timestamp", "_partition", "_offset"]
    assert [each.rows.names for each in plan.inputs] == [
        ["user", "at", *arrival, "country", "ok"],
        ["user", "at", *arrival, "amount", "country"],
    ]
    assert plan.kept == [(0, "country"), (1, "amount"), (1, "country")], "`ok` is decided when it comes"


def test_a_compiled_pattern_is_plain_data_and_knows_its_output() -> None:
    definition = _ends(
        PAIR.times(2).timeout("late"),
        known=matched_at(),
        bought=step("buy").count(),
        countries=step("buy").collect("country"),
        took=step("buy").last().at - step("login").at,
        each=step("buy").first().amount / 2,
    )
    plan = compiled(definition)
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert {field.name: str(field.type) for field in plan.output} == {
        "user": "string",
        "known": "timestamp[us, tz=UTC]",
        "bought": "int64",
        "countries": "list<element: string>",
        "took": "duration[us]",
        "each": "double",
        "late": "bool",
    }
