"""Records delivered to somebody who keeps no offset: a web server, a mail server.

At least once: the position is noted after a delivery was taken, so one that was cut off is made again,
with the same records and the same key. What is refused for good, or cannot be delivered for too long,
is put into the topic `<name>.dead` with the reason, and the next one has its turn.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from penstock.errors import BadOption, Contended, Unreachable
from penstock.follow.changes import DELETE, PROGRESS, UPSERT
from penstock.follow.positions import Positions
from penstock.follow.store import Progress, Watch, check_place, unwatched
from penstock.follow.table import TableSpec
from penstock.log.decode import decode
from penstock.log.json_rows import to_json
from penstock.log.log import Log

DEAD = ".dead"
_DEAD_COLUMNS = (
    "key STRING NOT NULL, target STRING NOT NULL, reason STRING NOT NULL, partition INT NOT NULL, "
    "offset BIGINT NOT NULL, op STRING, row STRING NOT NULL"
)
_CHUNK = 100  # so that a follower that is told to stop does so soon


@dataclass(frozen=True, slots=True)
class Message:
    """One record on its way."""

    topic: str
    partition: int
    offset: int
    time: str  # when it was appended
    op: str | None  # of a view or a table: "u" for a row, "d" for a key that is gone
    row: dict[str, Any]

    def to_json(self) -> dict[str, object]:
        place = {"topic": self.topic, "partition": self.partition, "offset": self.offset, "time": self.time}
        return {**place, **({"op": self.op} if self.op else {}), "row": to_json(self.row)}


class Refused(Exception):
    """The receiver does not want it, and will not want it later."""


class Sender(Protocol):
    label: str
    """For people: the address, without what is secret in it."""

    identity: str
    """The same for the same receiver; without secrets too."""

    batch: int
    """At most so many records in one delivery."""

    def check(self, spec: TableSpec) -> None:
        """Raises BadOption where records of these columns cannot be sent."""

    def send(self, key: str, messages: Sequence[Message]) -> None:
        """Deliver them together. Raises Refused, or Unreachable where another try may help."""

    def close(self) -> None: ...


class Deliveries:
    """A sink of one sender. `step`s of one thread; `close` may come from another."""

    keyed, gather_s = False, 0.0

    def __init__(
        self,
        sender: Sender,
        positions: Positions,
        log: Log,
        *,
        give_up_after_s: float,
        clock: Callable[[], float] = time.monotonic,
        watch: Watch = unwatched,
    ) -> None:
        self._sender, self._positions, self._log = sender, positions, log
        self._give_up_after_s, self._clock, self._watch = give_up_after_s, clock, watch
        self.chunk_records = max(_CHUNK, sender.batch)
        self._prepared: dict[str, str] = {}
        self._failing: tuple[str, float] | None = None  # a delivery, and since when
        self._closed = False

    def __repr__(self) -> str:
        return f"<Deliveries {self._sender.label}>"

    def prepare(self, spec: TableSpec, changelog_id: str) -> Progress:
        self._sender.check(spec)
        self._positions.begin(spec.name, self._sender.identity, changelog_id)
        self._prepared[spec.name] = changelog_id
        return self._positions.progress(spec.name, self._sender.identity, changelog_id) or Progress(0)

    def apply(
        self, spec: TableSpec, changes: pa.Table, *, from_offset: int, next_offset: int, partition: int = 0
    ) -> None:
        if spec.name not in self._prepared:
            raise BadOption(f'"{spec.name}" was not prepared.', hint="call prepare() first")
        place = spec.name, self._sender.identity, self._prepared[spec.name]
        known = self._positions.progress(*place) or Progress(0)
        check_place(spec, known.at(partition), from_offset)
        begun = self._positions.sending(*place, partition)
        for group in _groups(_messages(spec, changes), self._sender.batch, begun):
            until = group[-1].offset + 1
            if self._closed:  # by a program that ends and has waited long enough
                raise Contended(f"deliveries to {self._sender.label} have ended.", hint="run it again")
            if len(group) > 1:
                self._positions.note(*place, partition, before=from_offset, after=from_offset, until=until)
            self._watch("begun")
            self._deliver("-".join([spec.name, place[2], str(partition), str(group[0].offset)]), group)
            self._watch("sent")
            self._positions.note(*place, partition, before=from_offset, after=until)
            self._watch("noted")
            from_offset = until
        if next_offset > from_offset:
            self._positions.note(*place, partition, before=from_offset, after=next_offset)

    def progress(self, view: str) -> Progress | None:
        if view not in self._prepared:
            return None
        return self._positions.progress(view, self._sender.identity, self._prepared[view])

    def drop(self, view: str) -> None:
        self._positions.forget(view, self._sender.identity)

    def close(self) -> None:
        self._closed = True
        self._sender.close()
        self._positions.close()

    def _deliver(self, key: str, messages: Sequence[Message]) -> None:
        try:
            self._sender.send(key, messages)
        except Refused as error:
            self._bury(key, messages, str(error))
        except Unreachable as error:
            if not self._has_failed_too_long(key):
                raise
            self._bury(key, messages, f"{error.reason}, for longer than {self._give_up_after_s:g} s")
        self._failing = None

    def _has_failed_too_long(self, key: str) -> bool:
        now = self._clock()
        if self._failing is None or self._failing[0] != key:
            self._failing = key, now
        return now - self._failing[1] >= self._give_up_after_s

    def _bury(self, key: str, messages: Sequence[Message], reason: str) -> None:
        topic = self._log.create_topic(f"{messages[0].topic}{DEAD}", _DEAD_COLUMNS, if_missing=True)
        facts = {"key": key, "target": self._sender.label, "reason": reason}
        topic.append(
            [
                {
                    **facts,
                    "partition": message.partition,
                    "offset": message.offset,
                    "op": message.op,
                    "row": json.dumps(to_json(message.row), ensure_ascii=False),
                }
                for message in messages
            ]
        )


def _messages(spec: TableSpec, records: pa.Table) -> Iterator[Message]:
    """Without the progress notes of a changelog; of a delete, the key alone."""
    names = records.schema.names
    rows: Iterator[dict[str, Any]] = (row for batch in records.to_batches() for row in decode(batch))
    for row in rows:
        op = _operation(row, names)
        if op == PROGRESS:
            continue
        own = spec.key if op == DELETE else spec.columns.names
        values = {name: row[name] for name in own}
        time_text = str(to_json(row["_timestamp"]))
        yield Message(spec.name, row["_partition"], row["_offset"], time_text, op, values)


def _operation(row: dict[str, Any], names: Sequence[str]) -> str | None:
    if "_op" in names:
        return str(row["_op"])
    if "_deleted" in names:
        return DELETE if row["_deleted"] else UPSERT
    return None


def _groups(messages: Iterator[Message], batch: int, begun: int | None) -> Iterator[list[Message]]:
    """Deliveries of at most `batch`; the first is the one that was begun, where there is one."""
    held: list[Message] = []
    for message in messages:
        if held and (len(held) == batch or (begun is not None and held[-1].offset < begun <= message.offset)):
            yield held
            held = []
        held.append(message)
    if held:
        yield held
