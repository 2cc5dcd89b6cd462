"""What can be read of some texts in everything under a folder: by somebody who has all of it, the keys too.

A text is looked for as UTF-8, UTF-16 and escaped JSON, as base64 and hexadecimal digits; in every file as it
is and decoded (`decoded.py`), and in what the keys open of the sealed values that are found there.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.erasure import decoded
from penstock.erasure.cipher import TOKEN, WHOLE, Key, Token
from penstock.erasure.file_reader import FileReader
from penstock.erasure.keys import KeyStore
from penstock.erasure.sqlite_keys import NAME, SqliteKeys

_VALUES_MAX = 10_000
_SEALED_MAX = 8  # sealed in what was sealed, and so on


@dataclass(frozen=True, slots=True)
class Trace:
    """One of the texts can be read in a file."""

    path: Path  # in the folder
    inside: str  # how: "bytes", "arrow", "zip:1.sst/rocksdb", and so on
    sealed: bool  # with a key that is there
    text: int  # which one, of those that were looked for


@dataclass(frozen=True, slots=True)
class Traces:
    """What a search has found, and what it could not look into."""

    found: tuple[Trace, ...]
    files: int
    unread: tuple[tuple[Path, str], ...]  # files that are not what they seem to be

    @property
    def clear(self) -> tuple[Trace, ...]:
        """What can be read without any key."""
        return tuple(trace for trace in self.found if not trace.sealed)

    def paths(self, *, sealed: bool | None = None) -> set[Path]:
        return {trace.path for trace in self.found if sealed in (None, trace.sealed)}


def find_traces(folder: Path, *texts: str | bytes, keys: Iterable[KeyStore] | None = None) -> Traces:
    """Look for `texts` in every file under `folder`, links followed, or in the one file that it is.

    `keys`: the stores whose keys open what is sealed (default: every `keys.db` under the folder). Nothing is
    changed, and a file that goes away meanwhile is left out.
    """
    needles = [(number, form) for number, text in enumerate(texts) for form in _forms(text)]
    opening = _Opening(list(keys) if keys is not None else [SqliteKeys(path) for path in folder.rglob(NAME)])
    found: set[Trace] = set()
    unread: list[tuple[Path, str]] = []
    files = 0
    with FileReader() as reader:
        for path in _files(folder):
            files += 1
            try:
                for inside, piece in _pieces(folder / path, reader):
                    found.update(Trace(path, inside, False, number) for number in _in(piece, needles))
                    for opened in opening.of(piece):
                        found.update(Trace(path, inside, True, number) for number in _in(opened, needles))
            except decoded.Unreadable as error:
                unread.append((path, str(error)))
    opening.close()
    ordered = sorted(found, key=lambda trace: (trace.path, trace.inside, trace.sealed, trace.text))
    return Traces(tuple(ordered), files, tuple(unread))


@dataclass(frozen=True, slots=True)
class Held:
    """What is sealed under one key: the values, and the places that they were sealed for."""

    values: frozenset[bytes]
    places: frozenset[str]
    more: bool  # values than these


def find_sealed(pieces: Iterable[bytes], key: Key) -> Held:
    """What `key` opens; at most so many values as can be looked for."""
    values: set[bytes] = set()
    places: set[str] = set()
    more = False
    for piece in pieces:
        for token in _tokens(piece):
            if token.key != key.id:
                continue
            places.add(token.place)
            new = _opened(key, token) - values
            more = more or len(values) + len(new) > _VALUES_MAX
            values.update(new if not more else ())
    return Held(frozenset(values), frozenset(places), more)


def pieces_under(folder: Path) -> Iterator[bytes]:
    """Everything that can be read out of the files there; what cannot, a search is told."""
    with FileReader() as reader:
        for path in _files(folder):
            with contextlib.suppress(decoded.Unreadable):
                yield from (piece for _, piece in _pieces(folder / path, reader))


def _tokens(piece: bytes) -> Iterator[Token]:
    return (token for match in TOKEN.finditer(piece) if (token := Token.matched(match)))


def _opened(key: Key, token: Token) -> set[bytes]:
    try:
        return set() if token.field == WHOLE else {key.open(token)}
    except ValueError:  # it was changed
        return set()


def _files(folder: Path) -> Iterator[Path]:
    """In the folder, in order; in linked folders too, each once. And folders that may not be looked into."""
    if folder.is_file():
        yield Path()
        return
    seen: set[Path] = set()
    closed: list[OSError] = []
    for at, folders, names in os.walk(folder, followlinks=True, onerror=closed.append):
        here = Path(at)
        folders[:] = sorted(folders) if here.resolve() not in seen else []
        found = [path for name in sorted(names) if (path := here / name).is_file()]
        yield from (path.relative_to(folder) for path in found if here.resolve() not in seen)
        seen.add(here.resolve())
    yield from (Path(str(error.filename)).relative_to(folder) for error in closed)


def _pieces(path: Path, reader: FileReader) -> Iterator[decoded.Piece]:
    """Raises Unreadable, after what could be read."""
    try:
        yield from decoded.pieces(reader.read(path), wal=_beside(path, reader))
    except FileNotFoundError:
        return
    except OSError as error:
        raise decoded.Unreadable(error.strerror or str(error)) from error


def _beside(path: Path, reader: FileReader) -> bytes:
    try:
        return reader.read(path.with_name(f"{path.name}-wal"))
    except FileNotFoundError:
        return b""


def _forms(text: str | bytes) -> set[bytes]:
    plain = text.encode() if isinstance(text, str) else text
    found = {plain, plain.hex().encode()}
    with contextlib.suppress(UnicodeDecodeError):  # then it is no text, and nobody writes it as one
        found |= {plain.decode().encode("utf-16-le"), json.dumps(plain.decode())[1:-1].encode()}
    for before in range(3):  # by where in three bytes it begins; its ends depend on what is beside them
        encoded = base64.b64encode(bytes(before) + plain)
        inner = encoded[(before * 8 + 5) // 6 : len(encoded) // 4 * 4 - 4]
        if len(inner) >= 6:
            found.add(inner)
    return found


def _in(piece: bytes, needles: Sequence[tuple[int, bytes]]) -> set[int]:
    return {number for number, form in needles if form in piece}


class _Opening:
    """What the keys of some stores open."""

    def __init__(self, stores: list[KeyStore]) -> None:
        self._stores = stores
        self._keys: dict[bytes, Key | None] = {}

    def of(self, piece: bytes, depth: int = 0) -> Iterator[bytes]:
        for token in _tokens(piece):
            key = self._key(token.key)
            if key is None:
                continue
            try:
                opened = key.open(token)
            except ValueError:
                continue
            yield opened
            if depth < _SEALED_MAX:
                yield from self.of(opened, depth + 1)

    def _key(self, id: bytes) -> Key | None:
        if id not in self._keys:
            found = (store.by_id([id]).get(id) for store in self._stores)
            self._keys[id] = next((key for key in found if key), None)
        return self._keys[id]

    def close(self) -> None:
        for store in self._stores:
            store.close()
