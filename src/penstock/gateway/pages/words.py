"""Numbers and times as the page says them: short, with units, always in UTC."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from penstock.log.json_rows import to_json

NONE = "\u2013"
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def count(number: float, noun: str = "") -> str:
    """
    >>> count(1, "record"), count(12_000, "record"), count(3)
    ('1 record', '12,000 records', '3')
    """
    text = f"{number:,.0f}"
    return text if not noun else f"{text} {noun}{'' if number == 1 else 's'}"


def rate(per_s: float | None) -> str:
    """
    >>> rate(0), rate(0.31), rate(410.2), rate(21_700), rate(3.2e6)
    ('0/s', '0.3/s', '410/s', '21.7 k/s', '3.2 M/s')
    """
    if per_s is None:
        return NONE
    if per_s >= 1e6:
        return f"{per_s / 1e6:.1f} M/s"
    if per_s >= 10_000:
        return f"{per_s / 1e3:.1f} k/s"
    if per_s >= 10 or per_s == 0:
        return f"{per_s:,.0f}/s"
    return f"{per_s:.1f}/s"


def span(seconds: float | None) -> str:
    """
    >>> span(0.0004), span(0.286), span(1.24), span(184), span(7_300), span(200_000)
    ('0 s', '286 ms', '1.2 s', '3 min 04 s', '2 h 01 min', '2 d 7 h')
    """
    if seconds is None:
        return NONE
    if seconds < 10:
        short = f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else "0 s"
        return short if seconds < 1 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    hours = f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return hours if whole < 86_400 else f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def roughly(seconds: float) -> str:
    """
    >>> roughly(4), roughly(61), roughly(200), roughly(7300)
    ('4 seconds', '1 minute', '3 minutes', '2 hours')
    """
    for size, noun in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= size:
            return count(int(seconds // size), noun)
    return count(int(seconds), "second")


def size(number: float | None) -> str:
    """
    >>> size(700), size(1536), size(5 << 20)
    ('700 B', '1.5 KiB', '5.0 MiB')
    """
    if number is None:
        return NONE
    for unit in _SIZES:
        if number < 1024 or unit == _SIZES[-1]:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    raise AssertionError


def clock(time_us: int | None) -> str:
    """
    >>> clock(1_793_527_330_250_000)
    '10:02:10'
    """
    return NONE if time_us is None else moment(time_us).strftime("%H:%M:%S")


def clock_ms(time_us: int | None) -> str:
    """
    >>> clock_ms(1_793_527_330_250_000)
    '10:02:10.250'
    """
    return NONE if time_us is None else f"{clock(time_us)}.{time_us % 1_000_000 // 1_000:03d}"


def date(time_us: int | None) -> str:
    """
    >>> date(1_793_527_330_250_000)
    '2026-11-01 10:02:10'
    """
    return NONE if time_us is None else moment(time_us).strftime("%Y-%m-%d %H:%M:%S")


def iso(time_us: int) -> str:
    """
    >>> iso(1_793_527_330_250_000)
    '2026-11-01T10:02:10.250000Z'
    """
    return moment(time_us).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def ago(time_us: int | None, now_us: int) -> str:
    """
    >>> ago(1_000_000, 1_400_000), ago(0, 125_000_000)
    ('just now', '2 minutes ago')
    """
    if time_us is None:
        return "never"
    seconds = (now_us - time_us) / 1e6
    return "just now" if seconds < 1 else f"{roughly(seconds)} ago"


def moment(time_us: int) -> datetime:
    return datetime.fromtimestamp(time_us // 1_000_000, UTC).replace(microsecond=time_us % 1_000_000)


def cell(value: object) -> str:
    """A value of a row as text.

    >>> cell("a"), cell(1_234_567), cell({"a": [1]})
    ('a', '1,234,567', '{"a": [1]}')
    """
    match value:
        case None:
            found: object = NONE
        case bool():
            found = "yes" if value else "no"
        case int():
            found = f"{value:,}"
        case float():
            found = f"{value:,.6g}"
        case datetime() if value.tzinfo:
            found = value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
        case _:
            found = to_json(value)
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
