"""The app's definitions, analysed before anything runs: what reads what, in which order, in which query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.flow import build as builds
from penstock.flow import history
from penstock.flow.build import Build
from penstock.flow.commit import position_of, producer_of
from penstock.flow.definition import Analysed, Definition, analyse
from penstock.flow.output import BATCHES
from penstock.flow.query import Query, columns_known, create_output, place_of
from penstock.flow.realtime_query import RealtimeQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.app.app import App


@dataclass(slots=True)
class Graph:
    """Every definition, analysed; those that others read come first."""

    app: App
    started: SparkSession | None  # None where there is nothing to analyse
    analysed: dict[str, Analysed] = field(default_factory=dict)
    _under_way: list[str] = field(default_factory=list)

    @property
    def session(self) -> SparkSession:
        assert self.started is not None
        return self.started

    def analyse(self, names: Sequence[str] = ()) -> Graph:
        for capture in self.app.captures.values():
            capture.prepare()
        for name in names or self.app.definitions:
            self._analyse(self.app.definition(name))
        return self

    def _analyse(self, definition: Definition) -> None:
        if definition.name in self.analysed:
            return
        if definition.name in self._under_way:
            circle = " → ".join([*self._under_way[self._under_way.index(definition.name) :], definition.name])
            raise definition.wrong(f"it needs itself: {circle}.", "break the circle with a topic of its own")
        self._under_way.append(definition.name)
        build = Build(self.session, self.app.log, self.app.address, before_reading=self._ready)
        written = position_of(
            self.app.log, producer_of(self.app.name, self._written_by(definition.name) or definition.name)
        )
        found = analyse(definition, build, known=columns_known(written, definition.name))
        self._under_way.pop()
        self.analysed[definition.name] = found
        self._check_free(found)
        # A change that will be refused must not have touched anything.
        same = written is None or f"{definition.name}={found.identity}" in written.identity.split()
        create_output(self.app.log, found, evolve=False, options=same)

    def _ready(self, topic: str) -> None:
        """A definition reads `topic`: if another one makes it, that one comes first."""
        if topic in self.app.definitions and topic not in self.analysed:
            # Another definition is built inside this one's build.
            with builds.suspended():
                self._analyse(self.app.definitions[topic])

    def depth(self, name: str) -> int:
        """How many definitions lie between this one and the app's topics."""
        found = self.analysed[name]
        above = [self.depth(topic) + 1 for topic in found.topics if topic in self.analysed]
        return max(above, default=0)

    def queries(self) -> list[Query]:
        """One query each, but stateless streams over the same topics share one.

        A stream that came later does not join those that have run: it begins at the beginning of the log.
        A view has a query of its own, so that it can be rebuilt.
        """
        shared: dict[tuple[object, ...], list[Analysed]] = {}
        for name, found in self.analysed.items():
            alone = found.stateful or found.output.kind == "view" or found.definition.realtime
            key = (name,) if alone else (found.topics, found.clock, self._written_by(name))
            shared.setdefault(key, []).append(found)
        return [self._query(members) for members in shared.values()]

    def query_of(self, name: str) -> Query:
        """The query that a definition runs in."""
        return next(q for q in self.queries() if any(m.definition.name == name for m in q.members))

    def _query(self, members: list[Analysed]) -> Query:
        names = sorted(member.definition.name for member in members)
        name = self._written_by(names[0]) or names[0]
        place = place_of(self.app.address, self.app.checkpoints, self.app.name, name)
        kind = RealtimeQuery if members[0].definition.realtime else Query
        return kind(self.session, self.app.log, place, members, name=name)

    def _check_free(self, found: Analysed) -> None:
        """A definition's topic has its history beside it; another topic of that name is somebody else's."""
        topics, name = self.app.log.topics(), found.output.name
        if name in topics and f"{name}{BATCHES}" not in topics:
            raise found.definition.wrong(f'there is a topic "{name}" already.', "choose another name")

    def _written_by(self, name: str) -> str | None:
        """The query whose batches are in a definition's history, None before the first."""
        last = history.last(self.app.log, f"{name}{BATCHES}")
        return last.query.split(".", maxsplit=2)[2] if last else None
