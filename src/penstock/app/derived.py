"""What a definition becomes: the decorated name, with which a program reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.flow.definition import Definition
from penstock.log.topic import Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.app.app import App, AppTopic
    from penstock.app.feed import Feed
    from penstock.app.reading import Rows


class _Derived:
    """A definition, as the decorated name."""

    def __init__(self, app: App, definition: Definition) -> None:
        self.app = app
        self.definition = definition
        self.name = definition.name
        self.__doc__ = definition.function.__doc__

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class View(_Derived):
    """A view: `app.read(view)`, or `view.rows()`; as it changes, `view.subscribe()`."""

    def rows(self, **options: Any) -> Rows:
        return self.app.read(self.name, **options)

    def subscribe(self, **options: Any) -> Feed:
        """Its rows, then every change: see `App.subscribe`."""
        return self.app.subscribe(self.name, **options)


class Stream(_Derived):
    """A derived stream: a topic that other definitions and programs read."""

    @property
    def topic(self) -> Topic:
        return self.app.log.topic(self.name)

    def stream(self) -> DataFrame:
        from penstock.flow.build import stream_of

        return stream_of([self.name])


def stream(*topics: AppTopic | Stream) -> DataFrame:
    """Several topics with the same columns as one stream, in the order of their append times."""
    from penstock.flow.build import stream_of

    return stream_of([topic.name for topic in topics])
