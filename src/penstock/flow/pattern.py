"""Patterns: events of one key that follow each other in a certain way.

    (ps.pattern(by="user_id")
       .first("login", logins)
       .then("purchase", purchases, where=ps.step("purchase").country != ps.step("login").country)
       .within("5 minutes")
       .emit(bought_in=ps.step("purchase").country))

**Order.** The events of all streams of the pattern are put, for each key, in the order of event time,
`_timestamp`, stream (as first named in the pattern), `_partition`, `_offset`. An event has its turn when
the watermark has reached its time, so the result does not depend on how events arrived. Late rows are taken
out before.

**Partial matches.** Every event that fits the first step begins one (at most one). At each later event it

1. takes the event for the *next* step, if its present step has taken its least number and the event fits;
2. else takes it for its present step, if that may take more (`times`, `at_least`) and the event fits;
3. else ends without a match, if the event fits a `then_not` that stands between the present step and the
   next one and the present step has taken its least number;
4. else skips it, and ends without a match if what it waits for is `contiguity="strict"`.

So each step takes the first event that fits, and an event that fits both goes to the next step. A strict
step takes only the event right after the one taken last, whichever stream of the pattern that is in; for a
repeated step that holds within the repetition too. One partial match never becomes two.

**Time.** All of a match lies within `within` of its first event; exactly on the limit still counts. Then:

- a match whose last step is `times(n)`, or a single event, is known with its last event;
- one that ends with `at_least(n)` takes all that fit until the limit, and comes out when the watermark has
  passed it; if that step is strict, already with the first event that does not fit;
- one that ends with `then_not` comes out when the watermark has passed the limit;
- all others have run out of time. `timeout()` makes rows of those, with null for what is missing, and adds
  a column that is true for them. Partial matches that ended for another reason give no row.

**After a match**, partial matches of that key that began before a certain event are dropped, and none
begins before it any more. Matches are dealt with as they are known, at one event in the order in which they
began. `after_match` says which event that is:

- `"skip_past_last"` (default): the one after the last event of the match. No two matches share an event.
- `"skip_to_next"`: the one after the first event. Later matches begin later, and may overlap.
- `"skip_to_first:NAME"`, `"skip_to_last:NAME"`: the first or last event of that step, which may then begin
  a match itself.
- `"no_skip"`: none. Every event that fits the first step gets its match, if there is one.

**State.** Events the watermark has not reached (only those that fit some step, unless a step is strict),
the partial matches and the events they took. A partial match is gone when the watermark passes its limit.
Every event of a key is shown to all its partial matches: where very many begin and few end, that is slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from penstock.clock import duration_ms
from penstock.errors import BadDefinition
from penstock.flow.build import Late
from penstock.flow.expressions import Expression, expression, matched_at
from penstock.schema import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from penstock.flow.pattern_plan import Pattern

Stream: TypeAlias = Any  # a Spark DataFrame; here only its identity counts
Contiguity: TypeAlias = Literal["relaxed", "strict"]
MATCHED_AT = "matched_at"
_POLICIES = ("skip_past_last", "skip_to_next", "no_skip", "skip_to_first:NAME", "skip_to_last:NAME")


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Several streams for one step, each with a condition of its own or none."""

    alternatives: tuple[tuple[Stream, Expression | None], ...]


def any_of(*alternatives: Stream | tuple[Stream, Expression]) -> AnyOf:
    """For a step that takes events of several streams: `ps.any_of(mails, (calls, ps.step("x").long))`."""
    if not alternatives:
        raise BadDefinition("any_of() of nothing.", hint="name the streams: any_of(mails, calls)")
    pairs = [each if isinstance(each, tuple) else (each, None) for each in alternatives]
    return AnyOf(tuple((stream, _where(condition)) for stream, condition in pairs))


@dataclass(frozen=True, slots=True)
class StepSaid:
    """One step as it was written."""

    name: str
    alternatives: tuple[tuple[Stream, Expression | None], ...]
    where: Expression | None
    absent: bool = False
    strict: bool = False
    least: int = 1
    most: int | None = 1  # None: no end
    quantified: bool = False


@dataclass(frozen=True, slots=True)
class PatternBuilder:
    """A pattern as far as it is written; each method gives a new one. Made by `pattern`."""

    by: tuple[str, ...]
    steps: tuple[StepSaid, ...] = ()
    within_us: int | None = None
    late: Late = "divert"
    policy: str = "skip_past_last"
    timed_out: str | None = None

    def first(
        self,
        name: str,
        stream: Stream | AnyOf,
        *,
        where: Expression | None = None,
        contiguity: Contiguity = "relaxed",
    ) -> PatternBuilder:
        """What begins a match. `contiguity` is about its repetition, if it has one."""
        if self.steps:
            raise BadDefinition(f'"{name}" cannot be first: "{self.steps[0].name}" is.', hint="use then()")
        return self._with(name, stream, where, strict=_is_strict(contiguity))

    def then(
        self,
        name: str,
        stream: Stream | AnyOf,
        *,
        where: Expression | None = None,
        contiguity: Contiguity = "relaxed",
    ) -> PatternBuilder:
        self._begun(f'then("{name}")')
        return self._with(name, stream, where, strict=_is_strict(contiguity))

    def then_not(
        self, name: str, stream: Stream | AnyOf, *, where: Expression | None = None
    ) -> PatternBuilder:
        """No such event before the next step; at the end of a pattern, none until `within` has passed."""
        self._begun(f'then_not("{name}")')
        return self._with(name, stream, where, absent=True)

    def times(self, number: int) -> PatternBuilder:
        """The last step takes exactly so many events."""
        return self._repeated("times", number, most=number)

    def at_least(self, number: int) -> PatternBuilder:
        """The last step takes so many events or more."""
        return self._repeated("at_least", number, most=None)

    def within(self, length: str | float) -> PatternBuilder:
        """How long after its first event a match may still go on."""
        if self.within_us is not None:
            raise BadDefinition("within() is said twice.", hint="a pattern has one limit")
        within_us = duration_ms(length) * 1_000
        if within_us <= 0:
            raise BadDefinition(f"within({length!r}) leaves no time.", hint='say within("5 minutes")')
        return replace(self, within_us=within_us)

    def after_match(self, policy: str) -> PatternBuilder:
        """Where to look on after a match; see the head of this module."""
        kind, _, name = policy.partition(":")
        if kind not in {each.partition(":")[0] for each in _POLICIES} or bool(name) != kind.startswith(
            ("skip_to_first", "skip_to_last")
        ):
            raise BadDefinition(f"after_match({policy!r}).", hint=did_you_mean(policy, _POLICIES))
        return replace(self, policy=policy)

    def timeout(self, column: str = "timed_out") -> PatternBuilder:
        """Rows for partial matches that ran out of time too; `column` is true in those."""
        return replace(self, timed_out=column)

    def emit(self, **columns: Expression) -> DataFrame:
        """The matches as rows, inside a definition: `emit(bought_in=ps.step("purchase").country)`.

        Their columns: those of `by`, these, what `timeout` adds, and `matched_at`, their event time.
        """
        from penstock.flow.pattern_stream import matches

        if MATCHED_AT in columns:
            raise BadDefinition(f'"{MATCHED_AT}" comes out by itself.', hint="leave it out")
        return matches(self.defined(**columns, **{MATCHED_AT: matched_at()}))

    def defined(self, **columns: Expression) -> Definition:
        """The pattern as it stands, with the columns of a match."""
        self._begun("emit()")
        if self.within_us is None:
            raise BadDefinition(
                "a pattern without within() would keep its partial matches forever.",
                hint='say how long a match may take: .within("5 minutes")',
            )
        return Definition(
            self, self.within_us, tuple((name, expression(value)) for name, value in columns.items())
        )

    def _with(
        self,
        name: str,
        stream: Stream | AnyOf,
        where: Expression | None,
        *,
        absent: bool = False,
        strict: bool = False,
    ) -> PatternBuilder:
        if not name:
            raise BadDefinition(f"{name!r} is no name of a step.", hint='say then("purchase", purchases)')
        if name in {each.name for each in self.steps}:
            raise BadDefinition(f'there are two steps "{name}".', hint="give each its own name")
        if stream is None or isinstance(stream, Expression):
            raise BadDefinition(f'step "{name}" has no stream.', hint=f'say then("{name}", purchases)')
        among = stream.alternatives if isinstance(stream, AnyOf) else ((stream, None),)
        said = StepSaid(name, among, _where(where), absent=absent, strict=strict)
        return replace(self, steps=(*self.steps, said))

    def _begun(self, asked: str) -> None:
        if not self.steps:
            raise BadDefinition(f"{asked} comes before first().", hint='begin with .first("login", logins)')

    def _repeated(self, method: str, number: int, *, most: int | None) -> PatternBuilder:
        self._begun(f"{method}()")
        *before, last = self.steps
        if type(number) is not int or number < 1:
            raise BadDefinition(f"{method}({number!r}).", hint="a step takes at least one event")
        if last.absent:
            raise BadDefinition(
                f'{method}() after then_not("{last.name}"): what must not be is not counted.',
                hint=f"put {method}() right after the step that is repeated",
            )
        if last.quantified:
            raise BadDefinition(f'step "{last.name}" is counted twice.', hint="use times() or at_least()")
        return replace(self, steps=(*before, replace(last, least=number, most=most, quantified=True)))


@dataclass(frozen=True, slots=True)
class Definition:
    """A whole pattern. To run it, `compiled` needs the schemas of its `streams` and their time columns."""

    said: PatternBuilder
    within_us: int
    columns: tuple[tuple[str, Expression], ...]
    streams: tuple[Stream, ...] = field(init=False)  # each once, as first named: input i is streams[i]

    def __post_init__(self) -> None:
        found: list[Stream] = []
        for step in self.said.steps:
            found += [each for each, _ in step.alternatives if not any(each is one for one in found)]
        object.__setattr__(self, "streams", tuple(found))

    def input_of(self, stream: Stream) -> int:
        return next(number for number, each in enumerate(self.streams) if each is stream)

    def compiled(self, schemas: Sequence[pa.Schema], times: Sequence[str]) -> Pattern:
        """What the kernel runs. Raises BadDefinition for steps, columns and types that do not fit."""
        from penstock.flow.pattern_compile import compiled

        return compiled(self, schemas, times)


def pattern(*, by: str | Sequence[str], late: Late = "divert") -> PatternBuilder:
    """Events that follow each other, among those with the same `by`; the streams all have these columns.

    >>> from penstock.flow.expressions import step
    >>> failures = pattern(by="user").first("fail", "logins").times(3).within("5 minutes")
    >>> failures.defined(since=step("fail").first().at).within_us
    300000000
    """
    names = (by,) if isinstance(by, str) else tuple(by)
    if not names:
        raise BadDefinition("a pattern is about the events of a key.", hint='say pattern(by="user_id")')
    return PatternBuilder(names, late=late)


def _is_strict(contiguity: str) -> bool:
    if contiguity not in {"relaxed", "strict"}:
        raise BadDefinition(f"contiguity={contiguity!r}.", hint='say "relaxed" or "strict"')
    return contiguity == "strict"


def _where(condition: object) -> Expression | None:
    if condition is None or isinstance(condition, Expression):
        return condition
    raise BadDefinition(
        f"where={condition!r} is no condition.",
        hint='write one: where=ps.step("x").amount > 100',
    )
