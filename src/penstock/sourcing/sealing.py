"""Personal fields of events: stored and published sealed, and readable for commands while there is a key.

    @dataclass(frozen=True)
    class AddressGiven:
        address: Personal[str | None]

Their subject is the aggregate, by its id; or whoever another field names, with `personal(of="customer")`. A
snapshot is sealed whole under the aggregate's key: once that is destroyed it is left aside, and the state
comes from the events, whose personal fields are None by then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow as pa

from penstock.erasure.cipher import WHOLE, Token
from penstock.erasure.keys import KeyRing, subject_of
from penstock.erasure.marks import Mark, marks_in
from penstock.errors import BadRecord, BadSchema, SubjectForgotten
from penstock.sourcing.data import Data
from penstock.sourcing.kinds import EventKind, Kinds, wrong

_SEALED = "sealed"


def marks_of(kinds: Kinds) -> dict[str, Mark]:
    """The personal fields of an aggregate's events. Raises BadDefinition for what cannot be one."""
    found: dict[str, Mark] = {}
    plain: dict[str, str] = {}
    for kind in kinds:
        marks = _marks(kind.type)
        for name in kind.fields:
            if name in marks:
                _check(kind, name, marks[name])
                found.setdefault(name, marks[name])
            else:
                plain.setdefault(name, kind.name)
            if found.get(name) != marks.get(name) or (name in found and name in plain):
                raise wrong(
                    kind.type,
                    f'field "{name}" is not as personal as in another event of {kinds.aggregate.__name__}.',
                    "declare it the same in both: they are one column of a topic",
                )
    if not found and _marks(kinds.aggregate):
        raise wrong(
            kinds.aggregate,
            "its state is said to be personal, and no event of it.",
            "say it of the fields of the events: the state is made of them, and sealed with them",
        )
    return found


def _marks(kind: type) -> dict[str, Mark]:
    try:
        return marks_in(kind)
    except BadSchema as error:
        raise wrong(kind, error.message, error.hint) from error


def _check(kind: EventKind, name: str, mark: Mark) -> None:
    column = kind.form.schema.field(name)
    if not (pa.types.is_string(column.type) and column.nullable):
        raise wrong(
            kind.type,
            f'field "{name}" is personal, and is None once its subject is forgotten.',
            "declare it as Personal[str | None]",
        )
    if mark.of is not None and mark.of not in kind.fields:
        raise wrong(
            kind.type, f'"{name}" is of "{mark.of}", which is no field of it.', "name the field with the id"
        )


class FieldSeal:
    """The Seal of an aggregate's events and snapshots. Thread-safe."""

    def __init__(self, marks: Mapping[str, Mark], place: str, keys: KeyRing) -> None:
        self._marks, self._place, self._keys = marks, place, keys

    def seal(self, id: str, data: Data) -> Data:
        sealed = dict(data)
        for name, mark in self._given(data).items():
            subject = self._subject(mark, id, data)
            key = self._keys.make([subject]).get(subject)
            if key is None:
                raise SubjectForgotten(self._place, column=name)
            sealed[name] = key.seal(data[name].encode(), self._place, name, comparable=mark.comparable)
        return sealed

    def open(self, id: str, data: Data) -> Data:
        given = self._given(data)
        if not given:
            return data
        tokens = {name: token for name in given if (token := Token.of(data[name]))}
        return {**data, **{name: self._opened(name, token, id, data) for name, token in tokens.items()}}

    def _opened(self, name: str, token: Token, id: str, data: Data) -> str | None:
        value = self._open(token, self._subject(self._marks[name], id, data), name)
        return None if value is None else value.decode()

    def seal_state(self, id: str, data: Data) -> Data:
        if not self._marks:
            return data
        key = self._keys.make([id]).get(id)
        if key is None:
            raise SubjectForgotten(self._place)
        return {_SEALED: key.seal(json.dumps(data).encode(), self._place, WHOLE)}

    def open_state(self, id: str, data: Data) -> Data | None:
        token = Token.of(data[_SEALED]) if data.keys() == {_SEALED} else None
        if token is None:
            return data
        opened = self._open(token, id, WHOLE)
        return None if opened is None else dict(json.loads(opened))

    def withheld(self) -> FieldSeal:
        return _Withheld(self._marks, self._place, self._keys)

    def _open(self, token: Token, subject: str, field: str) -> bytes | None:
        """None where its key was destroyed. Raises ValueError where it was not sealed for that."""
        found = self._keys.by_id([token.key])
        if token.key not in found:
            raise ValueError("the key of a personal field is not in this key store, and never was")
        key = found[token.key]
        if key is None:
            return None
        owner = self._keys.find([subject]).get(subject)
        if (token.place, token.field) != (self._place, field) or owner is None or owner.id != key.id:
            raise ValueError(f'"{field}" was sealed for another place or subject')
        return key.open(token)

    def _given(self, data: Data) -> dict[str, Mark]:
        return {name: mark for name, mark in self._marks.items() if data.get(name) is not None}

    def _subject(self, mark: Mark, id: str, data: Data) -> str:
        value = id if mark.of is None else data.get(mark.of)
        if value is None or value == "":
            raise BadRecord(
                f'"{mark.of}" names no subject.', column=mark.of, hint="fill it: something personal is of it"
            )
        return subject_of(value)


class _Withheld(FieldSeal):
    """For who may not read: no key is asked for."""

    def _open(self, token: Token, subject: str, field: str) -> bytes | None:
        return None
