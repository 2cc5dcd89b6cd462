"""What there is to say about the partitions of a topic."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from penstock.cli import words

if TYPE_CHECKING:
    from penstock.log.facts import PartitionFacts
    from penstock.log.log import Log


def facts_of(log: Log, topic: str) -> list[PartitionFacts]:
    from penstock.log import facts

    return facts.facts_of(log, topic)


def as_object(facts: PartitionFacts) -> dict[str, object]:
    plain = asdict(facts)
    first_us, last_us = plain.pop("first_us"), plain.pop("last_us")
    return {**plain, "first_appended": words.iso(first_us), "last_appended": words.iso(last_us)}
