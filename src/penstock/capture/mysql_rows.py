"""Rows of the binlog: bytes to values.

Our own, since what is read here must equal what a snapshot reads, for every type: zero dates, padded BINARY,
negative times and the year 0000 among them.
"""

from __future__ import annotations

import ipaddress
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pymysqlreplication.constants import FIELD_TYPE
from pymysqlreplication.json_binary import parse_json

from penstock.capture import mysql_types as types
from penstock.capture.mysql_types import Column

Read = Callable[[bytes, int], tuple[Any, int]]
"""A value of these bytes from this place on, and where the next one begins."""

_INTS = {
    FIELD_TYPE.TINY: 1, FIELD_TYPE.SHORT: 2, FIELD_TYPE.INT24: 3, FIELD_TYPE.LONG: 4, FIELD_TYPE.LONGLONG: 8,
}  # fmt: skip
_FLOATS = {FIELD_TYPE.FLOAT: (4, "<f"), FIELD_TYPE.DOUBLE: (8, "<d")}
_STRINGS = (FIELD_TYPE.VARCHAR, FIELD_TYPE.VAR_STRING, FIELD_TYPE.STRING)
_FRACTIONS = {FIELD_TYPE.TIMESTAMP2: "timestamp", FIELD_TYPE.DATETIME2: "datetime", FIELD_TYPE.TIME2: "time"}
_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)  # that so many digits of a DECIMAL take
_EPOCH = datetime(1970, 1, 1)
_TIME_ZERO = 0x800000
_DATETIME_ZERO = 0x8000000000


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the rows of one form of a table."""

    columns: tuple[Column, ...]
    reads: tuple[Read, ...]

    def rows(self, data: bytes) -> Iterator[tuple[Any, ...]]:
        """Every row of an event; of an update, before and after by turns."""
        at, count = 0, len(self.reads)
        null_bytes = (count + 7) // 8
        while at < len(data):
            nulls = int.from_bytes(data[at : at + null_bytes], "little")
            at += null_bytes
            row: list[Any] = []
            for number, read in enumerate(self.reads):
                if nulls >> number & 1:
                    row.append(None)
                else:
                    value, at = read(data, at)
                    row.append(value)
            yield tuple(row)


def reader_of(told: Sequence[Any], special: Mapping[str, str]) -> Reader | str:
    """For columns as a table map tells them, or the name of the one that cannot be read.

    `special`: columns that are UUID or INET, which a table map does not tell from BINARY.
    """
    found = [_column(each, special.get(each.name, "")) for each in told]
    for each, one in zip(told, found, strict=True):
        if one is None:
            return str(each.name)
    pairs = [one for one in found if one is not None]
    return Reader(tuple(column for column, _ in pairs), tuple(read for _, read in pairs))


def _column(told: Any, special: str) -> tuple[Column, Read] | None:
    name, kind = told.name, told.type
    if kind in _INTS:
        return Column(name, types.INT, _INTS[kind], unsigned=told.unsigned), _int(_INTS[kind], told.unsigned)
    if kind in _FLOATS:
        size, form = _FLOATS[kind]
        return Column(name, types.FLOAT, size), _packed(struct.Struct(form))
    if kind == FIELD_TYPE.NEWDECIMAL and told.precision <= types.DECIMAL_DIGITS_MAX:
        column = Column(name, types.DECIMAL, told.precision, told.decimals)
        return column, _decimal(told.precision, told.decimals)
    if kind == FIELD_TYPE.BIT:
        return Column(name, types.BIT, told.bits), _bits((told.bits + 7) // 8)
    return _timed(told) or _chosen(told) or _counted(told, special)


def _chosen(told: Any) -> tuple[Column, Read] | None:
    if told.type == FIELD_TYPE.ENUM:
        return Column(told.name, types.ENUM), _enum(told.size, told.enum_values)
    if told.type == FIELD_TYPE.SET:
        return Column(told.name, types.SET), _set(told.size, told.set_values)
    return None


def _counted(told: Any, special: str) -> tuple[Column, Read] | None:
    """Strings and what is like them: their length comes first."""
    name, kind = told.name, told.type
    charset = (told.collation_name or "utf8mb4").partition("_")[0]
    if kind == FIELD_TYPE.JSON:
        return Column(name, types.JSON), _prefixed(told.length_size, _json)
    if kind == FIELD_TYPE.BLOB:
        prefix = told.length_size
    elif kind in _STRINGS:
        prefix = 2 if told.max_length > 255 else 1
    else:
        return None
    if charset != "binary":
        decode = types.decoder(charset)
        fixed = kind == FIELD_TYPE.STRING
        text = (lambda found: decode(found).rstrip(" ")) if fixed else decode
        return Column(name, types.TEXT, charset=charset), _prefixed(prefix, text)
    if kind != FIELD_TYPE.STRING:
        return Column(name, types.BYTES), _prefixed(prefix, bytes)
    return _fixed(name, told.max_length, prefix, special)


def _fixed(name: str, length: int, prefix: int, special: str) -> tuple[Column, Read]:
    """The binlog leaves out the zeros at the end."""
    if special == types.UUID:
        return Column(name, special), _prefixed(prefix, lambda found: str(uuid.UUID(bytes=_full(found, 16))))
    if special == types.INET4:
        return Column(name, special), _prefixed(
            prefix, lambda found: str(ipaddress.IPv4Address(_full(found, 4)))
        )
    if special == types.INET6:
        return Column(name, special), _prefixed(prefix, lambda found: inet6(_full(found, 16)))
    return Column(name, types.BYTES, length), _prefixed(prefix, lambda found: _full(found, length))


def _full(found: bytes, length: int) -> bytes:
    return found.ljust(length, b"\0")


def inet6(found: bytes) -> str:
    """As MariaDB writes it: with an IPv4 address where there is one within."""
    mapped, compatible = found[:10] == bytes(10) and found[10:12] == b"\xff\xff", found[:12] == bytes(12)
    if mapped or (compatible and found[12:14] != b"\0\0"):
        return f"::{'ffff:' if mapped else ''}{ipaddress.IPv4Address(found[12:])}"
    return str(ipaddress.IPv6Address(found))


def _int(size: int, unsigned: bool) -> Read:
    def read(data: bytes, at: int) -> tuple[int, int]:
        return int.from_bytes(data[at : at + size], "little", signed=not unsigned), at + size

    return read


def _packed(form: struct.Struct) -> Read:
    return lambda data, at: (form.unpack_from(data, at)[0], at + form.size)


def _bits(size: int) -> Read:
    return lambda data, at: (int.from_bytes(data[at : at + size], "big"), at + size)


def _year(data: bytes, at: int) -> tuple[int, int]:
    return data[at] + 1900 if data[at] else 0, at + 1


def _prefixed(prefix: int, made: Callable[[bytes], Any]) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        begin = at + prefix
        end = begin + int.from_bytes(data[at:begin], "little")
        return made(data[begin:end]), end

    return read


def _enum(size: int, values: Sequence[str]) -> Read:
    return lambda data, at: (values[int.from_bytes(data[at : at + size], "little")], at + size)


def _set(size: int, values: Sequence[str]) -> Read:
    def read(data: bytes, at: int) -> tuple[str, int]:
        mask = int.from_bytes(data[at : at + size], "little")
        return ",".join(value for number, value in enumerate(values) if mask >> number & 1), at + size

    return read


def _json(found: bytes) -> str | None:
    return types.json_text(_plain(parse_json(found[0], found[1:]))) if found else None


def _plain(value: Any) -> Any:
    """The driver leaves names and texts as bytes."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        return {_plain(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _decimal(precision: int, scale: int) -> Read:
    """Groups of nine digits, most significant first; negative ones with all bits turned."""
    whole, part = divmod(precision - scale, 9), divmod(scale, 9)
    head, tail = _DIGIT_BYTES[whole[1]], _DIGIT_BYTES[part[1]]
    sizes = [(head, whole[1]), *([(4, 9)] * (whole[0] + part[0])), (tail, part[1])]
    length = sum(size for size, _ in sizes)

    def read(data: bytes, at: int) -> tuple[str, int]:
        taken = bytearray(data[at : at + length])
        negative = not taken[0] & 0x80
        taken[0] ^= 0x80
        if negative:
            taken = bytearray(each ^ 0xFF for each in taken)
        digits, begin = "", 0
        for size, count in sizes:
            if size:
                digits += f"{int.from_bytes(taken[begin : begin + size], 'big'):0{count}d}"
            begin += size
        text = f"{digits[: len(digits) - scale] or '0'}.{digits[len(digits) - scale :]}" if scale else digits
        return f"-{text}" if negative else text, at + length

    return read


def _date(data: bytes, at: int) -> tuple[str, int]:
    value = int.from_bytes(data[at : at + 3], "little")
    return f"{value >> 9:04d}-{value >> 5 & 15:02d}-{value & 31:02d}", at + 3


def _timed(told: Any) -> tuple[Column, Read] | None:
    name, kind = told.name, told.type
    if kind == FIELD_TYPE.DATE:
        return Column(name, types.DATE), _date
    if kind == FIELD_TYPE.YEAR:
        return Column(name, types.YEAR), _year
    if kind not in _FRACTIONS:
        return None
    made = {FIELD_TYPE.TIMESTAMP2: _timestamp, FIELD_TYPE.DATETIME2: _datetime, FIELD_TYPE.TIME2: _time}[kind]
    return Column(name, _FRACTIONS[kind], scale=told.fsp), made(told.fsp)


def _fraction(digits: int) -> tuple[int, Callable[[int], str]]:
    """How many bytes it has, and how its number is written."""
    size = (digits + 1) // 2
    return size, lambda value: f".{value:0{size * 2}d}"[: digits + 1] if digits else ""


def _timestamp(digits: int) -> Read:
    size, written = _fraction(digits)

    def read(data: bytes, at: int) -> tuple[str, int]:
        seconds = int.from_bytes(data[at : at + 4], "big")
        part = written(int.from_bytes(data[at + 4 : at + 4 + size], "big"))
        if not seconds:
            return f"0000-00-00 00:00:00{part}", at + 4 + size
        return f"{_EPOCH + timedelta(seconds=seconds)}{part}", at + 4 + size

    return read


def _datetime(digits: int) -> Read:
    size, written = _fraction(digits)

    def read(data: bytes, at: int) -> tuple[str, int]:
        value = int.from_bytes(data[at : at + 5], "big") - _DATETIME_ZERO
        year, month = divmod(value >> 22, 13)
        date = f"{year:04d}-{month:02d}-{value >> 17 & 31:02d}"
        part = written(int.from_bytes(data[at + 5 : at + 5 + size], "big"))
        return f"{date} {value >> 12 & 31:02d}:{value >> 6 & 63:02d}:{value & 63:02d}{part}", at + 5 + size

    return read


def _time(digits: int) -> Read:
    size, written = _fraction(digits)
    shift = size * 8

    def read(data: bytes, at: int) -> tuple[str, int]:
        # Both parts are one number, so that a negative one is turned as a whole.
        value = int.from_bytes(data[at : at + 3 + size], "big") - (_TIME_ZERO << shift)
        sign, value = ("-", -value) if value < 0 else ("", value)
        clock, part = value >> shift, written(value & ((1 << shift) - 1))
        return f"{sign}{clock >> 12:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}{part}", at + 3 + size

    return read
