"""A table of an app: a compacted topic whose records are the versions of its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.app.app import AppTopic
from penstock.app.reading import Rows
from penstock.clock import CorrectedTime
from penstock.errors import BadOption
from penstock.log import versions
from penstock.log.log import Declared, declared_settings
from penstock.log.port import Position, to_us
from penstock.log.settings import TopicSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.app.feed import Feed
    from penstock.follow.where import Wanted


class AppTable(AppTopic):
    """Made by `app.table`. A record is valid from its event time until the next version of its key.

    >>> import tempfile, penstock as ps
    >>> users = ps.App("shop", home=tempfile.mkdtemp()).table("users", "id BIGINT, name STRING", key="id")
    >>> before = users.upsert({"id": 1, "name": "Ann"})
    >>> after = users.upsert({"id": 1, "name": "Anna"})
    >>> list(users.current()), list(users.as_of(before))
    ([{'id': 1, 'name': 'Anna'}], [{'id': 1, 'name': 'Ann'}])
    """

    def upsert(self, rows: Any) -> Position:
        """Store rows that are new, or that replace those with the same key."""
        return self.append(rows)

    def current(self) -> Rows:
        """Its rows: of each key the newest version, by event time and then by arrival."""
        return Rows(versions.fold(self.read(), self.settings))

    def as_of(self, moment: datetime | Position) -> Rows:
        """The rows valid at an event time, by all that is known now; or what was known at a position.

        Versions that were replaced longer ago than the table's `history` may be gone.
        """
        if isinstance(moment, Position):
            return Rows(versions.fold(self._known_at(moment), self.settings))
        if not isinstance(moment, datetime):
            raise BadOption(
                f"as_of({moment!r}) is no time.", hint="give a datetime, or what upsert() returned"
            )
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return Rows(versions.fold(self.read(), self.settings, moment_us=to_us(aware)))

    def subscribe(
        self,
        *,
        where: Wanted = None,
        columns: Sequence[str] | None = None,
        after: str | None = None,
        follow: bool = True,
        timeout: str | float | None = None,
    ) -> Feed:
        """Its rows, then every change: see `App.subscribe`."""
        return self.app.subscribe(
            self.name, where=where, columns=columns, after=after, follow=follow, timeout=timeout
        )

    def changes(self) -> DataFrame:
        """Inside a definition, what its records did: `op`, the key, and the row `before` and `after`.

        `op` is "insert", "update" or "delete". A record older than what its key has changes nothing.
        """
        from penstock.flow.tables import changes

        return changes(self)

    def _known_at(self, position: Position) -> Iterator[pa.RecordBatch]:
        if position.topic != self.name:
            raise BadOption(
                f'that is a position in topic "{position.topic}".', hint=f'take one of "{self.name}"'
            )
        newest_us = max((self._appended_us(n, end) for n, end in position.ends.items()), default=0)
        for number in range(self.settings.partitions):
            # Of the partitions that it did not touch: what had been appended by then.
            last = position.ends.get(number)
            end = self._port.offset_at(self.name, number, newest_us + 1) if last is None else last
            yield from self.read(partition=number, end=end)

    def _appended_us(self, partition: int, end: int) -> int:
        """When the last record before `end` was appended; compaction may have taken it."""
        found = versions.BEGINNING_US
        for batch in self.read(partition=partition, end=end):
            found = max(found, batch.column("_timestamp").cast(pa.int64())[-1].as_py())
        return found


def declared_table(
    name: str,
    schema: Declared,
    *,
    key: list[str],
    event_time: str | None,
    history: str | float,
    options: dict[str, Any],
) -> TopicSettings:
    """The settings of a table's topic; refuses what would be no table."""
    if not key:
        raise BadOption(f'table "{name}" has no key.', hint='say what identifies a row: key="id"')
    if isinstance(event_time, CorrectedTime):
        raise BadOption(
            f'table "{name}" has a corrected time.',
            hint="its rows are valid from a time of their own: name one column",
        )
    if options.pop("cleanup", "compact") != "compact":
        raise BadOption(f'table "{name}" is always compacted.', hint="leave cleanup= out, or say app.topic")
    # What is valid from a later time on is no news of that time: it must not move the watermark.
    settings = {"ahead": 0, **options, "cleanup": "compact", "history": history}
    return declared_settings(name, schema, key=key, event_time=event_time, **settings)
