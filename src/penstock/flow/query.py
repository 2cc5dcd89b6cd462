"""One running Spark query: a definition, or several stateless ones that share their source.

The query owns its producer id in the log (an older instance is fenced), its checkpoint folder, and the
callback in which Spark hands over each batch. Everything it stores goes through `Committer`.
"""

from __future__ import annotations

import json
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import BadOption, DefinitionChanged, IncompatibleSchema, NotSupported, UnknownTopic
from penstock.flow import aside, history
from penstock.flow import build as builds
from penstock.flow import output as outputs
from penstock.flow.build import Build
from penstock.flow.commit import Committer, Planned, Position, position_of, producer_of, run_only
from penstock.flow.definition import Analysed, columns_in
from penstock.flow.offset import Offset, at_rest
from penstock.log.log import Log
from penstock.log.settings import TopicSettings, altered
from penstock.schema import RecordSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_HOLD_EVERY_S = 5.0
_STATE_FILE = re.compile(r"(\d+)\.(changelog|delta|snapshot|zip)")
_GONE = ".gone-"
_COMING_UP = ("Initializing", "Getting offsets")  # what Spark says of a query until its source has answered


@dataclass(frozen=True, slots=True)
class Place:
    """Where a query lives: the log, its own folder for checkpoints, its name in the log."""

    log: str = field(repr=False)  # there may be a password in it
    folder: Path
    producer: str

    def clear(self) -> None:
        """Remove the folder, out of sight first: whoever is killed on the way leaves no half checkpoint."""
        if self.folder.exists():
            self.folder.rename(self.folder.with_name(f"{_GONE}{uuid.uuid4().hex}"))
        for gone in self.folder.parent.glob(f"{_GONE}*"):
            shutil.rmtree(gone, ignore_errors=True)


def place_of(log: str, checkpoints: Path, app: str, query: str) -> Place:
    return Place(log, checkpoints / app / query, producer_of(app, query))


def columns_known(position: Position | None, name: str) -> list[str]:
    """The columns that a definition's topics had when it first ran; empty if it has not."""
    parts = position.identity.split() if position else []
    return next((columns_in(part) for part in parts if part.startswith(f"{name}=")), [])


def identity_of(members: Sequence[Analysed]) -> str:
    """Of a query: which definitions, and how each is defined."""
    return " ".join(f"{member.definition.name}={member.identity}" for member in members)


class Query:
    """Start it, watch `running`, stop it. A failed one is started again."""

    ends_batches = True  # soon after they began: it can be stopped between two of them

    def __init__(
        self,
        session: SparkSession,
        log: Log,
        place: Place,
        members: Sequence[Analysed],
        *,
        name: str | None = None,
        further: Mapping[str, str] | None = None,
    ) -> None:
        """`name`: under which it has run before. `further`: options of the source, for a rebuild."""
        self.members = sorted(members, key=lambda member: member.definition.name)
        self._further = dict(further or {})
        self.name = name or self.members[0].definition.name
        self.history = f"{self.members[0].definition.name}{outputs.BATCHES}"
        self.identity = identity_of(self.members)
        self._session = session
        self._log = log
        self._place = place
        self.running: StreamingQuery | None = None
        self.committer: Committer | None = None
        self._hold_again_at = 0.0
        self._to_hold: Offset | None = None

    @property
    def stored(self) -> Position | None:
        """What it has stored last, whether it runs or not."""
        return position_of(self._log, self._place.producer)

    @property
    def position(self) -> Position | None:
        """What it has stored last, since it was started."""
        return self.committer.position if self.committer is not None else None

    @property
    def is_up(self) -> bool:
        """Whether its source has answered since it was started, or it has ended."""
        running = self.running
        if running is None or not running.isActive:
            return True
        return not str(running.status["message"]).startswith(_COMING_UP)

    @property
    def stateful(self) -> bool:
        return any(member.stateful for member in self.members)

    def check(self) -> None:
        """Whether it may go on from what is stored, which this leaves as it is. Raises DefinitionChanged."""
        for member in self.members:
            _check_owner(self._log, member, self._place)
        known = self.stored
        if known and known.identity != self.identity:
            self._check_only_fewer(known.identity)

    def start(
        self, *, every: str | None, once: bool, rows_max: int | None = None, now_us: int | None = None
    ) -> None:
        """Begin or go on. Raises DefinitionChanged if what is stored was made by another plan.

        `now_us`: a virtual clock; with it a run to the end also sees topics go idle.
        """
        self.check()
        for member in self.members:
            create_output(self._log, member, evolve=True)
        producer = self._log.producer(self._place.producer)
        known = self.stored
        goes_on = known is not None and known.identity == self.identity
        checkpoint = self._checkpoint(known.checkpoint if known and goes_on else None)
        self.committer = Committer(
            producer, query=self._place.producer, identity=self.identity,
            checkpoint=checkpoint.name,
            outputs={member.output.name: member.output for member in self.members},
            drops_unusable=self.members[0].sparks_own,
            dropped=self.committer.dropped if self.committer else 0,
            late_table=self._late_pairs,
            lateness_us=self._build().scan(self.members[0].topics).lateness_us(self._log),
        )  # fmt: skip
        df = self._dataframe(ticks=not once or now_us is not None, rows_max=rows_max, now_us=now_us)
        writer: Any = df.writeStream.queryName(self.name).outputMode(self.members[0].mode)
        writer = writer.option("checkpointLocation", str(checkpoint)).foreachBatch(self._callback(checkpoint))
        writer = (
            writer.trigger(availableNow=True) if once else writer.trigger(processingTime=every or "0 seconds")
        )
        # After a batch Spark runs one without data, to close what the watermark has passed: where our own
        # operators give live values that changes no row, and doubles the time until the next one.
        live = not once and self.members[0].mode == "update" and not self.members[0].sparks_own
        empty_batches = str(not live).lower()
        with setting(self._session, "spark.sql.streaming.noDataMicroBatches.enabled", empty_batches):
            self.running = writer.start()

    def _check_only_fewer(self, stored: str) -> None:
        """Streams that shared a query go on when one of them is gone: without state, nothing is lost."""
        if self.stateful or not set(self.identity.split()) < set(stored.split()):
            raise DefinitionChanged(self.name, self.members[0].output.kind)

    def look(self, *, last: bool = False) -> None:
        """Called several times a second while it runs, and when it has ended."""
        if self._to_hold is not None:
            self._hold(self._to_hold, now=last)

    def stop(self) -> None:
        if self.running is not None:
            self.running.stop()

    def can_replay(self) -> bool:
        """Whether the state can be made again: retention may have taken some of what it was made of."""
        if not self.stateful:
            return True
        return not self._asked_elsewhere and not history.gone(
            self._log, history.batches(self._log, self.history)
        )

    @property
    def _asked_elsewhere(self) -> str | None:
        """Why its state is made of more than the log has."""
        steps = [step for member in self.members for step in member.operators if not step.stateful]
        return next((step.not_verifiable for step in steps if step.not_verifiable), None)

    def forget_state(self) -> None:
        """Throw the checkpoint away: the next start builds the state anew from the log."""
        self._place.clear()

    # ---- starting -----------------------------------------------------------------------------

    def _build(self, **options: Any) -> Build:
        return Build(self._session, self._log, self._place.log, **options)

    def _dataframe(self, *, ticks: bool, rows_max: int | None, now_us: int | None) -> DataFrame:
        further = {**self._way_back(), **self._further}
        if now_us is not None:
            further["now_us"] = str(now_us)
        build = self._build(ticks=ticks, rows_max=rows_max, further=further)
        (first, *others) = self.members
        return builds.records(build, first.topics, first.clock) if others else first.build(build)

    def _way_back(self) -> dict[str, str]:
        """Where a new checkpoint begins: state is made of everything before, and what has none goes on."""
        committer = self.committer
        if committer is None or not committer.replaying or committer.position is None:
            return {}
        if self.stateful and self._asked_elsewhere:
            raise NotSupported(
                f'"{self.name}" has lost its state, and {self._asked_elsewhere}.',
                hint=f"what is stored stays; build it anew: penstock rebuild … {self.name}",
            )
        if self.stateful:
            return {"history": self.history}
        return {"begin": json.dumps(at_rest(committer.position.batch.end).to_json())}

    def _checkpoint(self, known: str | None) -> Path:
        """The folder that the stored position names, or a new one if that is gone."""
        folder = self._place.folder
        if known and (folder / known / "offsets").is_dir():
            drop_uncommitted_state(folder / known)
            return folder / known
        self._place.clear()
        # A name of its own: a checkpoint must never be taken for another one, here or after a rebuild.
        fresh = folder / f"checkpoint-{uuid.uuid4().hex}"
        fresh.mkdir(parents=True)
        return fresh

    # ---- each batch ---------------------------------------------------------------------------

    def _callback(self, checkpoint: Path) -> Any:
        committer = self.committer
        assert committer is not None

        def store(df: DataFrame, spark_batch: int) -> None:
            planned = _planned(checkpoint, spark_batch)
            committer.commit(spark_batch, planned, lambda: self._tables(df), lambda: run_only(df))
            self._hold(planned.batch)

        return store

    def _hold(self, batch: Offset, *, now: bool = False) -> None:
        """Retention must not overtake a view that reads slowly, and Kafka's tools show how far it is."""
        if "holds" not in self._log.port.capabilities:
            return
        self._to_hold = batch
        if not now and time.monotonic() < self._hold_again_at:
            return  # `look` makes good for it
        self._hold_again_at, self._to_hold = time.monotonic() + _HOLD_EVERY_S, None
        for topic, ends in batch.end.ends.items():
            reason = f'"{self.name}" has read up to here'
            self._log.port.hold(self._place.producer, topic, dict(enumerate(ends)), reason=reason)

    def _tables(self, df: DataFrame) -> Mapping[str, pa.Table]:
        """What came out of a batch; where several share it, each computes its own from the records."""
        (first, *others) = self.members
        if not others:
            return {first.output.name: df.toArrow()}
        found: dict[str, pa.Table] = {}
        for member in self.members:
            build = self._build(mode="batch")
            builds.take(build, member.topics, member.clock, df)
            found[member.output.name] = member.build(build).toArrow()
        return found

    def _late_pairs(self, batch: Offset) -> Mapping[str, pa.Table]:
        """What each definition leaves out of a batch: late rows, and those it can make nothing of."""
        found: dict[str, pa.Table] = {}
        for member in self.members:
            if member.late_columns is None:
                continue
            left_out = [aside.left_out(self._log, each, batch, member.late_columns) for each in member.asides]
            if batch.odd:
                left_out.append(self._odd_rows(member, batch))
            if left_out:
                found[member.output.name] = pa.concat_tables(left_out)
        return found

    def _odd_rows(self, member: Analysed, batch: Offset) -> pa.Table:
        """A second look at a batch that has rows behind the watermark or without a usable time."""
        topic = self._further.get("history")
        past = history.batches(self._log, topic) if topic else []
        build = self._build(mode="odd", batches=history.as_recorded(past, batch))
        member.build(build)
        operator = next(each for each in build.operators if each.late_rows is not None)
        assert operator.late_rows is not None
        return outputs.late_records(operator.late_rows.toArrow(), policy=operator.late)


def drop_uncommitted_state(checkpoint: Path) -> None:
    """Remove what a batch that Spark has not committed left in its state.

    Spark takes a state file that is there already for its own, from another try of the same batch. But a
    crash may have taken the plan of that batch along, and then the next try is another batch.
    """
    committed = [int(file.name) for file in (checkpoint / "commits").glob("*") if file.name.isdigit()]
    last = max(committed, default=-1) + 1  # the state after batch n is version n + 1
    for file in (checkpoint / "state").rglob("*"):
        version = _STATE_FILE.fullmatch(file.name)
        if version and int(version[1]) > last:
            file.unlink(missing_ok=True)
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


@contextmanager
def setting(session: SparkSession, name: str, value: str) -> Iterator[None]:
    """For a query that is started meanwhile: Spark copies the session's settings when it starts one."""
    before = session.conf.get(name) or ""
    session.conf.set(name, value)
    try:
        yield
    finally:
        session.conf.set(name, before)


def create_output(log: Log, member: Analysed, *, evolve: bool, options: bool = True) -> None:
    """The topics that a definition writes, where they are missing; with `evolve`, brought up to date.

    `options`: with what a stream declares of its topic.
    """
    name = member.output.name
    # First: a topic with a history beside it is a definition's.
    _create(log, TopicSettings(f"{name}{outputs.BATCHES}", outputs.HISTORY, format="json"), evolve=evolve)
    declared = [*member.definition.options] if options and member.output.kind == "stream" else []
    _create(log, _output_topic(log, member), evolve=evolve, declared=declared)
    if member.late_columns is not None:
        late = outputs.late_schema(member.late_columns)
        _create(log, TopicSettings(f"{name}{outputs.LATE}", late), evolve=evolve)


def _check_owner(log: Log, member: Analysed, place: Place) -> None:
    """A topic is written by one definition of one app, and by nobody else."""
    name = member.output.name
    last = history.last(log, f"{name}{outputs.BATCHES}")
    # An app's name has no dot in it.
    owner = last.query.split(".")[1] if last else ""
    if last and owner != place.producer.split(".")[1]:
        raise member.definition.wrong(f'topic "{name}" belongs to app "{owner}".', "choose another name")


def _output_topic(log: Log, member: Analysed) -> TopicSettings:
    if member.output.kind == "view":
        return TopicSettings(member.output.name, member.output.schema, key=member.output.key)
    sources = [log.port.settings(topic) for topic in member.topics]
    options = dict(member.definition.options)
    return TopicSettings(
        member.output.name,
        member.output.schema,
        key=member.output.key,
        partitions=options.pop("partitions", 1),
        event_time=options.pop("event_time", member.time),
        lateness_ms=options.pop("lateness_ms", _lateness_ms(member, sources)),
        ahead_ms=options.pop("ahead_ms", max(source.ahead_ms for source in sources)),
        format=options.pop("format", "json" if member.definition.realtime else None),
        **options,
    )


def _lateness_ms(member: Analysed, sources: Sequence[TopicSettings]) -> int:
    """Rows that come out when the watermark has passed them are in order; others are as they came."""
    return 0 if member.output.final_by else max(source.lateness_ms for source in sources)


def _create(log: Log, wanted: TopicSettings, *, evolve: bool, declared: Iterable[str] = ()) -> None:
    """`declared`: the options that the program gives, which count from now on."""
    if wanted.name not in log.port.topics():
        log.port.create_topic(wanted)
        return
    known = log.port.settings(wanted.name)
    changed = replace(known, **{name: getattr(wanted, name) for name in declared})
    changed = replace(changed, partitions=max(known.partitions, changed.partitions))
    if evolve and known.schema.ddl != wanted.schema.ddl:
        changed = replace(changed, schema=_widened(known.schema, wanted.schema))
    if changed != known:
        log.port.alter_topic(wanted.name, changed)


def _widened(known: RecordSchema, wanted: RecordSchema) -> RecordSchema:
    try:
        return known.evolve_to(wanted)
    except IncompatibleSchema:
        wanted.evolve_to(known)  # a rebuild has widened it and died: it takes these rows too
        return known


def unfit(log: Log, member: Analysed) -> tuple[str, ...]:
    """Endings of the topics that cannot take what a definition makes now: another key, or a column less."""
    wanted = {"": _output_topic(log, member)}
    if member.late_columns is not None:
        late = outputs.late_schema(member.late_columns)
        wanted[outputs.LATE] = TopicSettings(f"{member.output.name}{outputs.LATE}", late)
    return tuple(ending for ending, topic in wanted.items() if not _fits(log, topic))


def _fits(log: Log, wanted: TopicSettings) -> bool:
    try:
        known = log.port.settings(wanted.name)
        altered(known, replace(known, schema=wanted.schema, key=wanted.key), ends=(), now_us=0)
    except (UnknownTopic, IncompatibleSchema, BadOption):
        return False
    return True


def _planned(checkpoint: Path, spark_batch: int) -> Planned:
    """What Spark wrote down about a batch before it began it."""
    written = (checkpoint / "offsets" / str(spark_batch)).read_text()
    _version, metadata, *scans = written.splitlines()
    (offset,) = set(scans)  # one source, however often it is scanned: it is the position
    return Planned(Offset.from_json(json.loads(offset)), int(json.loads(metadata)["batchWatermarkMs"]))
