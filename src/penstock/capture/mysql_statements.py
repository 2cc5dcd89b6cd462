"""Statements of the binlog: which tables they empty or alter, and which change rows without telling them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

EMPTIED, ALTERED, GONE = "emptied", "altered", "gone"
ALL = "*"

_QUOTED = r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`"""
_COMMENT = re.compile(
    rf"(?P<quoted>{_QUOTED})|/\*M?!\d*(?P<conditional>.*?)\*/|/\*.*?\*/|(?:--(?=\s|$)|#)[^\n]*", re.S
)
_QUOTES = re.compile(_QUOTED, re.S)
_SETTINGS = re.compile(rf"\ASET\s+STATEMENT\b(?:{_QUOTED}|[^'\"`])*?\bFOR\s+", re.I | re.S)
_NAME = r"(?:`[0-9a-f]*`|[\w$]+)"  # of a statement whose quotes are masked
_TABLE = rf"(?:{_NAME}\s*\.\s*)?{_NAME}"
_DML = re.compile(r"(INSERT|UPDATE|DELETE|REPLACE|LOAD|WITH|CALL|SELECT)\b", re.I)
_TRUNCATE = re.compile(rf"TRUNCATE\s+(?:TABLE\s+)?({_TABLE})", re.I)
_DROP = re.compile(rf"DROP\s+TABLES?\s+(?:IF\s+EXISTS\s+)?({_TABLE}(?:\s*,\s*{_TABLE})*)", re.I)
_DROP_DATABASE = re.compile(rf"DROP\s+(?:DATABASE|SCHEMA)\s+(?:IF\s+EXISTS\s+)?({_NAME})", re.I)
_ANEW = re.compile(rf"CREATE\s+OR\s+REPLACE\s+TABLE\s+({_TABLE})", re.I)
_ALTER = re.compile(
    rf"ALTER\s+(?:ONLINE\s+)?(?:IGNORE\s+)?TABLE\s+(?:IF\s+EXISTS\s+)?({_TABLE})(.*)", re.I | re.S
)
_WITH_TABLE = re.compile(
    rf"\b(?:EXCHANGE\s+PARTITION\s+{_NAME}\s+WITH|CONVERT\s+PARTITION\s+{_NAME}\s+TO)\s+TABLE\s+({_TABLE})",
    re.I,
)
_INTO_PARTITION = re.compile(rf"\bCONVERT\s+TABLE\s+({_TABLE})\s+TO\s+PARTITION\b", re.I)
_RENAME = re.compile(r"RENAME\s+TABLES?\s+(.*)", re.I | re.S)
_PAIR = re.compile(
    rf"(?:IF\s+EXISTS\s+)?({_TABLE})\s+(?:WAIT\s+\d+\s+|NOWAIT\s+)?TO\s+({_TABLE})\s*(?:,|$)", re.I
)
_RENAMED = re.compile(rf"\bRENAME\s+(?:TO\s+|AS\s+|=\s*)?(?!COLUMN\b|INDEX\b|KEY\b)({_TABLE})", re.I)
# Indexes change no rows: for one of them a large table need not be read again.
_ONLY_INDEX = re.compile(
    r"\s*(?:ADD\s+(?:UNIQUE\s+|FULLTEXT\s+)?(?:INDEX|KEY)\b|DROP\s+(?:INDEX|KEY)\b|RENAME\s+(?:INDEX|KEY)\b)"
    r"[^,()]*(?:\([^()]*(?:\(\d+\)[^()]*)*\))?[^,()]*$",
    re.I,
)


@dataclass(frozen=True, slots=True)
class Touched:
    what: str
    table: str  # of our database, ALL for every one


def plain(statement: str) -> str:
    """Without comments and settings for it alone, but with what only some servers are to read."""

    def kept(found: re.Match[str]) -> str:
        return found["quoted"] or f" {plain(found['conditional'] or '')} "

    return _SETTINGS.sub("", _COMMENT.sub(kept, statement).strip())


def changes_rows(statement: str) -> bool:
    """Whether it is one that should have come as rows."""
    return _DML.match(statement) is not None


def mentions(statement: str, table: str) -> bool:
    return re.search(rf"(?<![\w$]){re.escape(table)}(?![\w$])", statement, re.I) is not None


def touched(statement: str, default: str, database: str) -> list[Touched]:
    """What a plain statement, given while `default` was in use, does to the tables of `database`."""
    found = []
    for what, name in _named(_QUOTES.sub(_masked, statement)):
        schema, table = _split(name)
        if what == GONE and table == ALL:
            found += [Touched(GONE, ALL)] if schema == database else []
        elif (schema or default) == database:
            found.append(Touched(what, table))
    # Tables that are swapped by their names are there all the time.
    kept = {each.table for each in found if each.what == ALTERED}
    return [each for each in found if each.what != GONE or each.table not in kept]


def _named(statement: str) -> Iterator[tuple[str, str]]:
    if match := _TRUNCATE.match(statement) or _ANEW.match(statement):
        yield EMPTIED, match[1]
    elif match := _DROP.match(statement):
        yield from ((GONE, name) for name in re.findall(_TABLE, match[1]))
    elif match := _DROP_DATABASE.match(statement):
        yield GONE, f"{match[1]}.{ALL}"
    elif match := _ALTER.match(statement):
        if not _ONLY_INDEX.match(match[2]):
            renamed = _RENAMED.findall(match[2])[:1]
            yield (GONE if renamed else ALTERED), match[1]
            yield from ((ALTERED, name) for name in renamed)
            yield from ((ALTERED, name) for name in _WITH_TABLE.findall(match[2]))
            yield from ((GONE, name) for name in _INTO_PARTITION.findall(match[2]))
    elif match := _RENAME.match(statement):
        pairs = _PAIR.findall(match[1])
        yield from ((GONE, old) for old, _ in pairs)
        yield from ((ALTERED, new) for _, new in pairs)


def _split(name: str) -> tuple[str, str]:
    parts = [_bare(part) for part in re.findall(rf"{_NAME}|\*", name)]
    return ("", parts[0]) if len(parts) == 1 else (parts[0], parts[1])


def _masked(found: re.Match[str]) -> str:
    """A text is left out, and a name in quotes is in hex: neither says RENAME then, or has a comma.

    What is in double quotes is a name for some writers (ANSI_QUOTES), and where a table is named for all.
    """
    quote, inner = found[0][0], found[0][1:-1]
    return "''" if quote == "'" else f"`{inner.replace(quote * 2, quote).encode().hex()}`"


def _bare(name: str) -> str:
    return bytes.fromhex(name[1:-1]).decode() if name.startswith("`") else name
