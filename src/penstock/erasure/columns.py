"""The personal columns of a topic: sealed when they are stored, revealed to who asks and has the keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import pyarrow as pa

from penstock.erasure.cipher import Key, Token
from penstock.erasure.keys import KeyRing, subject_of
from penstock.errors import BadOption, BadRecord, BadSchema, SealBroken, SubjectForgotten
from penstock.schema import ArrowArray, RecordSchema, ddl_of, did_you_mean

OnForgotten = Literal["refuse", "blank"]
"""Of a record whose subject was forgotten, nothing is stored, or all but what is personal."""


@dataclass(frozen=True, slots=True)
class PersonalColumn:
    """A column whose values only the key of its record's subject opens.

    `comparable`: equal values of one subject look the same, so that they can be grouped and joined. That
    shows everybody which records of a subject have the same.
    """

    column: str
    subject: str  # the column that names the subject; may be the same one
    comparable: bool = False


Columns = tuple[PersonalColumn, ...]


def declared(personal: object, comparable: object = ()) -> Columns:
    """Out of `personal={"email": "customer_id"}, comparable=["email"]`."""
    if not isinstance(personal, Mapping) or not all(isinstance(n, str) for p in personal.items() for n in p):
        raise BadOption(
            "personal= names no columns.",
            hint='say which are personal, and which one names the subject: {"email": "customer_id"}',
        )
    several = isinstance(comparable, Iterable) and not isinstance(comparable, str)
    named = [str(column) for column in cast("Iterable[object]", comparable if several else [comparable])]
    for column in named:
        if column not in personal:
            hint = did_you_mean(column, personal)
            raise BadOption(f'"{column}" is comparable, but not personal.', hint=hint)
    return tuple(PersonalColumn(column, subject, column in named) for column, subject in personal.items())


def check(columns: Columns, schema: RecordSchema, key: Sequence[str]) -> None:
    """Raises BadSchema or BadOption for columns that cannot be personal."""
    by_name = {each.column: each for each in columns}
    for each in columns:
        _check_type(schema, each)
        if schema.field(each.subject).name in by_name and each.subject != each.column:
            raise BadSchema(
                f'"{each.subject}" names the subject of "{each.column}" and is personal itself.',
                hint="name subjects by an id that says nothing about them",
            )
        if each.column in key and not (each.comparable and {each.subject} <= {each.column, *key}):
            raise BadOption(
                f'"{each.column}" is a key and personal: records of one key would not be found together.',
                hint=f'say comparable=["{each.column}"], and name a subject that is in the key, as itself',
            )


def _check_type(schema: RecordSchema, each: PersonalColumn) -> None:
    field, subject = schema.field(each.column), schema.field(each.subject).type
    if not (pa.types.is_string(field.type) or pa.types.is_binary(field.type)):
        raise BadSchema(
            f'"{each.column}" is personal and {ddl_of(field.type)}: what is stored of it is text.',
            hint="declare it as STRING or BINARY, and write numbers and dates as text",
        )
    if not field.nullable:
        raise BadSchema(
            f'"{each.column}" is personal and NOT NULL: of a forgotten subject, readers find null there.',
            hint='leave NOT NULL out; in a dataclass, write "str | None"',
        )
    if not (pa.types.is_integer(subject) or pa.types.is_string(subject)):
        raise BadSchema(
            f'"{each.subject}" names the subject of "{each.column}" and is {ddl_of(subject)}.',
            hint="subjects are named by STRING or whole numbers",
        )


def check_unchanged(before: Columns, after: Columns, schema: RecordSchema) -> None:
    """Raises BadOption where a column that there was before became personal, or is no more what it was."""
    changed = {each.column for each in set(before) ^ set(after) if each.column in schema.names}
    if changed:
        raise BadOption(
            f"{', '.join(sorted(changed))}: what is stored cannot become personal, or cease to be.",
            hint="create a new topic, and copy the records",
        )


# Sealing ----------------------------------------------------------------------------------------------


def seal(
    batch: pa.RecordBatch, columns: Columns, *, place: str, keys: KeyRing, on_forgotten: OnForgotten
) -> pa.RecordBatch:
    """The batch with its personal columns sealed. Raises SubjectForgotten, or BadRecord without a subject."""
    names = batch.schema.names
    present = [
        each for each in columns if each.column in names and len(batch) > batch.column(each.column).null_count
    ]
    if not present:
        return batch
    subjects = {each.subject: batch.column(each.subject).to_pylist() for each in present}
    ring = keys.make({_subject(value) for values in subjects.values() for value in values if _names(value)})
    sealed = {
        each.column: _sealed(
            each, batch.column(each.column), subjects[each.subject], ring, place, on_forgotten
        )
        for each in present
    }
    arrays = [sealed.get(name, batch.column(name)) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def _sealed(
    each: PersonalColumn,
    values: ArrowArray,
    subjects: list[Any],
    ring: Mapping[str, Key],
    place: str,
    on_forgotten: OnForgotten,
) -> ArrowArray:
    found: list[str | None] = []
    clear = values.cast(pa.binary()).to_pylist()
    for row, (value, subject) in enumerate(zip(clear, subjects, strict=True)):
        if value is None:
            found.append(None)
            continue
        if not _names(subject):
            raise BadRecord(
                f'row {row}, column "{each.column}": it is personal, and "{each.subject}" names no subject.',
                row=row, column=each.subject, hint="fill it, or leave the personal column empty",
            )  # fmt: skip
        key = ring.get(_subject(subject))
        if key is None and on_forgotten == "refuse":
            raise SubjectForgotten(place, row=row, column=each.column)
        found.append(_sealed_once(value, key, place, each) if key else None)
    return pa.array(found, pa.string()).cast(values.type)


def _sealed_once(value: bytes, key: Key, place: str, each: PersonalColumn) -> str:
    """What is sealed for there already, with that key, stays as it is: an outbox is given it so."""
    token = Token.of(value)
    if (
        token is not None
        and (token.key, token.place, token.field) == (key.id, place, each.column)
        and token.is_comparable == each.comparable
        and key.opens(token)
    ):
        return value.decode()
    return key.seal(value, place, each.column, comparable=each.comparable)


def seal_anyhow(record: Mapping[str, Any], columns: Columns, *, place: str, keys: KeyRing) -> dict[str, Any]:
    """Plain data of no certain form, with its personal columns sealed; null where that cannot be."""
    sealed = dict(record)
    for each in columns:
        value, subject = record.get(each.column), record.get(each.subject)
        try:
            named = subject_of(subject)
        except BadOption:
            sealed[each.column] = None
            continue
        text = value if isinstance(value, str) else json.dumps(value)
        key = keys.make([named]).get(named) if value is not None else None
        sealed[each.column] = _sealed_once(text.encode(), key, place, each) if key else None
    return sealed


def check_sealed(batch: pa.RecordBatch, columns: Columns, *, place: str) -> None:
    """Raises BadRecord where something personal is not sealed for its column."""
    for each in columns:
        values = batch.column(each.column).cast(pa.binary()).to_pylist()
        for row, value in enumerate(values):
            token = None if value is None else Token.of(value)
            if value is not None and (token is None or (token.place, token.field) != (place, each.column)):
                raise BadRecord(
                    f'row {row}, column "{each.column}": it is personal, and not sealed for this topic.',
                    row=row, column=each.column, hint="append it in clear to the topic itself",
                )  # fmt: skip


def _names(subject: object) -> bool:
    return subject is not None and subject != ""


def _subject(value: object) -> str:
    try:
        return subject_of(value)
    except BadOption as error:
        raise BadRecord(error.message, hint=error.hint) from None


# Revealing --------------------------------------------------------------------------------------------


def reveal(
    batch: pa.RecordBatch,
    columns: Columns,
    *,
    place: str,
    keys: KeyRing,
    forgotten: str | None,
    broken: Callable[[int, str, str], Exception],
) -> pa.RecordBatch:
    """The batch with its personal columns opened; `forgotten` where the key is no more.

    Raises what `broken` makes of row, column and reason, for a value that was not sealed there and for that
    subject.
    """
    arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
    for each in columns:
        if each.column not in arrays:  # the topic got it after the batch was read
            continue
        stored = batch.column(each.column)
        tokens = [_token(value) for value in stored.cast(pa.binary()).to_pylist()]
        ring = keys.by_id({token.key for token in tokens if isinstance(token, Token)})
        owners = (
            _owners(batch.column(each.subject).to_pylist(), keys) if each.subject != each.column else None
        )
        found: list[bytes | None] = []
        for row, token in enumerate(tokens):
            owner = None if owners is None else owners[row]
            try:
                found.append(_revealed(token, ring, (place, each.column), owner, forgotten))
            except ValueError as error:
                raise broken(row, each.column, str(error)) from None
        arrays[each.column] = pa.array(found, pa.binary()).cast(stored.type)
    return pa.RecordBatch.from_arrays(list(arrays.values()), schema=batch.schema)


def reveal_named(table: pa.Table, names: Sequence[str], keys: KeyRing, *, forgotten: str | None) -> pa.Table:
    """A table derived from topics, with what is sealed in some of its columns opened, wherever it is from."""
    for name in names:
        if name not in table.column_names:
            raise BadOption(f'there is no column "{name}".', hint=did_you_mean(name, table.column_names))
        at, column = table.column_names.index(name), table.column(name)
        if not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
            raise BadOption(f'nothing is sealed in "{name}".', hint="name columns of text or bytes")
        tokens = [_token(value) for value in column.cast(pa.binary()).to_pylist()]
        ring = keys.by_id({token.key for token in tokens if isinstance(token, Token)})
        found = [
            token if not isinstance(token, Token) else _opened(token, ring, forgotten) for token in tokens
        ]
        table = table.set_column(at, table.schema.field(at), pa.array(found, pa.binary()).cast(column.type))
    return table


def _opened(token: Token, ring: Mapping[bytes, Key | None], forgotten: str | None) -> bytes | None:
    try:
        return _revealed(token, ring, (token.place, token.field), None, forgotten)
    except ValueError as error:
        raise SealBroken(token.place, column=token.field, reason=str(error)) from None


def _owners(subjects: list[Any], keys: KeyRing) -> list[bytes]:
    """Of each record, the id of its subject's key; empty where that has none, or none any more."""
    names = ["" if subject is None else str(subject) for subject in subjects]
    found = keys.find({name for name in names if name})
    return [found[name].id if name in found else b"" for name in names]


def _token(value: bytes | None) -> Token | bytes | None:
    return None if value is None else Token.of(value) or value


def _revealed(
    token: Token | bytes | None,
    ring: Mapping[bytes, Key | None],
    where: tuple[str, str],
    owner: bytes | None,
    forgotten: str | None,
) -> bytes | None:
    if token is None:
        return None
    if isinstance(token, bytes):
        raise ValueError("it is not sealed")
    if token.key not in ring:
        raise ValueError("its key is not in this key store, and never was")
    key = ring[token.key]
    if key is None:
        return None if forgotten is None else forgotten.encode()
    if (token.place, token.field) != where or owner not in (None, key.id):
        raise ValueError("it was sealed for another place or subject")
    return key.open(token)
