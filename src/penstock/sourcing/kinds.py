"""The kinds of events that an aggregate has, by the name and version under which they are stored.

Stored events name no module and no class path: a class may move, and nothing is imported because stored bytes
say so. A kind is known when a handler under `@applies` takes it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from penstock.errors import BadDefinition, BadSchema
from penstock.log.settings import check_name
from penstock.schema import RecordSchema, ddl_of
from penstock.sourcing.aggregate import APPLIES, Aggregate
from penstock.sourcing.data import DataForm

E = TypeVar("E", bound=type)

_KIND = "__penstock_event__"
ENVELOPE = RecordSchema.of(
    "aggregate_id STRING NOT NULL, version BIGINT NOT NULL, event STRING NOT NULL, "
    "event_version INT NOT NULL, at TIMESTAMP NOT NULL, by STRING, command_id STRING NOT NULL, "
    "sequence BIGINT NOT NULL"
)
"""What every published event has besides its own fields."""


@dataclass(frozen=True, slots=True)
class _Named:
    name: str | None
    version: int
    was: tuple[str, ...]


def event(*, version: int = 1, name: str | None = None, was: str | tuple[str, ...] = ()) -> Callable[[E], E]:
    """Say more about an event than its class does.

    `version`: of its fields. From 2 on the class has a static method `upcast(data, version)`, which is given
    the JSON data of an older version and returns that of the next. `name`: under which it is stored (default:
    the class's), and `was`: names under which it was stored before.
    """

    def describe(kind: E) -> E:
        setattr(kind, _KIND, _Named(name, version, (was,) if isinstance(was, str) else tuple(was)))
        return kind

    return describe


@dataclass(frozen=True, slots=True)
class EventKind:
    """One kind of event of an aggregate."""

    name: str
    version: int
    form: DataForm
    handler: str  # the method that applies it
    was: tuple[str, ...] = ()

    @property
    def type(self) -> type:
        return self.form.kind

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(each.name for each in dataclasses.fields(self.type))

    def upcast(self, data: dict[str, Any], version: int) -> dict[str, Any]:
        """Data of an older version as that of this one."""
        for older in range(version, self.version):
            data = self.type.upcast(data, older)  # type: ignore[attr-defined]
        return data


@dataclass(frozen=True, slots=True)
class Kinds:
    """An aggregate class as it is understood: its events and its state."""

    aggregate: type[Aggregate]
    by_type: Mapping[type, EventKind]
    by_name: Mapping[str, EventKind]  # older names too
    state: DataForm

    @classmethod
    def of(cls, aggregate: type[Aggregate]) -> Kinds:
        """Raises BadDefinition, with the file and line of the class, for what cannot work."""
        _check_state(aggregate)
        by_type: dict[type, EventKind] = {}
        by_name: dict[str, EventKind] = {}
        for handler in _handlers(aggregate):
            kind = _kind_of(aggregate, handler)
            for name in (kind.name, *kind.was):
                if name in by_name:
                    raise wrong(aggregate, f'event "{name}" is applied by two methods.', "keep one of them")
                by_name[name] = kind
            by_type[kind.type] = kind
        if not by_type:
            raise wrong(aggregate, "it applies no event.", "say with @applies what an event does to it")
        return cls(aggregate, by_type, by_name, _form(aggregate))

    def __iter__(self) -> Iterator[EventKind]:
        return iter(self.by_type.values())

    @property
    def snapshot_form(self) -> str:
        """Snapshots of another form of the state are not found under it."""
        told = f"{self.state.schema.ddl}|{self.aggregate.state_version}"
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    @property
    def columns(self) -> RecordSchema:
        """Those of a published event: the envelope, and every field that an event has."""
        found = {column.name: column for column in ENVELOPE.arrow}
        for kind in self:
            for column in kind.form.schema.arrow if dataclasses.fields(kind.type) else ():
                nullable = column.with_nullable(True)
                other = found.setdefault(column.name, nullable)
                if other != nullable:
                    self._refuse_field(kind, column, other)
        return RecordSchema(pa.schema(found.values()))

    def _refuse_field(self, kind: EventKind, column: Any, other: Any) -> None:
        if column.name in ENVELOPE.names:
            told = f'every published event has a column "{column.name}" already.'
        else:
            types = f"{ddl_of(column.type)} here and {ddl_of(other.type)} in another event"
            told = f'field "{column.name}" is {types} of {self.aggregate.__name__}.'
        raise wrong(kind.type, told, "give the field another name: each becomes a column of one topic")


def wrong(kind: type, problem: str, hint: str) -> BadDefinition:
    """With the place of the class, where that can be told."""
    try:
        file, line = inspect.getsourcefile(kind), inspect.getsourcelines(kind)[1]
    except (OSError, TypeError):
        file, line = None, None
    return BadDefinition(f"{kind.__qualname__}: {problem}", hint=hint, file=file, line=line)


def _check_state(aggregate: Any) -> None:
    if not (isinstance(aggregate, type) and issubclass(aggregate, Aggregate)):
        raise BadDefinition(
            f"{aggregate!r} is no aggregate.", hint="subclass ps.sourcing.Aggregate, as a dataclass"
        )
    if not dataclasses.is_dataclass(aggregate):
        raise wrong(aggregate, "it is no dataclass.", "put @dataclass above it, and give fields their types")
    if aggregate.__dataclass_params__.frozen:
        raise wrong(aggregate, "its state cannot change: it is frozen.", "leave frozen=True to the events")
    for each in dataclasses.fields(aggregate):
        if each.name in ("id", "version", "changed_at", "state_version") or each.name.startswith("_"):
            raise wrong(aggregate, f'field "{each.name}" is taken.', "give it another name")
        if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING:
            raise wrong(
                aggregate, f'field "{each.name}" has no default.', "say what it is before the first event"
            )


def _handlers(aggregate: type[Aggregate]) -> list[Callable[..., None]]:
    found = [member for _, member in inspect.getmembers(aggregate) if getattr(member, APPLIES, False)]
    return sorted(found, key=lambda handler: handler.__code__.co_firstlineno)


def _kind_of(aggregate: type[Aggregate], handler: Callable[..., None]) -> EventKind:
    names = list(inspect.signature(handler).parameters)[1:]
    try:
        hints = typing.get_type_hints(handler)
    except NameError as error:
        hint = "define events before the aggregate, at the top level of a module"
        raise wrong(aggregate, f"{handler.__name__}: {error}.", hint) from error
    found = hints.get(names[0]) if len(names) == 1 else None
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        raise wrong(
            aggregate,
            f"{handler.__name__} does not say which event it applies.",
            "give it one argument, annotated with a dataclass: def _added(self, event: ItemAdded)",
        )
    if not found.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise wrong(found, "an event can be changed.", "say @dataclass(frozen=True)")
    return _described(found, handler.__name__)


def _described(found: type, handler: str) -> EventKind:
    named: _Named = found.__dict__.get(_KIND) or _Named(None, 1, ())
    name = named.name or found.__name__
    check_name("event", name)
    if named.version > 1 and not callable(getattr(found, "upcast", None)):
        raise wrong(
            found,
            f"version {named.version} cannot read what was stored before.",
            "give it a static method: def upcast(data, version), which returns the next version's data",
        )
    return EventKind(name, named.version, _form(found), handler, named.was)


def _form(kind: type) -> DataForm:
    try:
        return DataForm.of(kind)
    except BadSchema as error:
        raise wrong(kind, error.message, error.hint) from error
