"""What a standing query asks for: the tree that its text is read into.

The index and the reference each evaluate this tree; `search_query` makes it of text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["text", "whole", "real"]


@dataclass(frozen=True, slots=True)
class Field:
    """A column that queries look into."""

    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Word:
    fields: tuple[str, ...]  # in any of them
    word: str


@dataclass(frozen=True, slots=True)
class Prefix:
    fields: tuple[str, ...]
    start: str


@dataclass(frozen=True, slots=True)
class Fuzzy:
    fields: tuple[str, ...]
    word: str
    distance: int


@dataclass(frozen=True, slots=True)
class Phrase:
    fields: tuple[str, ...]
    words: tuple[str, ...]  # two or more
    slop: int = 0


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers of the field's kind. A missing value and NaN are in no range."""

    field: str
    low: float | None
    high: float | None
    low_included: bool = True
    high_included: bool = True


@dataclass(frozen=True, slots=True)
class Not:
    part: Query


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Query, ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Query, ...]


Query: TypeAlias = Word | Prefix | Fuzzy | Phrase | Range | Not | And | Or
