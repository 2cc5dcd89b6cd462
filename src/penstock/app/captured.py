"""`app.capture`: a database whose tables the app's definitions read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.app.app import AppTopic
from penstock.app.table import AppTable
from penstock.capture.declared import Database
from penstock.capture.engine import Capture, stored_progress
from penstock.capture.topics import OWN, topic_names
from penstock.errors import NotSupported
from penstock.log.settings import TopicSettings

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.follow.to import Places


class AppCapture:
    """Made by `app.capture`. `penstock run` follows the database, and so does `penstock capture run`."""

    def __init__(
        self, app: App, name: str, source: Database, *, retention: str | float | None = None
    ) -> None:
        self.app, self.name, self.source = app, name, source
        self._retention = retention

    def __repr__(self) -> str:
        return f"<AppCapture {self.name}: {self.source.kind} {self.source.place}>"

    def table(self, name: str, *, to: Places = ()) -> CapturedTable:
        """A table of the database, as definitions and programs read tables.

        `to`: where its rows also go while the app runs, see `ps.to`.
        """
        topic = topic_names(self.name, name)[0]
        self.app.send(topic, "table", (), to)
        return CapturedTable(self, topic)

    def changes(self, name: str) -> CapturedTopic:
        """Every change of a table, in the envelope."""
        return CapturedTopic(self, topic_names(self.name, name)[1])

    def said_of(self, topic: str) -> str:
        """What is in one of its topics; empty of others."""
        prefix, _, table = topic.partition(".")
        if prefix != self.name or not table or table in OWN:
            return ""
        of = f"{self.source.kind} {self.source.place}"
        if table.endswith(".changes"):
            return f"Every change of the table {table.removesuffix('.changes')} in {of}, as it was captured."
        return f"The rows of the table {table} in {of}, as they change."

    def open(self) -> Capture:
        """Connects when it is used."""
        return Capture(self.app.log, self.name, self.source.open(self.name), retention=self._retention)

    def prepare(self) -> None:
        """Create the topics, where it has never run: definitions ask for their columns."""
        if stored_progress(self.app.log, self.name).source is not None:
            return
        capture = self.open()
        try:
            capture.prepare()
        finally:
            capture.source.close()


class _Captured(AppTopic):
    """A topic that a capture fills: its columns are the database's."""

    def __init__(self, capture: AppCapture, name: str) -> None:
        self.app, self.capture, self.name = capture.app, capture, name
        self.doc = capture.said_of(name)
        self._record_type = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @property
    def settings(self) -> TopicSettings:
        if self.name not in self._port.topics():
            self.capture.prepare()
        self._settings = self._port.settings(self.name)
        return self._settings

    def append(self, records: Any, *, partition: int | None = None) -> Any:
        raise self._read_only()

    def delete(self, *keys_: Any) -> Any:
        raise self._read_only()

    def _read_only(self) -> NotSupported:
        return NotSupported(
            f'topic "{self.name}" is filled by capture "{self.capture.name}".',
            hint="write to the database: the change comes by itself",
        )


class CapturedTopic(_Captured):
    """The changes of a captured table."""


class CapturedTable(_Captured, AppTable):
    """The rows of a captured table."""
