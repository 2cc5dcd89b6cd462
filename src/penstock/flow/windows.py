"""Kinds of windows, as plain data. None of them needs Spark to be written down."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.clock import duration_ms
from penstock.errors import BadOption


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Side by side: each event is in one window."""

    size_us: int

    @property
    def span_us(self) -> int:
        return self.size_us


@dataclass(frozen=True, slots=True)
class Hopping:
    """Overlapping: a window of `size` begins every `hop`; an event is in size/hop of them."""

    size_us: int
    hop_us: int

    @property
    def span_us(self) -> int:
        return self.size_us


@dataclass(frozen=True, slots=True)
class Sliding:
    """One per event: what happened in the `size` up to it, itself included. Final only."""

    size_us: int

    @property
    def span_us(self) -> int:
        return self.size_us


@dataclass(frozen=True, slots=True)
class Session:
    """As long as events keep coming at most `gap` apart."""

    gap_us: int

    @property
    def span_us(self) -> int:
        return self.gap_us


Window = Tumbling | Hopping | Sliding | Session


def tumbling(size: str | float) -> Tumbling:
    """Windows of `size`, side by side, aligned to 1970-01-01 00:00 UTC.

    >>> tumbling("1 minute").size_us
    60000000
    """
    return Tumbling(_length_us(size))


def hopping(size: str | float, hop: str | float) -> Hopping:
    """Windows of `size`, one beginning every `hop`.

    >>> hopping("1 minute", "30 seconds").hop_us
    30000000
    """
    size_us, hop_us = _length_us(size), _length_us(hop)
    if hop_us > size_us:
        raise BadOption(
            f"a hop of {hop} is longer than the window of {size}: events in between would be in no window.",
            hint="choose a hop of at most the size",
        )
    return Hopping(size_us, hop_us)


def sliding(size: str | float) -> Sliding:
    """For each event, the events of the `size` up to it.

    >>> sliding("1 hour").size_us
    3600000000
    """
    return Sliding(_length_us(size))


def session(gap: str | float) -> Session:
    """Events at most `gap` apart belong together.

    >>> session("30 minutes").gap_us
    1800000000
    """
    return Session(_length_us(gap))


def _length_us(text: str | float) -> int:
    length = duration_ms(text) * 1_000
    if length <= 0:
        raise BadOption(f"a window of {text!r}.", hint='give it a length, as "1 minute"')
    return length
