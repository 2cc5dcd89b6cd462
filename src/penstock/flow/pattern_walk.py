"""Partial matches of one key after the other, event by event. `pattern` has the rules.

This is the one loop in Python: it sees only events that fit some step (with a strict step, all of them).
Events are row numbers of one table, and those of a key grow with their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from penstock.flow.expression_forms import Scalar, plain, scalar
from penstock.flow.expression_types import OWN, Ref
from penstock.flow.pattern_events import Values
from penstock.flow.pattern_plan import Pattern, Step, Taker
from penstock.flow.pattern_rows import Match

Compiled: TypeAlias = Callable[[int], Callable[[Taker], Scalar]]
_GOES_ON, _IS_DONE, _ENDS = range(3)


class Run:
    """A partial match."""

    __slots__ = ("gap", "limit_us", "taken")

    def __init__(self, taken: list[list[int]], limit_us: int, *, gap: bool) -> None:
        self.taken = taken
        self.limit_us = limit_us
        self.gap = gap  # whether an event was skipped since the last one that was taken


class Stage:
    """One step as the loop needs it."""

    def __init__(self, step: Step, number: int, *, last: bool, compiled: Compiled) -> None:
        self.least = step.least
        self.most = step.most if step.most is not None else 1 << 62
        self.strict = step.strict
        self.last = last
        self.fits = _Fits(step.takers, compiled(number))
        self.absent = _Fits(step.absences, compiled(OWN)) if step.absences else None
        # With so many events nothing can be taken any more, and nothing has to be waited for.
        self.done_at = self.most if last and not step.absences else 0


class _Fits:
    """Whether an event fits one of several takers, given what was taken before."""

    def __init__(self, takers: tuple[Taker, ...], compiled: Callable[[Taker], Scalar]) -> None:
        self.bits = sum(1 << each.number for each in takers)
        self.sure = sum(1 << each.number for each in takers if each.together is None)
        self.asked = [(1 << each.number, compiled(each)) for each in takers if each.together is not None]

    def __call__(self, row: int, fits: int, taken: list[list[int]]) -> bool:
        if fits & self.sure:
            return True
        return any(fits & bit and holds(row, taken) is True for bit, holds in self.asked)


class Walk:
    """Goes through the events of one key after the other; `matches` has what came of it."""

    def __init__(self, pattern: Pattern, values: Values) -> None:
        self._pattern = pattern
        self._plain: dict[tuple[tuple[int, ...], str], list[Any]] = {}
        self._values = values
        last = len(pattern.steps) - 1
        self._stages = [
            Stage(step, number, last=number == last, compiled=self._compiled)
            for number, step in enumerate(pattern.steps)
        ]
        self._first = self._stages[0]
        self._within_us = pattern.within_us
        self._cut_of = _cutting(pattern)
        self.matches: list[Match] = []
        self.runs: list[Run] = []  # of the present key, in the order in which they began

    @property
    def begins(self) -> int:
        """The bits of events that may begin a match."""
        return self._first.fits.bits

    def event(self, row: int, fits: int, time_us: int) -> None:
        """Shows the next event of the present key to all that it concerns."""
        if self.runs:
            if self.runs[0].limit_us < time_us:
                self.expire(time_us - 1)
            if row < self._offered(row, fits, time_us):
                return
        if self._first.fits(row, fits, []):
            run = Run([[row]], time_us + self._within_us, gap=False)
            if self._first.done_at == 1:
                self._match(run, time_us)
            else:
                self.runs.append(run)

    def expire(self, until_us: int) -> None:
        """Ends what has its limit at or before a moment, by which all events up to it have been shown."""
        while self.runs and self.runs[0].limit_us <= until_us:
            run = self.runs.pop(0)
            stage = self._stages[len(run.taken) - 1]
            if stage.last and len(run.taken[-1]) >= stage.least:
                self._match(run, run.limit_us)
            elif self._pattern.timed_out:
                self.matches.append(Match(run.taken, run.limit_us, timed_out=True))

    def _offered(self, row: int, fits: int, time_us: int) -> int:
        """Shows an event to the partial matches there are; where the last match of it cuts."""
        runs, cut = self.runs, 0
        self.runs = []
        for run in runs:
            if run.taken[0][0] < cut:
                continue
            outcome = self._advanced(run, row, fits)
            if outcome == _GOES_ON:
                self.runs.append(run)
            elif outcome == _IS_DONE:
                cut = max(cut, self._match(run, time_us))
        return cut

    def _advanced(self, run: Run, row: int, fits: int) -> int:
        taken = run.taken
        number, many = len(taken) - 1, len(taken[-1])
        stage = self._stages[number]
        if many >= stage.least and not stage.last:
            after = self._stages[number + 1]
            if not (after.strict and run.gap) and after.fits(row, fits, taken):
                taken.append([row])
                run.gap = False
                return _IS_DONE if after.done_at == 1 else _GOES_ON
        if many < stage.most and not (stage.strict and run.gap) and stage.fits(row, fits, taken):
            taken[-1].append(row)
            run.gap = False
            return _IS_DONE if stage.done_at == many + 1 else _GOES_ON
        if many >= stage.least and stage.absent is not None and stage.absent(row, fits, taken):
            return _ENDS
        run.gap = True
        return self._skipped(stage, number, many)

    def _skipped(self, stage: Stage, number: int, many: int) -> int:
        """What becomes of a partial match that did not take an event."""
        if many < stage.most and not stage.strict:
            return _GOES_ON
        if many < stage.least:
            return _ENDS
        if not stage.last:
            return _ENDS if self._stages[number + 1].strict else _GOES_ON
        return _GOES_ON if stage.absent is not None else _IS_DONE

    def _match(self, run: Run, known_us: int) -> int:
        """Records a match and drops what it cuts off; gives the first row that may begin another."""
        self.matches.append(Match(run.taken, known_us))
        cut = self._cut_of(run.taken)
        if self.runs and self.runs[0].taken[0][0] < cut:
            self.runs = [each for each in self.runs if each.taken[0][0] >= cut]
        return cut

    def _compiled(self, own: int) -> Callable[[Taker], Scalar]:
        def compiled(taker: Taker) -> Scalar:
            assert taker.together is not None
            return scalar(taker.together, lambda ref: self._leaf(ref, own))

        return compiled

    def _leaf(self, ref: Ref, own: int) -> Scalar:
        """What a condition of step `own` reads; an absence is no step, and OWN."""
        step = ref.step
        if ref.pick == "count":
            return lambda _, taken: len(taken[step]) + (step == own) if step < len(taken) else 1
        values = self._plain_of(ref)
        if step == OWN:
            return lambda row, _: values[row]
        if ref.pick == "previous":
            return lambda _, taken: values[taken[-1][-1]] if taken else None
        end = -1 if ref.pick == "last" else 0
        return lambda row, taken: values[taken[step][end] if step < len(taken) else row]

    def _plain_of(self, ref: Ref) -> list[Any]:
        where = ref.inputs, ref.column
        if where not in self._plain:
            self._plain[where] = plain(self._values.of(ref))
        return self._plain[where]


def _cutting(pattern: Pattern) -> Callable[[list[list[int]]], int]:
    step = pattern.after.step
    ways: dict[str, Callable[[list[list[int]]], int]] = {
        "no_skip": lambda _: 0,
        "skip_to_next": lambda taken: taken[0][0] + 1,
        "skip_past_last": lambda taken: taken[-1][-1] + 1,
        "skip_to_first": lambda taken: taken[step][0],
        "skip_to_last": lambda taken: taken[step][-1],
    }
    return ways[pattern.after.kind]
