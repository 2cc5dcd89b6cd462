"""PostgreSQL's types as the log's, and the texts in which it prints values as columns of them.

Every type that is not named here is a STRING, exactly as PostgreSQL prints it: uuid, json, enums, ranges,
intervals, money, addresses, bits, composite types and so on; also numeric without a precision, which may be
NaN, and arrays of more than one dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadRecord
from penstock.schema import ArrowArray, ArrowType, ddl_of

_DECIMAL_DIGITS_MAX = 38
_PLAIN: dict[str, ArrowType] = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "oid": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
}
# Their text may be taken as it is, also when it is an element of an array.
_SIMPLE_TEXTS = frozenset(
    ["text", "varchar", "bpchar", "name", "uuid", "json", "jsonb", "inet", "cidr", "citext"]
)
_is = pa.types


@dataclass(frozen=True, slots=True)
class PostgresType:
    """A row of pg_type."""

    name: str  # empty for a type that somebody made
    kind: str  # b: base, d: domain, e: enum, c: composite, r: range, m: multirange
    base: int  # of a domain
    modifier: int
    dimensions: int
    element: int  # of an array
    is_array: bool


TYPES_QUERY = """
SELECT t.oid::bigint, CASE WHEN t.oid < 16384 OR t.typname = 'citext' THEN t.typname::text ELSE '' END,
       t.typtype::text, t.typbasetype::bigint, t.typtypmod, t.typndims, t.typelem::bigint,
       t.typcategory = 'A' AND t.typlen = -1 AND t.typdelim = ','
           AND t.typname NOT IN ('int2vector', 'oidvector')
FROM pg_type t
"""


def types_of(found: Iterable[tuple[Any, ...]]) -> dict[int, PostgresType]:
    return {oid: PostgresType(*facts) for oid, *facts in found}


def log_type(types: Mapping[int, PostgresType], oid: int, modifier: int, dimensions: int = 0) -> ArrowType:
    """The type of a column of the log. One that is unknown (dropped since) is a STRING."""
    found = types.get(oid)
    if found is None:
        return pa.string()
    if found.kind == "d":
        own = found.modifier if found.modifier != -1 else modifier
        return log_type(types, found.base, own, found.dimensions or dimensions)
    if found.is_array:
        return _array_type(types, found, modifier, dimensions)
    if found.name == "numeric":
        return _decimal_type(modifier)
    return _PLAIN.get(found.name, pa.string())


def _array_type(
    types: Mapping[int, PostgresType], array: PostgresType, modifier: int, dimensions: int
) -> ArrowType:
    element = types.get(array.element)
    if dimensions > 1 or element is None or element.kind not in "be" or element.is_array:
        return pa.string()
    inner = log_type(types, array.element, modifier)
    is_simple = element.kind == "e" or element.name in _SIMPLE_TEXTS or not _is.is_string(inner)
    return pa.list_(inner) if is_simple else pa.string()


def _decimal_type(modifier: int) -> ArrowType:
    if modifier < 4:
        return pa.string()
    precision, scale = (modifier - 4) >> 16 & 0xFFFF, (modifier - 4) & 0x7FF
    if scale >= 1024:  # 11 bits with a sign: numeric(3, -2) holds 12300
        precision, scale = precision + 2048 - scale, 0
    digits = max(precision, scale)
    return pa.decimal128(digits, scale) if digits <= _DECIMAL_DIGITS_MAX else pa.string()


def column_of(texts: ArrowArray, dtype: ArrowType, *, of: str) -> ArrowArray:
    """Texts as PostgreSQL prints them, in a type of the log. `of` names the column: "orders.due"."""
    try:
        return _converted(texts, dtype)
    except (pa.ArrowException, ValueError) as error:
        raise _cannot_hold(texts, dtype, of) from error


def _converted(texts: ArrowArray, dtype: ArrowType) -> ArrowArray:
    if _is.is_string(dtype):
        texts.validate(full=True)  # a database in SQL_ASCII may hold anything
        return texts
    if _is.is_boolean(dtype):
        return pc.equal(texts, "t")
    if _is.is_binary(dtype):
        return _bytes_of(texts)
    if _is.is_list(dtype):
        return _lists_of(texts, dtype)
    return texts.cast(dtype)


def _cannot_hold(texts: ArrowArray, dtype: ArrowType, of: str) -> BadRecord:
    value = next((text for text in texts if not _fits(text, dtype)), None)
    shown = _shown(value)
    return BadRecord(
        f"{of} has a value that {ddl_of(dtype)} cannot hold: {shown}.",
        column=of,
        hint="mend the row in the database, and let the table be read again, which passes this change: "
        f"penstock capture resnapshot SOURCE {of.rpartition('.')[0]}; or capture that column as text: "
        f'as_text=["{of}"] (its topic has to be a new one)',
    )


def unfit(texts: ArrowArray, dtype: ArrowType) -> list[int]:
    """Which of the texts the type cannot hold."""
    try:
        _converted(texts, dtype)
    except (pa.ArrowException, ValueError):
        if len(texts) == 1:
            return [0]
        half = len(texts) // 2
        rest = [half + at for at in unfit(pa.concat_arrays([texts[half:]]), dtype)]
        return unfit(pa.concat_arrays([texts[:half]]), dtype) + rest
    return []


def _fits(text: Any, dtype: ArrowType) -> bool:
    try:
        _converted(pa.array([text], text.type), dtype)
    except (pa.ArrowException, ValueError):
        return False
    return True


def _shown(value: Any) -> str:
    if value is None:
        return "(unknown)"
    text = value.as_buffer().to_pybytes().decode(errors="replace")
    return text if len(text) <= 60 else f"{text[:57]}..."


def _bytes_of(texts: ArrowArray) -> ArrowArray:
    r"""From \xcafe. All digits lie end to end, so two of them make a byte wherever a value begins."""
    digits = pc.utf8_slice_codeunits(pc.fill_null(texts, r"\x"), 2)
    cuts = np.frombuffer(digits.buffers()[1], np.int32)[digits.offset : digits.offset + len(digits) + 1]
    raw = np.frombuffer(digits.buffers()[2] or b"", np.uint8)[cuts[0] : cuts[-1]]
    halves = np.where(raw >= ord("a"), raw - (ord("a") - 10), raw - ord("0")).astype(np.uint8)
    joined = halves[0::2] << 4 | halves[1::2]
    offsets = ((cuts - cuts[0]) // 2).astype(np.int32)
    valid = pc.is_valid(texts)
    mask = None if texts.null_count == 0 else pa.array(np.asarray(valid)).buffers()[1]
    return pa.Array.from_buffers(
        pa.binary(), len(texts), [mask, pa.py_buffer(offsets), pa.py_buffer(joined.tobytes())]
    )


def _lists_of(texts: ArrowArray, dtype: ArrowType) -> ArrowArray:
    """From {1,NULL,"a,b"}. The bounds of an array that does not begin at 1 are left out."""
    special = pc.match_substring_regex(texts, r'["\\\[]|.\{')
    if pc.any(special, min_count=0).as_py():
        return _parsed_lists(texts.to_pylist(), dtype)
    inside = pc.utf8_slice_codeunits(texts, 1, -1)
    pieces = pc.split_pattern(inside, ",")
    # Of "{}" that leaves one empty text, which no unquoted element can be.
    flat = pieces.flatten()
    counts = np.asarray(pc.fill_null(pc.list_value_length(pieces), 0)).astype(np.int64)
    empty = np.asarray(pc.fill_null(pc.equal(inside, ""), False))
    counts[empty] = 0
    elements = flat.filter(pc.not_equal(flat, ""))
    elements = pc.if_else(pc.equal(elements, "NULL"), pa.scalar(None, pa.string()), elements)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    mask = pa.array(~np.asarray(pc.is_valid(texts)))
    values = _converted(elements, dtype.value_type)
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=mask).cast(dtype)


def _parsed_lists(texts: list[str | None], dtype: ArrowType) -> ArrowArray:
    lists = [None if text is None else _elements(text) for text in texts]
    flat = pa.array([each for found in lists if found for each in found], pa.string())
    values = _converted(flat, dtype.value_type)
    offsets = np.cumsum([0, *(len(found or ()) for found in lists)]).astype(np.int32)
    mask = pa.array([found is None for found in lists])
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=mask).cast(dtype)


def _elements(text: str) -> list[str | None]:
    """The elements of an array of one dimension; ValueError for more."""
    if text.startswith("["):
        text = text[text.index("=") + 1 :]
    found: list[str | None] = []
    at = 1
    while text[at] != "}":
        if text[at] == "{":
            raise ValueError("several dimensions")
        if text[at] == '"':
            element, at = _quoted(text, at + 1)
            found.append(element)
        else:
            end = min(place for place in (text.find(",", at), len(text) - 1) if place >= 0)
            found.append(None if text[at:end] == "NULL" else text[at:end])
            at = end
        at += text[at] == ","
    return found


def _quoted(text: str, at: int) -> tuple[str, int]:
    parts = []
    while text[at] != '"':
        at += text[at] == "\\"
        parts.append(text[at])
        at += 1
    return "".join(parts), at + 1
