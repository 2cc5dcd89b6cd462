"""A key store by its address: a file, or nowhere yet."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from penstock.erasure.keys import KeyStore
from penstock.erasure.sqlite_keys import NAME, SqliteKeys
from penstock.errors import BadOption, NotSupported

VARIABLE = "PENSTOCK_KEYS"


def open_keys(chosen: str | Path | None = None, *, beside: Path | None = None) -> KeyStore:
    """The store in the file `chosen`, else in $PENSTOCK_KEYS, else `beside` a log that is a folder."""
    if not chosen and beside is None and VARIABLE not in os.environ:
        return NoKeys()
    address = keys_of(chosen, beside or Path())
    if "://" in str(address):
        raise BadOption("a key store is a file, and this is an address.", hint="give the path of a file")
    path = Path(address)
    if path.is_dir():
        raise BadOption(f"{path} is a folder, and a key store is a file.", hint=f"say {path / NAME}")
    return SqliteKeys(path)


def keys_of(chosen: str | Path | None, beside: Path) -> str | Path:
    """Where the keys are that are used with what is kept in the folder `beside`."""
    return chosen or os.environ.get(VARIABLE) or beside / NAME


class NoKeys:
    """The KeyStore port where nobody said where the keys are."""

    def make(self, subjects: Iterable[str]) -> NoReturn:
        self._refuse()

    def find(self, subjects: Iterable[str]) -> NoReturn:
        self._refuse()

    def by_id(self, ids: Iterable[bytes]) -> NoReturn:
        self._refuse()

    def destroy(self, subject: str) -> NoReturn:
        self._refuse()

    def is_forgotten(self, subject: str) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise NotSupported(
            "this needs the keys of subjects, and nobody has said where they are.",
            hint=f"name a file that all who write and reveal can reach: keys=…, or ${VARIABLE}",
        )

    def destroyed(self) -> int:
        return 0

    def count(self) -> int:
        return 0

    def close(self) -> None: ...
