"""One meaning of a record schema, however it was declared: Spark DDL, a dataclass or Arrow.

declared as    "id BIGINT NOT NULL, at TIMESTAMP"  |  a dataclass  |  a pyarrow.Schema
held as        an Arrow schema of the types in `_PLAIN`, decimals, lists, maps and structs
stored as      its canonical DDL, for which `RecordSchema.of(schema.ddl) == schema`

List elements and map values are always nullable and map keys never, since DDL cannot say otherwise.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import difflib
import enum
import functools
import re
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.errors import BadSchema, IncompatibleSchema

# pyarrow's stubs have a class for every kind; we tell kinds apart with `pa.types`.
ArrowType: TypeAlias = Any
ArrowField: TypeAlias = Any
ArrowArray: TypeAlias = Any

# The columns that the log itself adds to a record.
RESERVED = ("_partition", "_offset", "_timestamp", "_deleted", "_topic", "_watermark", "_heartbeat")
DEFAULT_DDL = "key BINARY, value BINARY, headers MAP<STRING, BINARY>"
# Arrow's IPC reader gives up at 64 levels; nobody reads 16.
NESTING_MAX = 16

_PLAIN: dict[str, ArrowType] = {
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}
_NAME_OF = {dtype: name for name, dtype in _PLAIN.items()}
_ALIASES = {"BYTE": "TINYINT", "SHORT": "SMALLINT", "INTEGER": "INT", "LONG": "BIGINT", "REAL": "FLOAT"}
_ALIASES |= {"DEC": "DECIMAL", "NUMERIC": "DECIMAL", "CHAR": "VARCHAR", "TIMESTAMP_LTZ": "TIMESTAMP"}
_KNOWN_TYPES = (*_PLAIN, *_ALIASES, "DECIMAL", "VARCHAR", "ARRAY", "MAP", "STRUCT")
# What other systems call our types; too far from ours for a spelling match.
_FOREIGN = {"TEXT": "STRING", "DATETIME": "TIMESTAMP", "BYTES": "BINARY", "BLOB": "BINARY", "JSON": "STRING"}

_OF_PYTHON: dict[object, ArrowType] = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    bool: pa.bool_(),
    datetime.datetime: _PLAIN["TIMESTAMP"],
    datetime.date: pa.date32(),
    decimal.Decimal: pa.decimal128(38, 18),
}
_OF_ARROW: dict[ArrowType, ArrowType] = {
    **{dtype: dtype for dtype in _PLAIN.values()},
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    **dict.fromkeys((pa.large_string(), pa.string_view()), pa.string()),
    **dict.fromkeys((pa.large_binary(), pa.binary_view()), pa.binary()),
    pa.date64(): pa.date32(),
}
_WIDENS_TO: dict[ArrowType, tuple[ArrowType, ...]] = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64(), pa.float64()),
    pa.int16(): (pa.int32(), pa.int64(), pa.float64()),
    pa.int32(): (pa.int64(), pa.float64()),
    pa.float32(): (pa.float64(),),
}


@dataclass(frozen=True, slots=True)
class RecordSchema:
    """The user's columns of a topic, normalised. Two are equal when they store the same thing."""

    arrow: pa.Schema
    record_type: type | None = dataclasses.field(default=None, compare=False)

    @classmethod
    def of(cls, declared: str | type | pa.Schema | RecordSchema | None) -> RecordSchema:
        """Read a declaration; `None` is the default of keyed bytes."""
        given: object = DEFAULT_DDL if declared is None else declared
        if isinstance(given, RecordSchema):
            return given
        if isinstance(given, str):
            return cls(_columns(_Ddl(given).all_columns()))
        if isinstance(given, pa.Schema):
            return cls(_columns([_arrow_field(column, column.name, 0) for column in given]))
        if isinstance(given, type) and dataclasses.is_dataclass(given):
            return cls(_columns(_dataclass_fields(given, "", 0)), given)
        hint = "declare it as DDL text, a dataclass (the class, not an instance) or a pyarrow.Schema"
        raise BadSchema(f"a schema cannot be read from {given!r}.", hint=hint)

    @property
    def ddl(self) -> str:
        return ", ".join(_ddl_of_field(column, " ") for column in self.arrow)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.arrow.names)

    def field(self, name: str) -> pa.Field[Any]:
        if name not in self.arrow.names:
            raise BadSchema(f'there is no column "{name}".', hint=did_you_mean(name, self.names))
        return self.arrow.field(name)

    def evolve_to(self, newer: RecordSchema) -> RecordSchema:
        """`newer`, with the columns of this schema first and in their order.

        Raises IncompatibleSchema unless every record stored under this schema can be read under it.
        """
        return RecordSchema(pa.schema(_evolved(self.arrow, newer.arrow, "")), newer.record_type)

    def adopt(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch stored under an older schema that evolved to this one, as this one.

        System columns stay where they are, before or after the user's columns.
        """
        stored = [column for column in batch.schema if not self._is_system(column.name)]
        if pa.schema(stored).equals(self.arrow):
            return batch
        unknown = [column.name for column in stored if column.name not in self.arrow.names]
        if unknown:
            raise IncompatibleSchema(unknown[0], "it is stored, but this schema does not have it")
        first = batch.schema.names.index(stored[0].name) if stored else batch.num_columns
        arrays = [self._adopted(batch, column) for column in self.arrow]
        fields = list(self.arrow)
        for at, column in enumerate(batch.schema):
            if self._is_system(column.name):
                place = len(fields) if at > first else at
                fields.insert(place, column)
                arrays.insert(place, batch.column(at))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _is_system(self, name: str) -> bool:
        return name.startswith(RESERVED) and name not in self.arrow.names

    @staticmethod
    def _adopted(batch: pa.RecordBatch, column: ArrowField) -> ArrowArray:
        if column.name not in batch.schema.names:
            return pa.nulls(batch.num_rows, column.type)
        stored: ArrowArray = batch.column(column.name)
        return stored if stored.type == column.type else stored.cast(column.type)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint that names the closest of `known`, or all of them if none is close."""
    choices = list(known)
    lowered = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(word.lower(), lowered, n=1)
    return f'did you mean "{lowered[close[0]]}"?' if close else f"there are: {', '.join(choices)}"


def ddl_of(dtype: ArrowType) -> str:
    """The canonical DDL of one supported type."""
    if dtype in _NAME_OF:
        return _NAME_OF[dtype]
    if pa.types.is_decimal(dtype):
        return f"DECIMAL({dtype.precision}, {dtype.scale})"
    if pa.types.is_list(dtype):
        return f"ARRAY<{ddl_of(dtype.value_type)}>"
    if pa.types.is_map(dtype):
        return f"MAP<{ddl_of(dtype.key_type)}, {ddl_of(dtype.item_type)}>"
    assert pa.types.is_struct(dtype), dtype
    return f"STRUCT<{', '.join(_ddl_of_field(inner, ': ') for inner in dtype)}>"


def _ddl_of_field(column: ArrowField, separator: str) -> str:
    quoted = "`" + column.name.replace("`", "``") + "`"
    name = column.name if re.fullmatch(r"[A-Za-z_]\w*", column.name, re.ASCII) else quoted
    return f"{name}{separator}{ddl_of(column.type)}{'' if column.nullable else ' NOT NULL'}"


def _columns(fields: list[ArrowField]) -> pa.Schema:
    for name in (column.name for column in fields):
        if name.lower() in RESERVED:
            problem = f'the name "{name}" is taken: every record has these already: {", ".join(RESERVED)}.'
            raise BadSchema(problem, hint="choose another name")
    return pa.schema(_distinct(fields, "a schema"))


def _struct(fields: list[ArrowField], path: str) -> ArrowType:
    return pa.struct(_distinct(fields, f'struct "{path}"'))


def _map(key: ArrowType, item: ArrowType, path: str) -> ArrowType:
    if pa.types.is_nested(key):
        raise BadSchema(f'"{path}": the key of a map cannot be {ddl_of(key)}.', hint="use a plain type")
    return pa.map_(key, item)


def _distinct(fields: list[ArrowField], owner: str) -> list[ArrowField]:
    if not fields:
        raise BadSchema(f"{owner} needs at least one column.", hint='for example "id BIGINT, at TIMESTAMP"')
    seen = {""}
    for name in (column.name for column in fields):
        if name.lower() in seen:
            named = f'two columns named "{name}" (case does not count)' if name else "a column without a name"
            raise BadSchema(f"{owner} has {named}.", hint="give each column its own name")
        seen.add(name.lower())
    return fields


def _deeper(depth: int, path: str) -> int:
    if depth >= NESTING_MAX:
        hint = "flatten it; a dataclass that contains itself cannot be a record"
        raise BadSchema(f'"{path}" is nested more than {NESTING_MAX} levels deep.', hint=hint)
    return depth + 1


_TOKEN = re.compile(
    r"""\s*(?: (?P<quoted>`(?:[^`]|``)*`) | (?P<word>[^\W\d]\w*) | (?P<number>[0-9]{1,9})
    | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*") | (?P<mark>[,:<>()]) | (?P<end>$) )""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else f'"{self.text}"'


class _Ddl:
    """A recursive descent parser of Spark's column lists. `next` is the token not yet taken."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.next = self._scan()

    def all_columns(self) -> list[ArrowField]:
        columns = self._fields("", 0) if self.next.kind != "end" else []
        if self.next.kind != "end":
            raise self._bad(f'expected "," or the end, found {self.next}')
        return columns

    def one_type(self, path: str, depth: int) -> ArrowType:
        dtype = self._type(path, depth)
        if self.next.kind != "end":
            raise self._bad(f"expected the end of the type, found {self.next}")
        return dtype

    def _fields(self, path: str, depth: int) -> list[ArrowField]:
        fields = [self._field(path, depth)]
        while self._accept(","):
            fields.append(self._field(path, depth))
        return fields

    def _field(self, path: str, depth: int) -> ArrowField:
        if self.next.kind not in ("word", "quoted"):
            raise self._bad(f"expected a column name, found {self.next}")
        token = self._take()
        name = token.text if token.kind == "word" else token.text[1:-1].replace("``", "`")
        self._accept(":")
        if self.next.kind != "word":
            raise self._bad(f'expected a type after "{name}", found {self.next}')
        dtype = self._type(f"{path}{name}", depth)
        nullable = not self._accept("NOT")
        if not nullable:
            self._expect("NULL")
        if self._accept("COMMENT") and self._take().kind != "text":
            raise self._bad("expected a quoted text after COMMENT")
        return pa.field(name, dtype, nullable=nullable)

    def _type(self, path: str, depth: int) -> ArrowType:
        if self.next.kind != "word" or self.next.text.upper() not in _KNOWN_TYPES:
            raise self._unknown_type()
        depth = _deeper(depth, path)
        word = self._take().text.upper()
        name = _ALIASES.get(word, word)
        if name in _PLAIN:
            return _PLAIN[name]
        if name == "DECIMAL":
            return self._decimal()
        if name == "VARCHAR":
            self._arguments()
            return pa.string()
        return self._nested(name, path, depth)

    def _nested(self, name: str, path: str, depth: int) -> ArrowType:
        self._expect("<")
        if name == "STRUCT":
            dtype = _struct([] if self.next.text == ">" else self._fields(f"{path}.", depth), path)
        elif name == "ARRAY":
            dtype = pa.list_(self._type(path, depth))
        else:
            key = self._type(path, depth)
            self._expect(",")
            dtype = _map(key, self._type(path, depth), path)
        self._expect(">")
        return dtype

    def _decimal(self) -> ArrowType:
        token = self.next
        precision, scale, *more = (*(self._arguments() if token.text == "(" else (10,)), 0, 0)[:3]
        if not (1 <= precision <= 38 and 0 <= scale <= precision) or any(more):
            raise self._bad("a DECIMAL(precision, scale) has 1 to 38 digits, scale of them fraction", token)
        return pa.decimal128(precision, scale)

    def _arguments(self) -> list[int]:
        self._expect("(")
        numbers: list[int] = []
        while not numbers or self._accept(","):
            if self.next.kind != "number":
                raise self._bad(f"expected a number, found {self.next}")
            numbers.append(int(self._take().text))
        self._expect(")")
        return numbers

    def _accept(self, text: str) -> bool:
        taken = self.next.kind in ("word", "mark") and self.next.text.upper() == text
        if taken:
            self._take()
        return taken

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            raise self._bad(f'expected "{text}", found {self.next}')

    def _take(self) -> _Token:
        token, self.next = self.next, self._scan()
        return token

    def _scan(self) -> _Token:
        match = _TOKEN.match(self.text, self.position)
        if match is None or match.lastgroup is None:
            at = len(self.text) - len(self.text[self.position :].lstrip())
            hint = "write names with other characters than letters, digits and _ in `back quotes`"
            raise self._bad("cannot read this", _Token("", "", at), hint)
        self.position = match.end()
        return _Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup))

    def _unknown_type(self) -> BadSchema:
        word = self.next.text.upper()
        hint = f'did you mean "{_FOREIGN[word]}"?' if word in _FOREIGN else did_you_mean(word, _KNOWN_TYPES)
        return self._bad(f"there is no type {self.next}", hint=hint)

    def _bad(self, problem: str, token: _Token | None = None, hint: str = "") -> BadSchema:
        at = (token or self.next).at
        start = self.text.rfind("\n", 0, at) + 1
        line = self.text[start:].partition("\n")[0]
        example = 'a schema reads like "id BIGINT NOT NULL, tags ARRAY<STRING>, at TIMESTAMP"'
        return BadSchema(f"{problem}:\n  {line}\n  {' ' * (at - start)}^", hint=hint or example)


@functools.lru_cache(maxsize=256)
def hints_of(record_type: type) -> dict[str, object]:
    """The annotations of a dataclass, evaluated."""
    try:
        return typing.get_type_hints(record_type, include_extras=True)
    except (NameError, TypeError, SyntaxError) as error:
        problem = f"the annotations of {record_type.__qualname__} cannot be read: {error}."
        raise BadSchema(problem, hint="define the classes it names at the top level of a module") from error


def _dataclass_fields(declared: type, path: str, depth: int) -> list[ArrowField]:
    hints = hints_of(declared)
    members = dataclasses.fields(declared)
    return [_hinted_field(each.name, hints[each.name], f"{path}{each.name}", depth) for each in members]


def _hinted_field(name: str, hint: object, path: str, depth: int) -> ArrowField:
    base, nullable, ddl = unwrap_hint(hint, path)
    if not ddl:
        return pa.field(name, _hinted_type(base, path, depth), nullable=nullable)
    try:
        return pa.field(name, _Ddl(ddl).one_type(path, depth), nullable=nullable)
    except BadSchema as error:
        raise BadSchema(f'field "{path}": {error.message}', hint=error.hint) from None


def unwrap_hint(hint: object, path: str) -> tuple[object, bool, str]:
    """The annotation without `| None` and `Annotated`: what is left, whether nullable, the DDL."""
    nullable, ddl = False, ""
    while True:
        if typing.get_origin(hint) is typing.Annotated:
            hint, *extras = typing.get_args(hint)
            ddl = ddl or next((extra for extra in extras if isinstance(extra, str)), "")
        elif typing.get_origin(hint) in (typing.Union, types.UnionType):
            choices = [choice for choice in typing.get_args(hint) if choice is not types.NoneType]
            if len(choices) != 1:
                raise _bad_hint(path, hint)
            hint, nullable = choices[0], True
        else:
            return hint, nullable, ddl


def _hinted_type(hint: object, path: str, depth: int) -> ArrowType:
    depth = _deeper(depth, path)
    if hint in _OF_PYTHON:
        return _OF_PYTHON[hint]
    if typing.get_origin(hint) in (list, dict):
        inner = [_hinted_field("", part, path, depth).type for part in typing.get_args(hint)]
        return _map(inner[0], inner[1], path) if len(inner) == 2 else pa.list_(inner[0])
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _struct(_dataclass_fields(hint, f"{path}.", depth), path)
    raise _bad_hint(path, hint)


def _bad_hint(path: str, hint: object) -> BadSchema:
    advice = (
        "use int, float, str, bytes, bool, datetime, date, Decimal, list[X], dict[K, V], "
        'a dataclass, any of them "| None", or Annotated[int, "INT"] to pick a DDL type'
    )
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        advice = "use str or int, and store the .value"
    shown = hint.__qualname__ if isinstance(hint, type) else str(hint)
    return BadSchema(f'field "{path}": {shown} is no column type.', hint=advice)


def _arrow_field(column: ArrowField, path: str, depth: int) -> ArrowField:
    return pa.field(column.name, _arrow_type(column.type, path, depth), nullable=column.nullable)


def _arrow_type(dtype: ArrowType, path: str, depth: int) -> ArrowType:
    inner = functools.partial(_arrow_type, path=path, depth=_deeper(depth, path))
    if pa.types.is_dictionary(dtype):
        return inner(dtype.value_type)
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype) or pa.types.is_fixed_size_list(dtype):
        return pa.list_(inner(dtype.value_type))
    if pa.types.is_map(dtype):
        return _map(inner(dtype.key_type), inner(dtype.item_type), path)
    if pa.types.is_struct(dtype):
        return _struct([_arrow_field(column, f"{path}.{column.name}", depth + 1) for column in dtype], path)
    plain = _arrow_plain(dtype)
    if plain is None:
        known = f"{', '.join(_PLAIN)}, DECIMAL(38, 18), ARRAY, MAP, STRUCT"
        raise BadSchema(f'column "{path}": Arrow type {dtype} cannot be stored.', hint=f"cast it to {known}")
    return plain


def _arrow_plain(dtype: ArrowType) -> ArrowType | None:
    if pa.types.is_timestamp(dtype):
        return pa.timestamp("us", tz="UTC" if dtype.tz else None)
    if pa.types.is_fixed_size_binary(dtype):
        return pa.binary()
    if pa.types.is_decimal(dtype):
        fits = 0 <= dtype.scale <= dtype.precision <= 38
        return pa.decimal128(dtype.precision, dtype.scale) if fits else None
    return _OF_ARROW.get(dtype)


def _evolved(older: Iterable[ArrowField], newer: Iterable[ArrowField], path: str) -> list[ArrowField]:
    coming = {column.name: column for column in newer}
    kept = []
    for column in older:
        inner, wanted = f"{path}{column.name}", coming.pop(column.name, None)
        if wanted is None:
            reason = "it is missing from the new schema; removing or renaming it would lose what is stored"
            raise IncompatibleSchema(inner, reason)
        if column.nullable and not wanted.nullable:
            raise IncompatibleSchema(inner, "it may hold nulls and cannot become NOT NULL")
        kept.append(wanted.with_type(_evolved_type(column.type, wanted.type, inner)))
    for column in coming.values():
        if not column.nullable:
            raise IncompatibleSchema(f"{path}{column.name}", "a new column cannot be NOT NULL")
    return [*kept, *coming.values()]


def _evolved_type(older: ArrowType, newer: ArrowType, path: str) -> ArrowType:
    if pa.types.is_struct(older) and pa.types.is_struct(newer):
        return pa.struct(_evolved(older, newer, f"{path}."))
    if pa.types.is_list(older) and pa.types.is_list(newer):
        return pa.list_(_evolved_type(older.value_type, newer.value_type, f"{path}.element"))
    if pa.types.is_map(older) and pa.types.is_map(newer):
        key = _evolved_type(older.key_type, newer.key_type, f"{path}.key")
        return pa.map_(key, _evolved_type(older.item_type, newer.item_type, f"{path}.value"))
    if older == newer or newer in _WIDENS_TO.get(older, ()) or _decimal_widens(older, newer):
        return newer
    raise IncompatibleSchema(path, f"{ddl_of(older)} cannot become {ddl_of(newer)} without loss")


def _decimal_widens(older: ArrowType, newer: ArrowType) -> bool:
    if not (pa.types.is_decimal(older) and pa.types.is_decimal(newer)):
        return False
    whole_digits = newer.precision - newer.scale
    return bool(newer.scale >= older.scale and whole_digits >= older.precision - older.scale)
