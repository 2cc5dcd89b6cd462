"""`ps.App`: the topics, views and streams of one program, as it declares them.

Declaring checks what is declared and does nothing else: the log is opened, and the topics are created in it,
when something is first asked of it. Definitions are called when the app is run, verified or explained, never
on import.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.app.declaring import create
from penstock.app.derived import Stream, View
from penstock.app.queueing import DeclaredQueues
from penstock.clock import CorrectedTime, duration_ms
from penstock.erasure.opening import keys_of
from penstock.errors import BadDefinition, BadName, BadOption, UnknownView
from penstock.flow.cluster import LOCAL, check_log, checkpoint_folder
from penstock.flow.definition import Definition
from penstock.log.log import HOME, Declared, Log, declared_settings, in_ms
from penstock.log.port import LogPort, Position
from penstock.log.settings import TopicSettings, check_name
from penstock.log.topic import Topic
from penstock.opening import address_of, checked, is_kafka, open_log

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from penstock.app.aggregates import AppAggregates
    from penstock.app.captured import AppCapture
    from penstock.app.erasing import Erasure
    from penstock.app.feed import Feed
    from penstock.app.graph import Graph
    from penstock.app.reading import Rows
    from penstock.app.table import AppTable
    from penstock.app.verify import Verified
    from penstock.capture.declared import Database
    from penstock.follow.feed import Kind
    from penstock.follow.store import Store
    from penstock.follow.target import Target
    from penstock.follow.to import Places
    from penstock.follow.where import Wanted
    from penstock.queue.queue import Queue
    from penstock.queue.queues import Queues
    from penstock.sourcing.aggregate import Aggregate
    from penstock.sourcing.entry import Receipt

A = TypeVar("A", bound="Aggregate")
Function = Callable[[], Any]


class App:
    """What a program declares.

    >>> import tempfile
    >>> from datetime import UTC, datetime
    >>> app = App("shop", home=tempfile.mkdtemp())
    >>> page_views = app.topic("page_views", "page STRING, at TIMESTAMP", event_time="at")
    >>> page_views.append({"page": "/", "at": datetime(2026, 11, 16, 10, tzinfo=UTC)}).offset
    0
    """

    def __init__(
        self,
        name: str,
        *,
        home: str | Path | None = None,
        log: str | None = None,
        keys: str | Path | None = None,
        views: str | None = None,
        queues: str | None = None,
        spark: str | None = None,
        spark_settings: Mapping[str, str] | None = None,
        checkpoints: str | Path | None = None,
    ) -> None:
        """`home`: a folder for everything that is kept here.

        `log`: where the log is instead, as "kafka://host:port". `keys`: the file with the keys of subjects,
        for what is personal (default: $PENSTOCK_KEYS, else under `home`). `views`: the store of the views
        (default: a SQLite file). `queues`: a RabbitMQ, as "amqp://host" (default: a file). `spark`: a master
        URL (default: here), and `spark_settings` Spark's own. `checkpoints`: a folder for Spark's state
        (default: under `home`), which all of a cluster must see.
        """
        check_name("app", name)
        if "." in name:  # it stands before a dot in the names of producers
            raise BadName("app", name)
        self.name = name
        chosen = address_of(home)
        self.home = (Path(HOME) if is_kafka(chosen) else Path(chosen)).absolute()
        self._elsewhere = checked(log) if log else (chosen if is_kafka(chosen) else None)
        self._keys = keys
        self.views = views
        self.spark = spark
        self.spark_settings = dict(spark_settings or {})
        self._checkpoints = checkpoint_folder(checkpoints) if checkpoints is not None else None
        check_log(spark or LOCAL, self.address)
        self.topics: dict[str, AppTopic] = {}
        self.definitions: dict[str, Definition] = {}
        self.captures: dict[str, AppCapture] = {}
        self.sourced: dict[str, AppAggregates[Any]] = {}
        self._targets: dict[str, tuple[Target, ...]] = {}
        self.is_elsewhere = False  # for a test
        self.declared_queues = DeclaredQueues(self, queues)
        self._log: Log | None = None
        self._store: Store | None = None
        self._opening = threading.RLock()

    @property
    def address(self) -> str:
        """Where the log is."""
        return self._elsewhere or str(self.home)

    @property
    def keys_at(self) -> str | Path:
        """Where the keys of subjects are."""
        return keys_of(None if self.is_elsewhere else self._keys, self.home)

    @property
    def checkpoints(self) -> Path:
        """Where Spark keeps its state."""
        return self._checkpoints or self.home / "flow"

    @property
    def log(self) -> Log:
        """The log, with every declared topic in it."""
        with self._opening:
            if self._log is None:
                opened = open_log(self.address, keys=self.keys_at)
                try:
                    self._create_topics(opened)
                except BaseException:
                    opened.close()
                    raise
                self._log = opened
            return self._log

    @property
    def opened_log(self) -> Log | None:
        """The log, if it was opened already."""
        return self._log

    @property
    def store(self) -> Store:
        """Where the views are kept for readers."""
        from penstock.follow.opening import open_store

        with self._opening:
            if self._store is None:
                self._store = open_store(self.views or self.home / "views" / f"{self.name}.db")
            return self._store

    @property
    def followed(self) -> Mapping[str, tuple[Target, ...]]:
        """Where each view, stream or table also goes, by its name. In tests nothing goes out."""
        return {} if self.is_elsewhere else self._targets

    @contextmanager
    def relocated(self, log: Log, home: Path) -> Iterator[App]:
        """Meanwhile, this app, its topics and its views live in another log: for tests.

        The views are in a SQLite file under `home`, wherever they are otherwise, and nothing goes to the
        targets of `to=`. At the end `log` and that file are closed, and everything is where it was before.
        """
        before = self.home, self._elsewhere, self._checkpoints, self.views, self._log, self._store
        with self._opening:
            self.home, self._elsewhere, self._checkpoints, self.views = home.absolute(), None, None, None
            self._log, self._store, self.is_elsewhere = log, None, True
        try:
            self._create_topics(log)
            yield self
        finally:
            self.close()
            with self._opening:
                self.home, self._elsewhere, self._checkpoints, self.views, self._log, self._store = before
                self.is_elsewhere = False

    def topic(
        self,
        name: str,
        schema: Declared = None,
        *,
        key: str | Sequence[str] = (),
        event_time: str | CorrectedTime | None = None,
        doc: str = "",
        **options: Any,
    ) -> AppTopic:
        """Declare a topic: it is created if there is none, and changed where it may be if it differs.

        That happens when the app's log is first used. `doc` is a sentence about what is in it, for its page.
        `options` are those of `log.create_topic`, among them `lateness` and `idle_after`.
        """
        self._claim(name)
        columns = key if isinstance(key, str) else list(key)
        wanted = declared_settings(name, schema, key=columns, event_time=event_time, **options)
        found = AppTopic(self, wanted, record_type=schema if isinstance(schema, type) else None, doc=doc)
        self._declare(found)
        return found

    def table(
        self,
        name: str,
        schema: Declared,
        *,
        key: str | Sequence[str] = (),
        event_time: str | None = None,
        history: str | float = "7 days",
        to: Places = (),
        doc: str = "",
        **options: Any,
    ) -> AppTable:
        """Declare a table: rows by `key`, each valid from its `event_time` until the next of its key.

        `history`: compaction leaves a version so long after it was replaced, for `as_of` and `ps.enrich`.
        `to`: where its rows also go while the app runs, see `ps.to`. `doc`, `options`: as of a topic.
        """
        from penstock.app.table import AppTable, declared_table

        self._claim(name)
        columns = [key] if isinstance(key, str) else list(key)
        wanted = declared_table(
            name, schema, key=columns, event_time=event_time, history=history, options=options
        )
        found = AppTable(self, wanted, record_type=schema if isinstance(schema, type) else None, doc=doc)
        self.send(name, "table", tuple(columns), to, event_time=event_time)
        self._declare(found)
        return found

    def capture(
        self, name: str, source: str | Path | Database, *, retention: str | float | None = None
    ) -> AppCapture:
        """Follow a database: each of its tables becomes a table here, and each change an event.

        `source`: an address, or what `ps.capture.sqlite(…)` and the like give. `retention`: for so long
        the changes are kept (default: for ever); the rows of the tables always are.
        """
        from penstock.app.captured import AppCapture
        from penstock.capture.declared import Database, source_at

        check_name("capture", name)
        self._claim(name)
        database = source if isinstance(source, Database) else source_at(source)
        found = self.captures[name] = AppCapture(self, name, database, retention=retention)
        return found

    def aggregates(
        self,
        name: str,
        kind: type[A],
        *,
        store: str | None = None,
        snapshot_every: int | None = 100,
        retries: int = 10,
        **options: Any,
    ) -> AppAggregates[A]:
        """Event-sourced aggregates: their commands record events, which become the topic `name`.

        `store`: "postgresql://…" (default: a SQLite file). `retries`: how often a command is decided again
        when others were faster. `options` are those of a topic, among them `lateness` and `partitions`.
        """
        from penstock.app.aggregates import AppAggregates

        self._claim(name)
        found = AppAggregates(
            self, name, kind, store=store, snapshot_every=snapshot_every, retries=retries, options=options
        )
        self._declare(found.topic)
        self.sourced[name] = found
        return found

    def queue(self, name: str, *, doc: str = "", **options: Any) -> Queue:
        """Declare a queue, with the `options` of `queues.queue`, made at first use. `doc`: as of a topic."""
        return self.declared_queues.declare(name, options, doc=doc)

    @property
    def queues(self) -> Queues:
        """The queues, with every declared one in them."""
        return self.declared_queues.opened()

    def _declare(self, topic: AppTopic) -> None:
        with self._opening:
            self.topics[topic.name] = topic
            if self._log is not None:
                create(self._log, topic.declared, keeps_columns=topic.keeps_columns)

    def view(
        self, *, key: str | Sequence[str], name: str | None = None, to: Places = ()
    ) -> Callable[[Function], View]:
        """Decorate a function that returns a DataFrame: its result is kept current, one row per `key`.

        `to`: where its rows also go while the app runs, see `ps.to`.
        """

        def declare(function: Function) -> View:
            return View(self, self._define(function, "view", name, key, {}, to=to))

        return declare

    def stream(
        self,
        *,
        key: str | Sequence[str] = (),
        name: str | None = None,
        latency: str = "batches",
        to: Places = (),
        **options: Any,
    ) -> Callable[[Function], Stream]:
        """Decorate a function that returns a DataFrame: its final rows become a topic of their own.

        `to`: where they also go while the app runs, see `ps.to`.

        `options` are those of a topic: `event_time`, `lateness`, `partitions`, `retention` and so on.
        `latency="realtime"`, on Kafka: within milliseconds, at least once, by Spark's own operators alone.
        """
        if latency not in ("batches", "realtime"):
            raise BadOption(f"latency={latency!r}.", hint='say "realtime" or "batches", which is the default')

        def declare(function: Function) -> Stream:
            found = self._define(
                function, "stream", name, key, in_ms(options), to=to, realtime=latency == "realtime"
            )
            return Stream(self, found)

        return declare

    def read(
        self,
        view: str | View,
        *,
        where: Mapping[str, object] | None = None,
        after: Position | Receipt | None = None,
        timeout: str | float = "5 seconds",
        as_of: datetime | None = None,
        limit: int | None = None,
        reveal: Sequence[str] = (),
    ) -> Rows:
        """The rows of a view as they are now, or were `as_of` a time.

        `after`: not before the view shows what was appended there, or what a command has recorded (read
        your own writes); raises ViewBehind when it does not within `timeout`. `reveal`: columns in which
        what is sealed is opened, as far as there are keys for it.
        """
        from penstock.app import reading

        name = view if isinstance(view, str) else view.name
        found = reading.read(
            self, name, where=where, after=after, timeout_s=duration_ms(timeout) / 1_000, as_of=as_of,
            limit=limit,
        )  # fmt: skip
        return reading.revealed(self, found, reveal)

    def subscribe(
        self,
        name: str | View | AppTable,
        *,
        where: Wanted = None,
        columns: Sequence[str] | None = None,
        after: str | None = None,
        follow: bool = True,
        timeout: str | float | None = None,
    ) -> Feed:
        """The rows of a table or view as they are, then every change; see `Feed`. Needs no Spark.

        `where`: only such rows, as `{"city": "Bern"}`, `ps.col("age") > 17` or a function of a row.
        `after`: a position that an earlier feed gave; what has changed since. `follow=False` ends at the end
        as it is now, `timeout` after so long without a change.
        """
        from penstock.app.feed import subscribe

        return subscribe(
            self, name if isinstance(name, str) else name.name, where=where, columns=columns, after=after,
            follow=follow, timeout_s=None if timeout is None else duration_ms(timeout) / 1_000,
        )  # fmt: skip

    def late(self, name: str | View | Stream) -> Rows:
        """What a view or stream has left out: late rows, with the watermark they met and the reason."""
        from penstock.app import reading

        return reading.late(self, self.definition(name if isinstance(name, str) else name.name).name)

    def forget(
        self, subject: str | int, *, dry_run: bool = False, search: bool = True, look_for: Sequence[str] = ()
    ) -> Erasure:
        """Destroy a subject's key: nothing personal of them can be read any more, wherever it is sealed.

        Then search every file for what was written on in clear, and tell where; `dry_run` does only that.
        Done again, it needs to be told what to `look_for`: nobody else knows then. Raises UnknownSubject.
        """
        from penstock.app import erasing

        return erasing.forget(self, subject, dry_run=dry_run, search=search, look_for=look_for)

    def run(self, *, once: bool = False, every: str | None = None) -> None:
        """Run every definition, as `penstock run` does: until interrupted, or with `once` to the end."""
        from penstock.app.published import Publisher
        from penstock.app.runner import Runner
        from penstock.app.status import Watch

        runner = Runner(self, self._analysed(), every=every)
        publisher = Publisher(runner, Watch(runner))
        runner.once() if once else runner.run(show=lambda _: publisher.show())

    def verify(self, *names: str) -> list[Verified]:
        """Compare live views and streams with their recomputation from the log."""
        from penstock.app.verify import verify

        graph = self._analysed()
        return [verify(self, graph, name) for name in names or self.definitions]

    def start_spark(self) -> SparkSession:
        """Spark where the app wants it, ready for its definitions, or the session that there is."""
        from penstock.app.spark import start_spark

        return start_spark(self)

    def _analysed(self) -> Graph:
        from penstock.app.graph import Graph

        # An app of tables alone has nothing for Spark to do.
        return Graph(self, self.start_spark() if self.definitions else None).analyse()

    def definition(self, name: str) -> Definition:
        if name not in self.definitions:
            raise UnknownView(name, known=self.definitions)
        return self.definitions[name]

    def close(self) -> None:
        """Close what was opened: the log, and the store of views. Both open again when they are needed."""
        with self._opening:
            for opened in (self._store, self._log, self.declared_queues, *self.sourced.values()):
                if opened is not None:
                    opened.close()
            self._store = self._log = None

    def _create_topics(self, log: Log) -> None:
        for topic in self.topics.values():
            create(log, topic.declared, keeps_columns=topic.keeps_columns)

    def _claim(self, name: str) -> None:
        if name in self.topics or name in self.definitions or name in self.captures:
            raise BadDefinition(
                f'"{name}" is declared twice in app "{self.name}".', hint="rename one of them"
            )

    def _define(
        self,
        function: Function,
        kind: Any,
        name: str | None,
        key: str | Sequence[str],
        options: Mapping[str, Any],
        *,
        to: Places,
        realtime: bool = False,
    ) -> Definition:
        code = inspect.unwrap(function).__code__
        wanted = name or function.__name__
        self._claim(wanted)
        check_name(kind, wanted)
        columns = (key,) if isinstance(key, str) else tuple(key)
        place = code.co_filename, code.co_firstlineno
        found = Definition(wanted, kind, function, columns, *place, options, realtime)
        self.send(wanted, kind, columns, to)
        self.definitions[wanted] = found
        return found

    def send(
        self, name: str, kind: Kind, key: tuple[str, ...], to: Places, *, event_time: str | None = None
    ) -> None:
        """Note where a view, stream or table also goes while the app runs."""
        if to:
            from penstock.follow.to import targets

            self._targets[name] = targets(to, name=name, kind=kind, key=key, event_time=event_time)


class AppTopic(Topic):
    """A topic that definitions can read. It is in the log that its app has at the moment."""

    keeps_columns = False  # those that it was declared with before, and is not any more

    def __init__(self, app: App, declared: TopicSettings, *, record_type: type | None, doc: str = "") -> None:
        self.app, self.declared, self.doc = app, declared, doc
        self._describe(declared, record_type)

    @property
    def _port(self) -> LogPort:  # type: ignore[override]
        return self.app.log.port

    def stream(self) -> DataFrame:
        """Its records as a streaming DataFrame, inside a definition."""
        from penstock.flow.build import stream_of

        return stream_of([self.name])
