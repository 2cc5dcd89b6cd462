"""The words of a text, as search on streams sees them: the same for events and for queries.

A word is a run of letters, digits and the marks on them; everything else separates. Case does not count,
nor how a character is composed (NFKC, case folding: "Straße" is "STRASSE", "ﬁ" is "fi"); accents do. Han
characters and kana, which are written without spaces, are a word each, so that 東京 is found in 東京都 as
a phrase. Of a word longer than `WORD_LENGTH_MAX`, only its beginning counts.
"""

from __future__ import annotations

import unicodedata

WORD_LENGTH_MAX = 255  # characters; the index takes no word of more than 65,530 bytes

# Kana; Han, with its extensions.
_WRITTEN_WITHOUT_SPACES = ((0x3041, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0x20000, 0x323AF))


class _Separated(dict[int, str]):
    """What becomes of a character, found out when it is met first; no larger than Unicode."""

    def __missing__(self, code: int) -> str:
        self[code] = found = _separated(chr(code))
        return found


def _separated(char: str) -> str:
    category = unicodedata.category(char)
    if category == "Cf":
        return ""  # soft hyphens and joiners are inside of words
    if category[0] not in "LNM":
        return " "
    alone = any(first <= ord(char) <= last for first, last in _WRITTEN_WITHOUT_SPACES)
    return f" {char} " if alone else char


_SEPARATED = _Separated()


def spaced(text: str) -> str:
    """The words of a text with ASCII spaces between them, one or more."""
    if text.isascii():
        plain = text.lower()
    else:
        plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    separated = plain.translate(_SEPARATED)
    if len(separated) <= WORD_LENGTH_MAX:
        return separated
    return " ".join(word[:WORD_LENGTH_MAX] for word in separated.split())


def words(text: str) -> tuple[str, ...]:
    return tuple(spaced(text).split())
