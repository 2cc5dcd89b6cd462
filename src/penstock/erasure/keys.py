"""The keys of subjects: the port that every key store keeps, and the keys that a process has in hand.

A subject is whoever can ask to be forgotten, by the id that the program knows them by. Each has one key. It
is made when something personal of theirs is first stored, and once it is destroyed there is never another.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from penstock import fork
from penstock.erasure.cipher import Key
from penstock.errors import BadOption
from penstock.fork import Forking

SUBJECT_CHARACTERS_MAX = 1_000
_KEPT_MAX = 10_000

Name = TypeVar("Name")


class KeyStore(Protocol):
    """Where keys are kept. Thread-safe, and safe for many processes.

    The ids of subjects are not kept, only a keyed hash of each: they may be personal themselves.
    """

    def make(self, subjects: Iterable[str]) -> Mapping[str, Key]:
        """The key of each subject, made where there is none yet, and durable on return.

        One that was forgotten is left out.
        """

    def find(self, subjects: Iterable[str]) -> Mapping[str, Key]:
        """The keys that there are. Makes none."""

    def by_id(self, ids: Iterable[bytes]) -> Mapping[bytes, Key | None]:
        """The keys with these ids: None for one that was destroyed; one that never was here is left out."""

    def destroy(self, subject: str) -> bool:
        """Destroy a subject's key for good, and remember that this was done: one transaction.

        False if it was destroyed before; what a crash may have left undone then is done now. Raises
        UnknownSubject for one that never had a key.
        """

    def is_forgotten(self, subject: str) -> bool: ...

    def destroyed(self) -> int:
        """How many were destroyed so far: while that stays the same, every key in hand is still good."""

    def count(self) -> int:
        """How many subjects have a key."""

    def close(self) -> None:
        """It opens again when it is needed."""


class KeyRing(Forking):
    """The keys that this process has in hand, of one store. Thread-safe.

    A key that is destroyed, by whatever process, is not used from the next batch of fields on.
    """

    def __init__(self, store: KeyStore) -> None:
        self.store = store
        self._mutex = threading.Lock()
        self._destroyed = -1
        self._by_subject = _Kept[str]()
        self._by_id = _Kept[bytes]()
        fork.tell(self)

    def make(self, subjects: Iterable[str]) -> dict[str, Key]:
        """As the store does, which is only asked for what is not in hand."""
        with self._mutex:
            found, missing = self._good(self._by_subject, subjects)
            return found | self._keep(self.store.make(missing)) if missing else found

    def find(self, subjects: Iterable[str]) -> dict[str, Key]:
        with self._mutex:
            found, missing = self._good(self._by_subject, subjects)
            return found | self._keep(self.store.find(missing)) if missing else found

    def by_id(self, ids: Iterable[bytes]) -> dict[bytes, Key | None]:
        with self._mutex:
            found, missing = self._good(self._by_id, ids)
            more = self.store.by_id(missing) if missing else {}
            self._by_id.keep({id: key for id, key in more.items() if key})
            return {**found, **more}

    def destroy(self, subject: str) -> bool:
        return self.store.destroy(subject)

    def close(self) -> None:
        with self._mutex:
            self._by_subject.clear()
            self._by_id.clear()
            self.store.close()

    def after_fork_in_child(self) -> None:
        self._mutex = threading.Lock()  # another thread of the parent may have held it
        self._destroyed = -1

    def _good(self, kept: _Kept[Name], names: Iterable[Name]) -> tuple[dict[Name, Key], list[Name]]:
        destroyed = self.store.destroyed()
        if destroyed != self._destroyed:
            self._by_subject.clear()
            self._by_id.clear()
            self._destroyed = destroyed
        wanted = dict.fromkeys(names)
        found = {name: kept[name] for name in wanted if name in kept}
        return found, [name for name in wanted if name not in found]

    def _keep(self, keys: Mapping[str, Key]) -> dict[str, Key]:
        self._by_id.keep({key.id: key for key in keys.values()})
        return self._by_subject.keep(keys)


class _Kept(OrderedDict[Name, Key], Generic[Name]):
    def keep(self, keys: Mapping[Name, Key]) -> dict[Name, Key]:
        self.update(keys)
        while len(self) > _KEPT_MAX:
            self.popitem(last=False)
        return dict(keys)


def subject_of(value: object) -> str:
    """The one spelling of a subject's id: 17 and "17" are the same subject."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and 0 < len(value) <= SUBJECT_CHARACTERS_MAX:
        return value
    found = f"text of {len(value):,} characters" if isinstance(value, str) else type(value).__name__
    raise BadOption(
        f"a subject is named by its id, and this is {found}.",
        hint=f"give a whole number, or text of 1 to {SUBJECT_CHARACTERS_MAX:,} characters",
    )
