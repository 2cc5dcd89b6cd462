"""Which rows a client wants, as a text: a small language that computes and compares, and can do nothing else.

    amount > 100 and country in ('FR', 'DE')
    not (page == '/cart' or user_id is null)
    at >= '2026-01-31T12:00:00Z' and _partition == 0
    price * quantity >= 1000

    wanted  := both ("or" both)*
    both    := one ("and" one)*
    one     := "not" one | test
    test    := sum [("=" | "==" | "!=" | "<" | "<=" | ">" | ">=") sum
                    | "is" ["not"] "null" | ["not"] "in" "(" value ("," value)* ")"]
    sum     := product (("+" | "-") product)*
    product := atom (("*" | "/") atom)*
    atom    := value | column | "(" wanted ")"
    value   := number | 'text' | "true" | "false"

Words may be in any case; a quote in a text is doubled. A column whose name is no word stands in backquotes.
Text beside a column of times, dates, decimals or bytes is read as one. Nulls are as in SQL. It becomes an
expression of `ps.col(...)`, typed against the columns before anything is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.errors import BadInput, BadQuery, PenstockError
from penstock.flow.expressions import Call, Expression, Field, Literal, col
from penstock.follow.where import Bools, Where, where_of
from penstock.log.json_rows import from_json
from penstock.schema import RecordSchema, did_you_mean

TEXT_MAX = 2_000
_DEPTH_MAX = 32
_JOINED_MAX = 200  # each lies within the next, and so do the calls that type and compute them
_WORDS = frozenset({"and", "or", "not", "in", "is", "null", "true", "false"})
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<text>'(?:[^']|'')*')|(?P<quoted>`[^`]+`)"
    r"|(?P<word>[A-Za-z_][A-Za-z_0-9]*)|(?P<sign>==|!=|<=|>=|[=<>+\-*/(),]))"
)
_SAME = {"=": "=="}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int  # characters from 1


def where(text: str | None, columns: pa.Schema) -> Where | None:
    """What decides about whole Arrow batches of these columns; None where nothing is asked.

    Raises BadQuery for a text that cannot be read, BadDefinition for types that do not fit.
    """
    if text is None or not text.strip():
        return None
    expression = parse(text, columns)
    found = where_of(expression, columns)
    return Where(found.said, _guarded(found.holds), found.reads)


def parse(text: str, columns: pa.Schema) -> Expression:
    """The expression that a text says, of which is known that it can be typed."""
    try:
        found = _Parser(text, columns).parse()
        where_of(found, columns)
    except (
        ArithmeticError,
        ValueError,
        pa.ArrowException,
    ) as error:  # a time before the first year, and such
        raise BadQuery(text, 1, f"it cannot be computed ({error})", hint=_HINT) from error
    return found


def _guarded(holds: Callable[[pa.RecordBatch], Bools]) -> Callable[[pa.RecordBatch], Bools]:
    """What Arrow cannot compute is the filter's fault."""

    def guarded(batch: pa.RecordBatch) -> Bools:
        try:
            return holds(batch)
        except (pa.ArrowException, ArithmeticError) as error:
            raise BadInput(f"the filter cannot be computed: {error}.", hint="simplify it") from error

    return guarded


class _Parser:
    def __init__(self, text: str, columns: pa.Schema) -> None:
        self._text, self._columns, self._depth, self._joined = text, columns, 0, 0
        if len(text) > TEXT_MAX:
            raise BadQuery(text, TEXT_MAX, f"it has more than {TEXT_MAX:,} characters")
        self._tokens = self._split()
        self._next = 0

    def parse(self) -> Expression:
        found = self._wanted()
        if self._peek().kind != "end":
            raise self._wrong(f"{self._peek().text!r} was not expected here")
        return found

    # ---- tokens ---------------------------------------------------------------------------------

    def _split(self) -> list[_Token]:
        found, at = [], 0
        rest = self._text.rstrip()
        while at < len(rest):
            match = _TOKEN.match(rest, at)
            if match is None or match.lastgroup is None:
                start = len(rest[at:]) - len(rest[at:].lstrip()) + at
                raise BadQuery(self._text, start + 1, f"{rest[start]!r} means nothing", hint=_HINT)
            kind, token = match.lastgroup, match[match.lastgroup]
            if kind == "word" and token.lower() in _WORDS:
                kind, token = "keyword", token.lower()
            found.append(_Token(kind, token, match.start(match.lastgroup) + 1))
            at = match.end()
        return [*found, _Token("end", "the end", len(self._text) + 1)]

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *texts: str) -> _Token | None:
        """The next token, if it is one of these signs or keywords."""
        token = self._peek()
        if token.kind in ("sign", "keyword") and token.text in texts:
            self._next += 1
            return token
        return None

    def _joins(self, *texts: str) -> _Token | None:
        """As `_take`, for what joins two sides. So many of these, and no more."""
        token = self._take(*texts)
        if token is not None:
            self._joined += 1
            if self._joined > _JOINED_MAX:
                raise BadQuery(
                    self._text, token.at, f"more than {_JOINED_MAX} of and, or, + - * /", hint="column in (…)"
                )
        return token

    def _need(self, text: str) -> None:
        if self._take(text) is None:
            raise self._wrong(f"{text!r} was expected, not {self._peek().text!r}")

    def _wrong(self, reason: str) -> BadQuery:
        return BadQuery(self._text, self._peek().at, reason, hint=_HINT)

    # ---- the grammar ----------------------------------------------------------------------------

    def _wanted(self) -> Expression:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise self._wrong(f"it is nested more than {_DEPTH_MAX} deep")
        found = self._both()
        while self._joins("or"):
            found = found | self._both()
        self._depth -= 1
        return found

    def _both(self) -> Expression:
        found = self._one()
        while self._joins("and"):
            found = found & self._one()
        return found

    def _one(self) -> Expression:
        turned = False
        while self._take("not"):
            turned = not turned
        found = self._test()
        return ~found if turned else found

    def _test(self) -> Expression:
        left = self._sum()
        if sign := self._take("=", "==", "!=", "<", "<=", ">", ">="):
            right = self._sum()
            left, right = self._fitted(left, right), self._fitted(right, left)
            return Call(_SAME.get(sign.text, sign.text), (left, right))
        if self._take("is"):
            turned = self._take("not") is not None
            self._need("null")
            return ~left.is_null() if turned else left.is_null()
        turned = self._take("not") is not None
        if self._take("in"):
            found = self._among(left)
            return ~found if turned else found
        if turned:
            raise self._wrong("'in' was expected")
        return left

    def _among(self, left: Expression) -> Expression:
        self._need("(")
        values = [self._value()]
        while self._take(","):
            values.append(self._value())
        self._need(")")
        return Call("is_in", (left, *(self._fitted(value, left) for value in values)))

    def _sum(self) -> Expression:
        found = self._product()
        while sign := self._joins("+", "-"):
            found = Call(sign.text, (found, self._product()))
        return found

    def _product(self) -> Expression:
        found = self._atom()
        while sign := self._joins("*", "/"):
            found = Call(sign.text, (found, self._atom()))
        return found

    def _atom(self) -> Expression:
        if self._take("("):
            found = self._wanted()
            self._need(")")
            return found
        token = self._peek()
        if token.kind in ("word", "quoted"):
            return self._column(token)
        return self._value()

    def _column(self, token: _Token) -> Field:
        name = token.text.strip("`")
        if name not in self._columns.names:
            hint = did_you_mean(name, self._columns.names) or _HINT
            raise BadQuery(self._text, token.at, f'there is no column "{name}"', hint=hint)
        self._next += 1
        return col(name)

    def _value(self) -> Literal:
        turned = self._take("-") is not None
        token = self._peek()
        if token.kind == "number":
            self._next += 1
            return Literal(_number(token.text, turned=turned))
        if not turned and token.kind == "text":
            self._next += 1
            return Literal(token.text[1:-1].replace("''", "'"))
        if not turned and (said := self._take("true", "false")):
            return Literal(said.text == "true")
        raise self._wrong(f"a value was expected, not {token.text!r}")

    def _fitted(self, value: Expression, beside: Expression) -> Expression:
        """Text beside a column of times and the like, as one of those."""
        if not isinstance(value, Literal) or not isinstance(beside, Field):
            return value
        field = self._columns.field(beside.column)
        is_text = isinstance(value.value, str) and not pa.types.is_string(field.type)
        is_number = isinstance(value.value, float) and pa.types.is_decimal(field.type)
        if not (is_text or is_number):
            return value
        name = field.name.lstrip("_") or field.name  # a schema takes no name that every record has
        schema = RecordSchema.of(pa.schema([field.with_nullable(True).with_name(name)]))
        try:
            found: Any = from_json(schema, {name: value.value})[name]
        except PenstockError as error:
            raise BadQuery(self._text, 1, error.message.rstrip("."), hint=error.hint) from error
        return Literal(_zoned(found, field.type))


def _number(text: str, *, turned: bool) -> int | float:
    value = int(text) if text.isdecimal() else float(text)
    return -value if turned else value


def _zoned(value: Any, kind: pa.DataType) -> Any:
    """A time without a zone is UTC, as everywhere."""
    import datetime as dt

    if isinstance(value, dt.datetime) and pa.types.is_timestamp(kind) and kind.tz and value.tzinfo is None:
        return value.replace(tzinfo=dt.UTC)
    return value


_HINT = "write it like: amount > 100 and country in ('FR', 'DE')"
