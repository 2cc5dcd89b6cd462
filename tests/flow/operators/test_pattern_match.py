"""Patterns, by hand: each test has its events, and the matches that follow from the rules."""

from __future__ import annotations

import pytest
from tests.flow.operators.pattern_world import MS, Turn, event, found, letters, turns_taken

from penstock.flow.expressions import Expression, matched_at, step
from penstock.flow.pattern import PatternBuilder, any_of, pattern

A, B, C = 0, 1, 2  # what letters are as x


def _is(name: str, x: int) -> Expression:
    return step(name).x == x


def _begin(name: str = "a", x: int = A) -> PatternBuilder:
    """Letters of one key: a step named a takes an A."""
    return pattern(by="user").first(name, "a", where=_is(name, x))


def _at(name: str) -> Expression:
    return step(name).at


def test_a_v_shape_in_a_ticker() -> None:
    down, up = (
        step("down").price < step("down").previous().price,
        step("up").price > step("up").previous().price,
    )
    vs = (
        pattern(by="user")
        .first("top", "ticks")
        .then("down", "ticks", where=down, contiguity="strict").at_least(1)
        .then("up", "ticks", where=up, contiguity="strict").at_least(1)
        .within("100 ms")
        .defined(
            top=step("top").price,
            down=step("down").collect("price"),
            up=step("up").collect("price"),
            bottom=step("down").last().price,
            known=matched_at(),
        )
    )  # fmt: skip
    prices = [12, 17, 13, 10, 15, 20, 20, 18, 19]
    ticks = [event("ticks", at, price=float(price)) for at, price in enumerate(prices)]
    assert found(vs, ticks) == [
        # 12 is no top: what follows rises. 17 falls to 10 and rises to 20; the second 20 ends the rise.
        {"top": 17.0, "down": [13.0, 10.0], "up": [15.0, 20.0], "bottom": 10.0, "known": 6 * MS},
        # The first 20 is followed by no fall, the second falls to 18 and still rises when the limit comes.
        {"top": 20.0, "down": [18.0], "up": [19.0], "bottom": 18.0, "known": 106 * MS},
    ]


def test_three_failures_in_a_time() -> None:
    three = (
        pattern(by="user")
        .first("fail", "logins", where=~step("fail").ok)
        .times(3)
        .within("10 ms")
        .defined(since=step("fail").first().at, until=step("fail").last().at, failures=step("fail").count())
    )
    logins = [
        event("logins", at, ok=ok) for at, ok in [(0, False), (4, True), (5, False), (11, False), (12, False)]
    ] + [event("logins", at, user="bob", ok=False) for at in (1, 2)]
    # 0, 5, 11 is too long; 5, 11, 12 is not. Bob fails only twice, and ann's failures are not his.
    assert found(three, logins) == [{"since": 5 * MS, "until": 12 * MS, "failures": 3}]


def test_a_then_b_without_c_between() -> None:
    clean = _begin().then_not("c", "a", where=_is("c", C)).then("b", "a", where=_is("b", B))
    definition = clean.within("100 ms").defined(a=_at("a"), b=_at("b"))
    # A0 sees C before its B. A3 has none, and what comes after its B is nothing to it.
    assert found(definition, letters("ACBADBC")) == [{"a": 3 * MS, "b": 5 * MS}]


def test_absence_begins_when_the_step_before_it_has_enough() -> None:
    clean = _begin().times(2).then_not("c", "a", where=_is("c", C)).then("b", "a", where=_is("b", B))
    definition = clean.within("100 ms").defined(a=step("a").collect("_offset"))
    assert found(definition, letters("ACAB")) == [{"a": [0, 2]}]
    assert found(definition, letters("AACB")) == []


def test_absence_is_about_the_event_it_names() -> None:
    same = step("c").y == step("a").y
    clean = _begin().then_not("c", "a", where=_is("c", C) & same).then("b", "a", where=_is("b", B))
    definition = clean.within("100 ms").defined(a=_at("a"))
    ac = [event("a", 0, x=A, y=1.0), event("a", 1, x=C, y=2.0), event("a", 2, x=B, y=3.0)]
    assert found(definition, ac) == [{"a": 0}]
    assert found(definition, [ac[0], event("a", 1, x=C, y=1.0), ac[2]]) == []


def test_absence_until_the_time_is_over() -> None:
    definition = (
        pattern(by="user")
        .first("order", "purchases")
        .then_not("paid", "mails", where=step("paid").subject == "paid")
        .within("10 ms")
        .defined(order=_at("order"), known=matched_at())
    )
    events = [
        event("purchases", 0),
        event("mails", 10, subject="paid"),  # on the limit, in time
        event("purchases", 20),
        event("mails", 30.001, subject="paid"),  # a microsecond late
        event("purchases", 50),
        event("mails", 55, subject="hello"),
    ]
    unpaid = [{"order": 20 * MS, "known": 30 * MS}, {"order": 50 * MS, "known": 60 * MS}]
    assert found(definition, events) == unpaid
    assert found(definition, events, watermark=59.999) == unpaid[:1], "an absence is known at the limit"
    assert found(definition, events, watermark=60) == unpaid


def test_at_least_n_in_the_middle_ends_with_the_next_step() -> None:
    definition = (
        _begin().at_least(2).then("b", "a", where=_is("b", B)).within("100 ms")
        .defined(count=step("a").count(), first=step("a").first().at, last=step("a").last().at, b=_at("b"))
    )  # fmt: skip
    # A0 alone is not enough for B1, and waits on. The match ends with B5; A6 B7 is one A only.
    assert found(definition, letters("ABAACBAB")) == [
        {"count": 3, "first": 0, "last": 3 * MS, "b": 5 * MS},
    ]


def test_at_least_n_at_the_end_takes_all_until_the_limit() -> None:
    definition = _begin().at_least(2).within("5 ms").defined(count=step("a").count(), known=matched_at())
    # A0 to A5 lie within 5 ms of A0; A6 begins anew and is alone.
    events = letters("A.AB.AA")
    assert found(definition, events) == [{"count": 3, "known": 5 * MS}]
    assert found(definition, events, watermark=4) == []


def test_at_least_n_at_the_end_and_strict_ends_with_what_does_not_fit() -> None:
    definition = (
        pattern(by="user").first("a", "a", where=_is("a", A), contiguity="strict").at_least(2).within("50 ms")
        .defined(count=step("a").count(), known=matched_at())
    )  # fmt: skip
    # A0 alone is broken by B1. A2 A3 A4 ends with B5.
    assert found(definition, letters("ABAAAB")) == [{"count": 3, "known": 5 * MS}]


def test_an_event_that_fits_both_goes_to_the_next_step() -> None:
    definition = (
        _begin().at_least(1).then("any", "a").within("50 ms")
        .defined(count=step("a").count(), any=step("any").at)
    )  # fmt: skip
    assert found(definition, letters("AAA")) == [{"count": 1, "any": 1 * MS}]


OVERLAPS = {
    # Three in a row out of A0 A1 A2 A3 A4 A5.
    "no_skip": [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]],
    "skip_to_next": [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]],
    "skip_past_last": [[0, 1, 2], [3, 4, 5]],
    "skip_to_last:a": [[0, 1, 2], [2, 3, 4]],
}


@pytest.mark.parametrize("policy", OVERLAPS)
def test_matches_of_a_repetition_overlap_as_the_policy_says(policy: str) -> None:
    definition = (
        _begin().times(3).within("50 ms").after_match(policy).defined(events=step("a").collect("_offset"))
    )
    assert [row["events"] for row in found(definition, letters("AAAAAA"))] == OVERLAPS[policy]


SKIPS = {
    # A0 A1 B2 A3 C4 C5, for A then B or A, then C with the y of its A. A0 takes A1 and waits for a C with
    # y 1 (C5). A1 takes B2 and C4 (y 2). A3 takes nothing: no B or A comes after it.
    "no_skip": [[1, 2, 4], [0, 1, 5]],
    # A1's match comes first, and A0 began before it.
    "skip_to_next": [[1, 2, 4]],
    "skip_past_last": [[1, 2, 4]],
    "skip_to_first:middle": [[1, 2, 4]],
    "skip_to_last:c": [[1, 2, 4]],
}


@pytest.mark.parametrize("policy", SKIPS)
def test_the_match_that_is_known_first_drops_what_began_before_its_cut(policy: str) -> None:
    definition = (
        _begin()
        .then("middle", "a", where=step("middle").x.is_in([A, B]))
        .then("c", "a", where=_is("c", C) & (step("c").y == step("a").y))
        .within("50 ms")
        .after_match(policy)
        .defined(a=step("a")["_offset"], middle=step("middle")["_offset"], c=step("c")["_offset"])
    )
    said = [(A, 1.0), (A, 2.0), (B, 0.0), (A, 3.0), (C, 2.0), (C, 1.0)]
    events = [event("a", at, x=x, y=y) for at, (x, y) in enumerate(said)]
    assert [list(row.values()) for row in found(definition, events)] == SKIPS[policy]


CUTS = {
    # A0 A1 B2 B3 A4 B5, for A then two Bs: A0 and A1 both have B2 B3.
    "no_skip": [(0, [2, 3]), (1, [2, 3])],
    "skip_to_next": [(0, [2, 3]), (1, [2, 3])],
    "skip_past_last": [(0, [2, 3])],
    "skip_to_first:b": [(0, [2, 3])],
    "skip_to_last:b": [(0, [2, 3])],
    "skip_to_last:a": [(0, [2, 3]), (1, [2, 3])],
}


@pytest.mark.parametrize("policy", CUTS)
def test_of_matches_with_one_last_event_the_one_that_began_first_comes_first(policy: str) -> None:
    definition = (
        _begin().then("b", "a", where=_is("b", B)).times(2).within("50 ms").after_match(policy)
        .defined(a=step("a")["_offset"], b=step("b").collect("_offset"))
    )  # fmt: skip
    assert [(row["a"], row["b"]) for row in found(definition, letters("AABBAB"))] == CUTS[policy]


def test_skip_to_a_step_lets_its_event_begin_the_next_match() -> None:
    # Each number is greater than the one before: 1 3 | 3 7 | 7 9 under skip_to_first, 1 3 | 7 9 otherwise.
    up = (
        pattern(by="user").first("low", "a")
        .then("high", "a", where=step("high").x > step("low").x).within("50 ms")
    )  # fmt: skip
    events = [event("a", at, x=x) for at, x in enumerate([1, 3, 7, 9])]
    emit = {"low": step("low").x, "high": step("high").x}
    chained = found(up.after_match("skip_to_first:high").defined(**emit), events)
    assert [list(row.values()) for row in chained] == [[1, 3], [3, 7], [7, 9]]
    apart = found(up.after_match("skip_past_last").defined(**emit), events)
    assert [list(row.values()) for row in apart] == [[1, 3], [7, 9]]


@pytest.mark.parametrize(("last", "matches"), [(10, 1), (10.001, 0)])
def test_a_match_exactly_on_the_limit_counts_and_a_microsecond_later_does_not(
    last: float, matches: int
) -> None:
    definition = _begin().then("b", "a", where=_is("b", B)).within("10 ms").defined(b=_at("b"))
    assert len(found(definition, [event("a", 0, x=A), event("a", last, x=B)])) == matches


CONTIGUITY = {
    # A then B, then C: D is a letter that no step takes.
    ("relaxed", "ABC"): True, ("relaxed", "ADBDC"): True,
    ("strict", "ABC"): True, ("strict", "ADBC"): False, ("strict", "ABDC"): False,
}  # fmt: skip


@pytest.mark.parametrize(("contiguity", "said"), CONTIGUITY)
def test_strict_takes_the_very_next_event_and_relaxed_skips(contiguity: str, said: str) -> None:
    definition = (
        _begin()
        .then("b", "a", where=_is("b", B), contiguity=contiguity)  # type: ignore[arg-type]
        .then("c", "a", where=_is("c", C), contiguity=contiguity)  # type: ignore[arg-type]
        .within("50 ms").defined(c=_at("c"))
    )  # fmt: skip
    assert bool(found(definition, letters(said))) == CONTIGUITY[contiguity, said]


def test_strict_counts_events_of_every_stream_of_the_pattern_and_of_one_key() -> None:
    definition = (
        pattern(by="user").first("login", "logins").then("buy", "purchases", contiguity="strict")
        .then_not("mail", "mails").within("9 ms").defined(buy=_at("buy"))
    )  # fmt: skip
    login, buy = event("logins", 0), event("purchases", 2)
    assert found(definition, [login, event("mails", 1, user="bob"), buy]) == [{"buy": 2 * MS}]
    assert found(definition, [login, event("mails", 1), buy]) == []


def test_a_strict_step_after_a_relaxed_repetition_follows_its_last_event() -> None:
    definition = (
        _begin().at_least(1).then("b", "a", where=_is("b", B), contiguity="strict").within("50 ms")
        .defined(a=step("a").collect("_offset"), b=step("b")["_offset"])
    )  # fmt: skip
    # B2 does not follow A0 directly, but another A may: A3, and B4 after it.
    assert found(definition, letters("ADBAB")) == [{"a": [0, 3], "b": 4}]


def test_any_of_takes_from_whichever_stream_fits_first() -> None:
    contact = any_of((event_stream := "mails", step("contact").subject == "hello"), "calls")
    definition = (
        pattern(by="user").first("buy", "purchases").then("contact", contact).within("10 ms")
        .defined(buy=_at("buy"), contact=_at("contact"))
    )  # fmt: skip
    events = [
        event("purchases", 0),
        event(event_stream, 1, subject="spam"),
        event("calls", 2, seconds=3),
        event("purchases", 5),
        event(event_stream, 6, subject="hello"),
        event("calls", 7, seconds=3),
    ]
    assert found(definition, events) == [{"buy": 0, "contact": 2 * MS}, {"buy": 5 * MS, "contact": 6 * MS}]


def test_login_in_one_country_and_purchase_in_another() -> None:
    elsewhere = step("purchase").country != step("login").country
    definition = (
        pattern(by="user").first("login", "logins").then("purchase", "purchases", where=elsewhere)
        .within("300 ms").defined(home=step("login").country, bought_in=step("purchase").country)
    )  # fmt: skip
    events = [
        event("logins", 0, country="FR"),
        event("purchases", 100, country="FR"),
        event("purchases", 200, country="US", amount=5),
        event("logins", 0, user="bob", country="FR"),
        event("purchases", 301, user="bob", country="US"),
        event("purchases", 100, user="eve", country="US"),
    ]
    assert found(definition, events) == [{"home": "FR", "bought_in": "US"}]


def test_timeout_gives_rows_for_what_ran_out_of_time_and_only_for_that() -> None:
    definition = (
        _begin().then_not("c", "a", where=_is("c", C)).then("b", "a", where=_is("b", B)).within("5 ms")
        .timeout("gave_up").defined(a=_at("a"), b=_at("b"), bs=step("b").count(), known=matched_at())
    )  # fmt: skip
    # A0 has B1; A3 has C4 before any B, and is no timeout; A6 waits until 11.
    assert found(definition, letters("AB.AC.A")) == [
        {"a": 0, "b": 1 * MS, "bs": 1, "known": 1 * MS, "gave_up": False},
        {"a": 6 * MS, "b": None, "bs": 0, "known": 11 * MS, "gave_up": True},
    ]


def test_what_a_match_dropped_does_not_time_out() -> None:
    definition = (
        _begin().then("b", "a", where=_is("b", B)).within("5 ms").timeout().defined(a=step("a")["_offset"])
    )
    assert found(definition, letters("AAB")) == [{"a": 0, "timed_out": False}]


def test_a_condition_that_is_null_does_not_hold() -> None:
    events = [event("a", 0, x=None, y=1.0), event("a", 1, x=1, y=None), event("a", 2, x=2, y=2.0)]

    def taken(condition: Expression) -> list[int]:
        definition = pattern(by="user").first("a", "a", where=condition).within("9 ms")
        return [row["a"] for row in found(definition.defined(a=step("a")["_offset"]), events)]

    x, y = step("a").x, step("a").y
    assert taken(x == 1) == [1]
    assert taken(x != 1) == [2], "null is not unequal either"
    assert taken(~(x == 1)) == [2]
    assert taken((x == 1) | (y == 1.0)) == [0, 1], "null or true is true"
    assert taken((x > 0) & (y > 0)) == [2]
    assert taken(x.is_null()) == [0]
    assert taken(x.is_in([1, 2]) & ~y.is_null()) == [2]


def test_null_is_a_key_like_any_other() -> None:
    definition = _begin().times(2).within("9 ms").defined(n=step("a").count())
    assert found(
        definition, [event("a", at, user=user, x=A) for at, user in enumerate([None, "ann", None])]
    ) == [{"n": 2}]


def test_previous_and_first_in_a_condition_speak_of_the_match_so_far() -> None:
    rising = (step("up").x > step("up").previous().x) & (step("up").x < step("up").first().x + 10)
    definition = (
        pattern(by="user").first("base", "a").then("up", "a", where=rising).times(3).within("50 ms")
        .defined(base=step("base").x, up=step("up").collect("x"))
    )  # fmt: skip
    # From 5: 6 is up, 3 is not above 6, 20 is too far above 6, 8 and 9 are up.
    events = [event("a", at, x=x) for at, x in enumerate([5, 6, 3, 20, 8, 9])]
    assert found(definition, events) == [{"base": 5, "up": [6, 8, 9]}]


def test_count_in_a_condition_includes_the_event_that_asks() -> None:
    definition = (
        pattern(by="user").first("a", "a", where=step("a").x == step("a").count()).times(3).within("50 ms")
        .defined(xs=step("a").collect("x"))
    )  # fmt: skip
    events = [event("a", at, x=x) for at, x in enumerate([2, 1, 1, 2, 4, 3])]
    assert found(definition, events) == [{"xs": [1, 2, 3]}]


def test_events_of_one_time_are_ordered_by_arrival_and_then_by_stream() -> None:
    definition = (
        pattern(by="user")
        .first("a", "a")
        .then("b", "b")
        .within("9 ms")
        .defined(a=step("a")["_offset"], b=step("b")["_offset"])
    )
    # Numbers 0, 1, 2 have one append time: a's come before b's.
    both = [event("b", 5), event("a", 5), event("b", 5)]
    assert found(definition, both) == [{"a": 1, "b": 0}]
    later = [event("b", 5), event("b", 5), event("b", 5), event("a", 5)]
    assert found(definition, later) == []


def test_a_match_comes_with_its_last_event_and_not_before_the_watermark_has_it() -> None:
    definition = _begin().times(2).within("50 ms").defined(n=step("a").count())
    events = list(enumerate(letters("AA")))
    early, late = turns_taken(definition, [Turn(events, 1 * MS - 1), Turn([], 1 * MS)])
    assert (len(early.output), early.wake_us) == (0, 1 * MS)
    assert (len(late.output), late.wake_us) == (1, None)


@pytest.mark.parametrize("policy", ["skip_past_last", "no_skip"])
def test_state_does_not_grow_with_the_length_of_the_run(policy: str) -> None:
    definition = (
        _begin().then("b", "a", where=_is("b", B)).times(2).within("20 ms").after_match(policy).timeout()
        .defined(n=step("b").count())
    )  # fmt: skip

    def most(turns: int) -> int:
        found = [
            Turn(
                [
                    (
                        turn * 10 + place,
                        event("a", turn * 10 + place, user=f"u{place % 3}", x=(turn + place) % 4),
                    )
                    for place in range(10)
                ],
                (turn * 10 - 5) * MS,
            )
            for turn in range(turns)
        ]
        return max(sum(map(len, stepped.state)) for stepped in turns_taken(definition, found))

    assert 0 < most(200) == most(20)
