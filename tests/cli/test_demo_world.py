"""The world around the demo's shop: the same for the same seed, with everything in it that a shop meets."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

from penstock.cli.demo import shop
from penstock.cli.demo.world import Happened, World

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)


def _minute(seed: int = 1) -> list[Happened]:
    world = World(seed, NOON)
    return [happened for second in range(1, 61) for happened in world.until(NOON + timedelta(seconds=second))]


def test_the_same_seed_is_the_same_world() -> None:
    assert _minute() == _minute()
    assert _minute() != _minute(seed=2)


def test_every_row_fits_its_topic() -> None:
    for topic, row in _minute():
        assert set(row) == set(shop.app.topics[topic].declared.schema.names)


def test_some_purchases_come_twice_and_are_the_same() -> None:
    purchases = [row for topic, row in _minute() if topic == "purchases"]
    times = Counter(row["purchase_id"] for row in purchases)
    assert 2 in times.values()
    assert len({tuple(row.items()) for row in purchases}) == len(times)


def test_events_come_out_of_order() -> None:
    times = [row["at"] for topic, row in _minute() if topic == "requests"]
    assert times != sorted(times)


def test_a_phone_in_a_tunnel_sends_what_happened_there_later() -> None:
    waited = [row["sent_at"] - row["occurred_at"] for topic, row in _minute() if topic == "taps"]
    assert max(waited) > timedelta(seconds=5)
    assert min(waited) < timedelta(seconds=1)


def test_clocks_of_phones_are_off_by_minutes_and_hours() -> None:
    off = {row["device"]: abs(row["occurred_at"] - NOON) for topic, row in _minute() if topic == "taps"}
    assert off["phone-ann"] < timedelta(minutes=2) < off["phone-bob"] < timedelta(hours=1) < off["phone-cid"]


def test_a_thief_guesses_and_buys_from_abroad() -> None:
    events = _minute()
    guessed = Counter(row["user_id"] for topic, row in events if topic == "logins" and row["country"] == "XX")
    bought = {row["user_id"] for topic, row in events if topic == "purchases" and row["country"] == "XX"}
    assert bought
    assert all(guessed[user] >= 4 for user in bought)


def test_every_definition_says_in_a_sentence_what_one_is_looking_at() -> None:
    for definition in shop.app.definitions.values():
        assert (definition.function.__doc__ or "").strip().endswith("."), definition.name
