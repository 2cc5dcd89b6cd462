"""What topics are declared with: a compacted topic of ours, since Kafka has no place for it.

A topic of the cluster that is not in there is one of bytes, until it is created here with the schema that it
should be read by.

All see them in one order, which decides: a declaration counts if nothing else is declared by then, if it is
no older version of that, or if it says that it replaces that. So of several creators one succeeds. What does
not count must not stay the last one of its topic, or compaction would leave it alone: whoever wrote it writes
again what counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from penstock.errors import Contended, TopicExists
from penstock.kafka.clients import Clients
from penstock.kafka.records import Outgoing
from penstock.kafka.table import Table
from penstock.kafka.writing import Writing
from penstock.log.settings import TopicSettings

SCHEMAS = "_penstock_schemas"
_REPLACES = "replaces"  # the id of what was declared before


class Declarations:
    """Thread-safe."""

    def __init__(self, clients: Clients, writing: Callable[[], Writing]) -> None:
        self._writing = writing
        self._table = Table(clients, SCHEMAS, partitions=1, counts=counts)
        self._parsed: dict[str, tuple[bytes, TopicSettings]] = {}
        self.read()

    def read(self) -> None:
        """Know what is declared by now."""
        self._table.read()

    def known(self, name: str, *, anew: bool = False) -> TopicSettings | None:
        stored = (self._table.read() if anew else self._table.known()).get(name)
        if stored is None:
            return None
        before = self._parsed.get(name)
        if before is None or before[0] != stored:
            before = self._parsed[name] = stored, _settings(stored)
        return before[1]

    def create(self, settings: TopicSettings, *, instead_of: TopicSettings | None) -> None:
        """Raises TopicExists if something else is declared by now."""
        self._write(settings.name, _written(settings, instead_of))
        known = self.known(settings.name)
        if known is None or known.id != settings.id:
            raise TopicExists(settings.name)

    def change(self, settings: TopicSettings) -> None:
        """Raises Contended if it was changed, or created anew, meanwhile."""
        self._write(settings.name, _written(settings))
        if self.known(settings.name) != settings:
            raise Contended(f'topic "{settings.name}" was changed by another just now.', hint="try again")

    def forget(self, name: str) -> None:
        self._write(name, None)

    def _write(self, name: str, value: bytes | None) -> None:
        """And know everything up to it."""
        ranges = self._writing().send(SCHEMAS, iter([(0, Outgoing(name.encode(), value))]))
        counted = self._table.read(until={0: ranges[0][1]}).get(name)
        if counted is not None and name in self._table.void:
            self._write(name, counted)

    def close(self) -> None:
        self._table.close()


def counts(before: bytes, after: bytes) -> bool:
    """Whether a declaration counts that comes after another one of the same topic."""
    known, new = json.loads(before), json.loads(after)
    if known["id"] == new["id"]:
        return bool(known["version"] <= new["version"])
    return bool(known["id"] == new.get(_REPLACES))


def _written(settings: TopicSettings, before: TopicSettings | None = None) -> bytes:
    return json.dumps(settings.to_json() | ({_REPLACES: before.id} if before else {})).encode()


def _settings(stored: bytes) -> TopicSettings:
    plain = json.loads(stored)
    plain.pop(_REPLACES, None)
    found = TopicSettings.from_json(plain)
    return replace(found, format=found.format or "json")
