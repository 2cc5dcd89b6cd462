"""From a pattern as it was written to one with types and numbers; here is what is refused, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import BadDefinition
from penstock.flow.aggregates import ARRIVAL
from penstock.flow.expression_types import OWN, TIME, Applied, Bound, Ref, bound, condition, refs
from penstock.flow.expressions import Expression, Field, conjuncts
from penstock.flow.pattern_plan import After, Input, Pattern, Step, Taker
from penstock.schema import did_you_mean

if TYPE_CHECKING:
    from penstock.flow.pattern import Definition, StepSaid

_TAKERS_MAX = 62  # a bit for each in one 64-bit number


def compiled(definition: Definition, schemas: Sequence[pa.Schema], times: Sequence[str]) -> Pattern:
    """Raises BadDefinition for steps, columns and types that do not fit together."""
    if not len(schemas) == len(times) == len(definition.streams):
        raise BadDefinition(
            f"{len(schemas)} schemas and {len(times)} times for {len(definition.streams)} streams.",
            hint="give one of each for every stream, in the order of `streams`",
        )
    _check_columns(definition, schemas, times)
    plan = _Plan(definition, schemas)
    steps, emitted = plan.steps(), plan.emitted()
    used = plan.used
    inputs = []
    for number, (schema, time) in enumerate(zip(schemas, times, strict=True)):
        names = [*definition.said.by, time, *ARRIVAL, *sorted(used[number])]
        inputs.append(Input(pa.schema([schema.field(name) for name in dict.fromkeys(names)]), time))
    return Pattern(
        by=definition.said.by,
        inputs=tuple(inputs),
        steps=steps,
        within_us=definition.within_us,
        after=plan.after(),
        emitted=emitted,
        timed_out=definition.said.timed_out,
    )


def _check_columns(definition: Definition, schemas: Sequence[pa.Schema], times: Sequence[str]) -> None:
    by = definition.said.by
    for schema, time in zip(schemas, times, strict=True):
        for name in (*by, time, *ARRIVAL):
            if name not in schema.names:
                raise BadDefinition(f'there is no column "{name}".', hint=did_you_mean(name, schema.names))
        if not pa.types.is_timestamp(schema.field(time).type):
            raise BadDefinition(
                f'time "{time}" is {schema.field(time).type}.', hint="an event time is a TIMESTAMP"
            )
        for name in by:
            if pa.types.is_nested(schema.field(name).type):
                raise BadDefinition(
                    f'key "{name}" is {schema.field(name).type}.', hint="take a part of it as the key"
                )
            types = schemas[0].field(name).type, schema.field(name).type
            if types[0] != types[1]:
                raise BadDefinition(
                    f'key "{name}" is {types[0]} in one stream and {types[1]} in another.',
                    hint="make both the same type before the pattern",
                )


class _Plan:
    """Numbers for names while a pattern is compiled."""

    def __init__(self, definition: Definition, schemas: Sequence[pa.Schema]) -> None:
        self._definition = definition
        self._schemas = schemas
        self.said = definition.said.steps
        self.taking = [each for each in self.said if not each.absent]
        self._takers = 0
        self.used: list[set[str]] = [set() for _ in schemas]  # columns of each input

    def steps(self) -> tuple[Step, ...]:
        found: list[Step] = []
        for place, said in enumerate(self.said):
            takers = tuple(self._takers_of(place, said))
            if said.absent:
                found[-1] = replace(found[-1], absences=(*found[-1].absences, *takers))
            else:
                found.append(Step(said.name, takers, said.least, said.most, said.strict, ()))
        if self._takers > _TAKERS_MAX:
            raise BadDefinition(f"a pattern of {self._takers} conditions.", hint=f"at most {_TAKERS_MAX}")
        return tuple(found)

    def emitted(self) -> tuple[tuple[str, Bound], ...]:
        taken = {*self._definition.said.by}
        for name in [name for name, _ in self._definition.columns] + [self._definition.said.timed_out or ""]:
            if name in taken:
                raise BadDefinition(
                    f'column "{name}" would be there twice.',
                    hint="the columns of `by` come out by themselves; name the other otherwise",
                )
            taken.add(name)
        scope = _Scope(self, None, ())
        return tuple((name, bound(value, scope.find)) for name, value in self._definition.columns)

    def after(self) -> After:
        kind, _, name = self._definition.said.policy.partition(":")
        if not name:
            return After(kind)
        names = [each.name for each in self.taking]
        if name not in names:
            raise BadDefinition(
                f'after_match("{kind}:{name}"): no step "{name}" takes events.',
                hint=did_you_mean(name, names),
            )
        if kind == "skip_to_first" and name == names[0]:
            raise BadDefinition(
                f'after_match("{kind}:{name}") goes back to where the match began.', hint='say "skip_to_next"'
            )
        return After(kind, names.index(name))

    def _takers_of(self, place: int, said: StepSaid) -> Iterator[Taker]:
        whole = tuple(self._definition.input_of(stream) for stream, _ in said.alternatives)
        for stream, own in said.alternatives:
            number = self._definition.input_of(stream)
            of_this = _Scope(self, place, (number,))
            of_all = _Scope(self, place, whole)
            found = [condition(each, of_this.find) for each in _parts(own)]
            # Said of the step as a whole, so it has to be right for every one of its streams.
            for each in _parts(said.where):
                condition(each, of_all.find)
                found.append(condition(each, of_this.find))
            alone = [each for each in found if all(_is_current(ref) for ref in refs(each))]
            together = [each for each in found if not all(_is_current(ref) for ref in refs(each))]
            yield Taker(self._takers, number, _all_of(alone), _all_of(together))
            self._takers += 1

    def inputs_of(self, said: StepSaid) -> tuple[int, ...]:
        return tuple(sorted({self._definition.input_of(stream) for stream, _ in said.alternatives}))

    def type_of(self, field: Field, inputs: tuple[int, ...]) -> pa.DataType:
        """The column's type, the same in all these inputs."""
        types = {}
        for number in inputs:
            schema = self._schemas[number]
            if field.column not in schema.names:
                raise BadDefinition(
                    f'{field}: there is no column "{field.column}".',
                    hint=did_you_mean(field.column, schema.names),
                )
            types[schema.field(field.column).type] = number
            self.used[number].add(field.column)
        if len(types) > 1:
            raise BadDefinition(
                f"{field} is {' in one stream and '.join(map(str, types))} in another.",
                hint="make it one type before the pattern",
            )
        return next(iter(types))

    def number_of(self, name: str) -> int:
        return [each.name for each in self.taking].index(name)


class _Scope:
    """What an expression may speak of: in the condition of one step, or (`place` None) in `emit`."""

    def __init__(self, plan: _Plan, place: int | None, own: tuple[int, ...]) -> None:
        self._plan, self._place, self._own = plan, place, own

    def find(self, field: Field) -> Ref:
        if field.pick == "matched_at":
            if self._place is not None:
                raise BadDefinition("matched_at() in a condition.", hint="it is known in emit() only")
            return Ref(OWN, "matched_at", (), "", TIME)
        said = self._step(field)
        own = self._place is not None and said is self._plan.said[self._place]
        if field.pick == "previous":
            return self._previous(field, said, own=own)
        if field.pick == "collect" and self._place is not None:
            raise BadDefinition(f"{field} in a condition.", hint="a list is for emit() only")
        if own and field.pick in {"only", "last"} and not (said.absent and field.pick == "last"):
            return Ref(OWN, "only", self._own, field.column, self._plan.type_of(field, self._own))
        return self._ref(field, said, own=own)

    def _ref(self, field: Field, said: StepSaid, *, own: bool) -> Ref:
        if said.absent:
            raise BadDefinition(f"{field}: an absence has one event at most.", hint="name its column alone")
        if field.pick == "only" and not own and said.most != 1:
            raise BadDefinition(
                f'{field}: step "{said.name}" takes several events.',
                hint='say which one: .first() or .last(), or .collect("column") for all',
            )
        number = self._plan.number_of(said.name)
        if field.pick == "count":
            return Ref(number, "count", (), "", pa.int64())
        # Also in its own condition: an earlier event of the step may have come from another of its streams.
        inputs = self._plan.inputs_of(said)
        type = self._plan.type_of(field, inputs)
        if field.pick == "collect":
            type = pa.list_(pa.field("element", type))
        return Ref(number, field.pick, inputs, field.column, type)

    def _previous(self, field: Field, said: StepSaid, *, own: bool) -> Ref:
        if not own or said.absent:
            raise BadDefinition(
                f"{field} is known in the condition of that step only.", hint="use .first() or .last()"
            )
        number = self._plan.number_of(said.name)
        before = [self._plan.taking[number - 1]] if number else []
        among = [*before, *([said] if said.most != 1 else [])]
        if not among:
            raise BadDefinition(f"{field}: nothing comes before it.", hint="it is the first step")
        inputs = tuple(sorted({each for one in among for each in self._plan.inputs_of(one)}))
        return Ref(number, "previous", inputs, field.column, self._plan.type_of(field, inputs))

    def _step(self, field: Field) -> StepSaid:
        every = self._plan.said
        places = {each.name: place for place, each in enumerate(every)}
        if field.step not in places:
            raise BadDefinition(f'there is no step "{field.step}".', hint=did_you_mean(field.step, places))
        place = places[field.step]
        if self._place is not None and place > self._place:
            raise BadDefinition(
                f'{field}: step "{field.step}" comes after "{every[self._place].name}".',
                hint=f'move the condition to "{field.step}"',
            )
        if every[place].absent and place != self._place:
            raise BadDefinition(
                f'{field}: "{field.step}" is what must not happen, so it has no event.',
                hint="speak of a step of first() or then()",
            )
        return every[place]


def _parts(said: Expression | None) -> list[Expression]:
    return [] if said is None else conjuncts(said)


def _is_current(ref: Ref) -> bool:
    return ref.step == OWN


def _all_of(conditions: list[Bound]) -> Bound | None:
    if not conditions:
        return None
    whole = conditions[0]
    for each in conditions[1:]:
        whole = Applied("&", (whole, each), pa.bool_())
    return whole
