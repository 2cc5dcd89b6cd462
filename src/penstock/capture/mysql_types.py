"""The columns of MySQL and MariaDB in the log's types.

TINYINT … BIGINT     TINYINT … BIGINT; unsigned ones the next larger, BIGINT UNSIGNED as DECIMAL(20, 0)
BIT(1), BIT(n)       BOOLEAN; BIGINT, and BIT(64) DECIMAL(20, 0)
CHAR, TEXT, ENUM, SET, JSON, UUID, INET, TIME   STRING, as the server writes them
DATE, DATETIME       DATE, TIMESTAMP_NTZ. 0000-00-00 and the like are refused, or with ?zero_dates=null null
TIMESTAMP, YEAR      TIMESTAMP, INT
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadInput
from penstock.schema import ArrowArray, ArrowType, ddl_of

INT, FLOAT, DECIMAL, BIT, YEAR = "int", "float", "decimal", "bit", "year"
TEXT, BYTES, ENUM, SET, JSON, UUID, INET4, INET6 = (
    "text", "bytes", "enum", "set", "json", "uuid", "inet4", "inet6",
)  # fmt: skip
DATE, DATETIME, TIMESTAMP, TIME = "date", "datetime", "timestamp", "time"
DECIMAL_DIGITS_MAX = 38

_INTS = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "integer": 4, "bigint": 8}
_SIGNED = {1: pa.int8(), 2: pa.int16(), 3: pa.int32(), 4: pa.int32(), 8: pa.int64()}
_UNSIGNED = {1: pa.int16(), 2: pa.int32(), 3: pa.int32(), 4: pa.int64(), 8: pa.decimal128(20, 0)}
_KINDS = {
    "char": TEXT, "varchar": TEXT, "tinytext": TEXT, "text": TEXT, "mediumtext": TEXT, "longtext": TEXT,
    "binary": BYTES, "varbinary": BYTES, "tinyblob": BYTES, "blob": BYTES, "mediumblob": BYTES,
    "longblob": BYTES, "enum": ENUM, "set": SET, "json": JSON, "uuid": UUID, "inet4": INET4, "inet6": INET6,
    "date": DATE, "datetime": DATETIME, "timestamp": TIMESTAMP, "time": TIME, "year": YEAR,
}  # fmt: skip
_DTYPES: Mapping[str, ArrowType] = {
    BYTES: pa.binary(), DATE: pa.date32(), DATETIME: pa.timestamp("us"),
    TIMESTAMP: pa.timestamp("us", tz="UTC"), YEAR: pa.int32(),
}  # fmt: skip
_ZERO = re.compile(r"0000-|\d{4}-00|\d{4}-\d\d-00")

# Python's name of a character set, where both agree on every character.
_CODECS = {
    "utf8": "utf-8", "utf8mb3": "utf-8", "utf8mb4": "utf-8", "ascii": "ascii", "latin1": "latin1",
    "latin2": "iso8859_2", "latin5": "iso8859_9", "latin7": "iso8859_13", "cp850": "cp850", "cp852": "cp852",
    "cp1250": "cp1250", "cp1251": "cp1251", "koi8r": "koi8_r", "ucs2": "utf-16-be", "utf16": "utf-16-be",
    "utf16le": "utf-16-le", "utf32": "utf-32-be",
}  # fmt: skip
# MySQL's latin1 is Windows' 1252, and where that has no character it is the control character.
_LATIN1 = {
    code: bytes([code]).decode("cp1252")
    for code in range(0x80, 0xA0)
    if code not in (0x81, 0x8D, 0x8F, 0x90, 0x9D)
}


@dataclass(frozen=True, slots=True)
class Column:
    """`size`: bytes of a whole number, digits, bits, or the length of BINARY(n); `scale`: digits behind."""

    name: str
    kind: str
    size: int = 0
    scale: int = 0
    unsigned: bool = False
    charset: str = "utf8mb4"

    @property
    def dtype(self) -> ArrowType:
        if self.kind == INT:
            return (_UNSIGNED if self.unsigned else _SIGNED)[self.size]
        if self.kind == FLOAT:
            return pa.float32() if self.size == 4 else pa.float64()
        if self.kind == DECIMAL:
            return pa.decimal128(self.size, self.scale)
        if self.kind == BIT:
            return pa.bool_() if self.size == 1 else pa.decimal128(20, 0) if self.size > 63 else pa.int64()
        return _DTYPES.get(self.kind, pa.string())


def declared(
    name: str, base: str, whole: str, *, digits: int, scale: int, charset: str | None
) -> Column | None:
    """A column as information_schema has it; None where the log has no type for it."""
    if base in _INTS:
        return Column(name, INT, _INTS[base], unsigned="unsigned" in whole)
    if base in ("float", "double"):
        return Column(name, FLOAT, 4 if base == "float" else 8)
    if base == "decimal":
        return Column(name, DECIMAL, digits, scale) if digits <= DECIMAL_DIGITS_MAX else None
    if base == "bit":
        return Column(name, BIT, digits)
    if base not in _KINDS or (charset is not None and charset not in _CODECS) or "compressed" in whole:
        return None
    return Column(name, _KINDS[base], scale=scale, charset=charset or "utf8mb4")


def selected(column: Column, quoted: str) -> str:
    """How a snapshot asks for it: a FLOAT would come with six digits only."""
    return f"{quoted} + 0e0" if column.kind == FLOAT else quoted


def decoder(charset: str) -> Callable[[bytes], str]:
    """Text of the binlog, which has it in the column's own character set."""
    codec = _CODECS.get(charset, "utf-8")
    if codec == "latin1":
        return lambda found: found.decode("latin1").translate(_LATIN1)
    return lambda found: found.decode(codec)


def values_from_text(
    table: str, column: Column, values: Sequence[Any], *, zero_dates: str | None
) -> ArrowArray:
    """A column of a snapshot, whose values are as the server writes them."""
    if column.kind in (INT, FLOAT, YEAR):
        return pa.array(values, pa.string()).cast(column.dtype)
    if column.kind == BIT:
        values = [None if value is None else int.from_bytes(value, "big") for value in values]
    if column.kind == JSON:
        values = [None if value is None else json_text(json.loads(value)) for value in values]
    return values_of(table, column, values, zero_dates=zero_dates)


def values_of(table: str, column: Column, values: Sequence[Any], *, zero_dates: str | None) -> ArrowArray:
    """A column of the binlog, as `mysql_rows` reads it. Raises BadInput for a value that does not fit."""
    try:
        if column.kind in (DATE, DATETIME, TIMESTAMP):
            return _times(table, column, values, zero_dates)
        if column.kind == DECIMAL:
            return pa.array(values, pa.string()).cast(column.dtype)
        if column.kind == BIT and column.size == 1:
            values = [None if value is None else bool(value) for value in values]
        return pa.array(values, column.dtype)
    except (pa.ArrowException, UnicodeDecodeError, OverflowError) as error:
        raise BadInput(
            f'column "{column.name}" of "{table}" has a value that is no {ddl_of(column.dtype)}: {error}.',
            hint="mend that row; nothing is lost meanwhile",
        ) from error


def _times(table: str, column: Column, values: Sequence[Any], zero_dates: str | None) -> ArrowArray:
    zeros = [number for number, value in enumerate(values) if value is not None and _ZERO.match(value)]
    if zeros and zero_dates != "null":
        raise BadInput(
            f'column "{column.name}" of "{table}" has {values[zeros[0]]!r}, which is no date.',
            hint="have such dates as null: mysql://…/database?zero_dates=null; nothing is lost meanwhile",
        )
    if zeros:
        values = list(values)
        for number in zeros:
            values[number] = None
    naive = column.dtype if column.kind == DATE else pa.timestamp("us")
    found = pa.array(values, pa.string()).cast(naive)
    return pc.assume_timezone(found, "UTC") if column.kind == TIMESTAMP else found


def json_text(value: Any) -> str:
    """As MySQL writes it."""
    return json.dumps(
        value,
        ensure_ascii=False,
        default=lambda each: float(each) if isinstance(each, Decimal) else str(each),
    )
