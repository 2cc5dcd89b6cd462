"""The language of standing queries: text to a small tree.

    query    = both ("OR" both)*
    both     = clause (["AND"] clause)*              beside each other: all of them
    clause   = ("NOT" | "-") clause                  an event without it, also where nothing else is asked
             | "+" clause                            says what holds anyway
             | field ":" one | one
    one      = "(" query ")" | word | word "*" | word "~1" | word "~2"
             | '"' words '"' ["~" n]                 in this order, at most n other words between them
             | number | (">" | ">=" | "<" | "<=") number | ("[" | "{") low "TO" high ("]" | "}")

NOT binds closer than AND, AND closer than OR; the operators are written in capitals. A word without a field
is looked for in all text fields, a phrase within any one of them. A word that is several (`wi-fi`) is a
phrase. `word*` is a prefix; `word~n` allows n letters to be added, left out, changed, or swapped with their
neighbour. `[` and `]` include the bound, `{` and `}` do not, `*` is no bound. Numbers need a number's field.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from penstock.errors import BadQuery
from penstock.flow.search_tree import And, Field, Fuzzy, Not, Or, Phrase, Prefix, Query, Range, Word
from penstock.flow.search_words import words
from penstock.schema import did_you_mean

LENGTH_MAX = 2_000  # characters
DEPTH_MAX = 32
PARTS_MAX = 200  # words, phrases and ranges of one query
SLOP_MAX = 20
SPREADS_MAX = 120  # the ways to spread a phrase with slop; each of them is looked for


def parse(text: str, fields: Sequence[Field]) -> Query:
    """Raises BadQuery."""
    if len(text) > LENGTH_MAX:
        raise BadQuery(text, LENGTH_MAX + 1, f"it has {len(text):,} characters, and {LENGTH_MAX:,} are most")
    return _Parser(text, fields).whole()


_SPACE = re.compile(r"\s*")
_OPERATOR = re.compile(r"(AND|OR|NOT)(?=[\s()\"]|$)")
_SIGN = re.compile(r"[-+](?=[^\s)])")
_FIELD = re.compile(r"([^\s()\[\]{}:*~^\"]+):")
_BARE = re.compile(r"[^\s()\[\]{}:*~^\"]+")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_STAR = re.compile(r"\*")
_TILDE = re.compile(r"~(\d*)")
_COMPARED = re.compile(r"(>=|<=|>|<)")
_BOUNDS = re.compile(r"([\[{])\s*([^\s\[\]{}]+)\s+TO\s+([^\s\[\]{}]+)\s*([\]}])")
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?")
_MISPLACED = re.compile(r"[-+!<>=].|.*\?[^?]")
_MISPLACED_HINT = "say -word or -title:word to exclude, word* for a prefix, price:>5 for numbers"
_ENDED = re.compile(r"[\s)]|$")


class _Parser:
    """Recursive descent; `_at` is the next character. Where a leaf is read, `_scope` says the fields."""

    def __init__(self, text: str, fields: Sequence[Field]) -> None:
        self._text, self._at = text, 0
        self._fields = {field.name: field for field in fields}
        self._scope: Field | None = None
        self._depth = self._parts = 0

    def whole(self) -> Query:
        if not self._text.strip():
            raise self._bad("it is empty")
        found = self._query()
        if self._at < len(self._text):
            raise self._bad('")" closes nothing')
        return found

    def _query(self) -> Query:
        return self._list(self._both, Or, more=lambda: self._takes("OR"))

    def _both(self) -> Query:
        return self._list(self._clause, And, more=self._goes_on)

    def _list(self, one: Callable[[], Query], whole: type[And | Or], more: Callable[[], bool]) -> Query:
        parts = [one()]
        while more():
            parts.append(one())
        return parts[0] if len(parts) == 1 else whole(tuple(parts))

    def _goes_on(self) -> bool:
        if self._takes("AND"):
            return True
        found = _OPERATOR.match(self._text, self._at)
        ended = self._at == len(self._text) or self._text[self._at] == ")"
        return not ended and not (found and found[1] == "OR")

    def _clause(self) -> Query:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._bad(f"it is nested deeper than {DEPTH_MAX} levels")
        found = self._signed()
        self._depth -= 1
        self._skip()
        return found

    def _signed(self) -> Query:
        if self._takes("NOT"):
            return Not(self._clause())
        if operator := _OPERATOR.match(self._text, self._at):
            raise self._bad(
                f"{operator[1]} has nothing before it", hint=f'for the word, write "{operator[1]}"'
            )
        in_numbers = self._scope is not None and self._scope.kind != "text"
        if not in_numbers and (sign := self._match(_SIGN)):
            return Not(self._clause()) if sign[0] == "-" else self._clause()
        if field := _FIELD.match(self._text, self._at):
            return self._qualified(field)
        return self._one()

    def _qualified(self, found: re.Match[str]) -> Query:
        if self._scope is not None:
            raise self._bad(f'"{found[1]}:" is inside of "{self._scope.name}:"')
        if found[1] not in self._fields:
            close = did_you_mean(found[1], self._fields)
            raise self._bad(
                f'there is no field "{found[1]}"', hint=f"{close} (A text with a colon takes quotes.)"
            )
        self._at = found.end()
        if self._at == len(self._text) or self._text[self._at].isspace():
            raise self._bad(f'"{found[0]}" is followed by nothing')
        self._scope = self._fields[found[1]]
        one = self._one()
        self._scope = None
        return one

    def _one(self) -> Query:
        if self._takes("("):
            return self._group()
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise self._bad(f"it has more than {PARTS_MAX} parts")
        if self._scope is not None and self._scope.kind != "text":
            return self._ended(self._range(self._scope))
        return self._ended(self._in_text())

    def _group(self) -> Query:
        opened = self._at
        inside = self._query()
        if not self._takes(")"):
            raise self._bad('"(" is not closed', at=opened - 1)
        return inside

    def _in_text(self) -> Query:
        names = tuple(name for name, field in self._fields.items() if field.kind == "text")
        fields = (self._scope.name,) if self._scope else names
        if not fields:
            raise self._bad("no field is text", hint=did_you_mean("", self._fields))
        start = self._at
        if quoted := self._match(_QUOTED):
            return self._phrase(fields, re.sub(r"\\(.)", r"\1", quoted[1], flags=re.DOTALL), start)
        bare = self._match(_BARE)
        if bare is None:
            raise self._unexpected()
        return self._word(fields, bare[0], start)

    def _phrase(self, fields: tuple[str, ...], text: str, start: int) -> Query:
        inside = self._words(text, start)
        slop = self._number_after_tilde(range(SLOP_MAX + 1))
        if len(inside) == 1:
            return Word(fields, inside[0])
        if math.comb(slop + len(inside) - 1, slop) > SPREADS_MAX:
            raise self._bad(
                f"~{slop} is too much for {len(inside)} words", at=start, hint="take less, or AND"
            )
        return Phrase(fields, inside, slop)

    def _word(self, fields: tuple[str, ...], bare: str, start: int) -> Query:
        # Rather refused than read as a word, since elsewhere they mean something.
        if _MISPLACED.match(bare):
            raise self._bad(f"{bare!r} is not known here", at=start, hint=_MISPLACED_HINT)
        inside = self._words(bare, start)
        if self._text[self._at : self._at + 1] in {"*", "~"} and len(inside) > 1:
            raise self._bad(f"{bare!r} is {len(inside)} words: only one takes * or ~", at=start)
        if self._match(_STAR):
            return Prefix(fields, inside[0])
        if distance := self._number_after_tilde(range(1, 3)):
            return Fuzzy(fields, inside[0], distance)
        return Word(fields, inside[0]) if len(inside) == 1 else Phrase(fields, inside)

    def _words(self, text: str, start: int) -> tuple[str, ...]:
        if not (found := words(text)):
            raise self._bad(f"{text!r} has no letter or digit", at=start, hint="say AND, OR, NOT in capitals")
        return found

    def _number_after_tilde(self, allowed: range) -> int:
        """0 where there is no tilde."""
        start = self._at
        if (tilde := self._match(_TILDE)) is None:
            return 0
        if not tilde[1].isascii() or not tilde[1] or len(tilde[1]) > 4 or int(tilde[1]) not in allowed:
            raise self._bad(f"after ~ comes a number from {allowed[0]} to {allowed[-1]}", at=start)
        return int(tilde[1])

    def _range(self, field: Field) -> Range:
        if bounds := self._match(_BOUNDS):
            low, high = self._bound(bounds, 2, field), self._bound(bounds, 3, field)
            return Range(
                field.name, low, high, low is None or bounds[1] == "[", high is None or bounds[4] == "]"
            )
        compared = self._match(_COMPARED)
        if (found := self._match(_NUMBER)) is None:
            raise self._bad(
                f'"{field.name}" is a number', hint=f"say {field.name}:[1 TO 5], or {field.name}:>5"
            )
        number = self._number(found[0], field, found.start())
        if compared is None:
            return Range(field.name, number, number)
        included = compared[0].endswith("=")
        if compared[0].startswith(">"):
            return Range(field.name, number, None, low_included=included)
        return Range(field.name, None, number, high_included=included)

    def _bound(self, bounds: re.Match[str], group: int, field: Field) -> float | None:
        return None if bounds[group] == "*" else self._number(bounds[group], field, bounds.start(group))

    def _number(self, text: str, field: Field, start: int) -> float:
        if _NUMBER.fullmatch(text) is None or not math.isfinite(float(text)):
            raise self._bad(f"{text!r} is no number", at=start)
        if field.kind == "real":
            return float(text) + 0.0  # no -0.0, which the index would tell from 0.0
        if not re.fullmatch(r"[-+]?\d{1,19}", text) or not -(2**63) <= int(text) < 2**63:
            raise self._bad(f'"{field.name}" has whole numbers of 64 bits, and {text} is none', at=start)
        return int(text)

    def _ended(self, found: Query) -> Query:
        if _ENDED.match(self._text, self._at) is None:
            raise self._unexpected()
        return found

    def _unexpected(self) -> BadQuery:
        """What is wrong with the character that comes next."""
        reasons = {
            "*": "* stands at the end of a word only",
            '"': "a quotation mark is not closed, or has no space before it",
            "^": "^ is not known: matches have no score",
            "[": "a range needs the field of a number before it",
            "{": "a range needs the field of a number before it",
            "": "something is missing at the end",
        }
        next_one = self._text[self._at : self._at + 1]
        return self._bad(reasons.get(next_one, f"{next_one!r} is not expected here"))

    def _takes(self, sign: str) -> bool:
        self._skip()
        if sign.isalpha():
            found = _OPERATOR.match(self._text, self._at)
            taken = found is not None and found[1] == sign
        else:
            taken = self._text.startswith(sign, self._at)
        self._at += len(sign) if taken else 0
        return taken

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return found

    def _skip(self) -> None:
        self._match(_SPACE)

    def _bad(self, reason: str, *, at: int | None = None, hint: str = "") -> BadQuery:
        return BadQuery(self._text, (self._at if at is None else at) + 1, reason, hint=hint)
