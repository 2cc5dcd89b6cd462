"""A view or a derived stream as the user wrote it, and what is known of it once it was built."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, unquote

from penstock.errors import BadDefinition, BadInput
from penstock.flow import build as builds
from penstock.flow import output as outputs
from penstock.flow.aggregates import ARRIVAL
from penstock.flow.build import Aside, Build, Clock, Operator
from penstock.flow.offset import STEP_US
from penstock.flow.output import Output
from penstock.flow.plan import column_of
from penstock.flow.pruning import needed_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Definition:
    """One decorated function."""

    name: str
    kind: Literal["view", "stream"]
    function: Callable[[], Any]
    key: tuple[str, ...]
    file: str
    line: int
    options: Mapping[str, Any] = field(default_factory=dict)  # of a stream's topic: event_time, lateness ...
    realtime: bool = False

    def wrong(self, message: str, hint: str = "") -> BadDefinition:
        return BadDefinition(
            f'{self.kind} "{self.name}": {message}', hint=hint, file=self.file, line=self.line
        )

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Errors of the user's function, with the place where it is."""
        from pyspark.errors import PySparkException

        try:
            yield
        except BadDefinition as error:
            raise (error if error.file else self.wrong(error.message, error.hint)) from error
        except BadInput as error:
            raise self.wrong(error.message, error.hint) from error
        except PySparkException as error:
            raise self.wrong(str(error).split("\n", maxsplit=1)[0], "see the Spark message above") from error
        except (TypeError, AttributeError, ValueError, LookupError, ArithmeticError) as error:
            raise self.wrong(f"{type(error).__name__}: {error}.", "see the Python message above") from error


@dataclass(frozen=True, slots=True)
class Analysed:
    """A definition that can run."""

    definition: Definition
    topics: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]
    tables: frozenset[str]
    clock: Clock
    operators: tuple[Operator, ...]
    output: Output
    late_columns: pa.Schema | None
    settle_us: int
    correct_us: int  # Spark keeps windows so much longer
    identity: str
    stateful: bool
    time: str | None  # the result's event time, where it has one
    columns: frozenset[str] | None  # of the source, that it needs; None where it is not read as it is

    @property
    def sparks_own(self) -> bool:
        """Grouped by Spark itself, which drops late rows and those without a time, and only counts them."""
        return self.stateful and not any(operator.stateful for operator in self.operators)

    @property
    def asides(self) -> list[Aside]:
        return [operator.aside for operator in self.operators if operator.aside is not None]

    @property
    def mode(self) -> Literal["update", "append"]:
        if self.definition.realtime:
            return "update"
        final = any(operator.output != "update" for operator in self.operators if operator.stateful)
        return "append" if final or not self.stateful else "update"

    def build(self, build: Build, *, arrival: bool = False) -> DataFrame:
        """The definition's DataFrame in another mode, in the form in which it is stored.

        `arrival`: with the columns that say in which order the rows came.
        """
        build.clock, build.settle_us, build.extra_delay_us = self.clock, self.settle_us, self.correct_us
        build.groups, build.tables = self.groups, self.tables
        build.undated, build.realtime = not self.stateful, self.definition.realtime
        with self.definition.blamed():
            df = self._built(build)
            if not arrival:
                return outputs.flat(df)
            missing = [name for name in ARRIVAL if name not in df.columns]
            return outputs.flat(df.select("*", *missing), also=ARRIVAL)

    def _built(self, build: Build) -> DataFrame:
        from pyspark.errors import AnalysisException

        if build.mode == "stream":
            try:
                return builds.call(self.definition.function, replace(build, columns=self.columns))
            except AnalysisException:  # it names a column that it does not need
                build.clear()
        return builds.call(self.definition.function, build)


def analyse(definition: Definition, build: Build, *, known: Sequence[str] = ()) -> Analysed:
    """Build a definition without running it; raises BadDefinition with file and line.

    `known`: the columns that its topics had when it first ran.
    """
    from pyspark.sql import DataFrame
    from pyspark.sql.pandas.types import to_arrow_schema

    from penstock.flow import realtime  # it imports pyspark, which apps that only read do without

    build.realtime = definition.realtime
    with definition.blamed():
        result = builds.call(definition.function, build)
        if not isinstance(result, DataFrame):
            raise BadDefinition(f"it returns {type(result).__name__}.", hint="return a DataFrame")
        if not result.isStreaming:
            raise BadDefinition("it reads no stream.", hint="begin with topic.stream()")
        df = outputs.flat(result)
        if build.realtime:
            realtime.check_plan(df)
        own = outputs.own_columns(to_arrow_schema(df.schema, timezone="UTC"))
        key = outputs.flat_key(definition.key, own.names)
        if definition.kind == "view" and not key:
            raise BadDefinition(
                "a view needs a key.", hint='say what identifies a row: @app.view(key="page")'
            )
    stateful = any(operator.stateful for operator in build.operators) or _has_state(df)
    operators = tuple(build.operators)
    _check_shape(definition, key, own, operators, stateful=stateful)
    correct_us = max((operator.correct_us for operator in operators), default=0)
    lateness_us = build.scan(build.topics).lateness_us(build.log)
    found = Analysed(
        definition,
        tuple(build.topics),
        build.groups,
        build.tables,
        build.clock,
        operators,
        _output(definition, key, own, operators),
        _late_columns(definition, build) if operators else None,
        settle_us=sum(o.span_us for o in operators) + lateness_us + correct_us + 10 * STEP_US,
        # Live sessions keep what can be corrected themselves, and must know when theirs are closed.
        correct_us=max((o.correct_us for o in operators if o.output == "update"), default=0),
        identity=_identity(definition, build, df, key, known, stateful=stateful),
        stateful=stateful,
        time=_time(df, operators),
        columns=None if build.gathers or build.realtime else needed_columns(df),
    )
    with definition.blamed():
        _check_supported(df, found.mode)
    return found


def _check_supported(df: DataFrame, mode: str) -> None:
    """Spark asks this when a query starts, and then others may be running already."""
    jvm: Any = df.sparkSession._jvm
    spark = jvm.org.apache.spark.sql
    output = spark.streaming.OutputMode.Append() if mode == "append" else spark.streaming.OutputMode.Update()
    plan: Any = df._jdf.queryExecution().analyzed()
    spark.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, output)


def _check_shape(
    definition: Definition,
    key: tuple[str, ...],
    columns: pa.Schema,
    operators: tuple[Operator, ...],
    *,
    stateful: bool,
) -> None:
    """Whether what comes out fits what a view or a stream is."""
    if definition.kind == "view":
        if (
            any(o.windowed for o in operators)
            and "window_start" in columns.names
            and "window_start" not in key
        ):
            raise definition.wrong("there is a row for every window.", 'take "window" into the key')
    elif definition.realtime:
        if definition.options.get("format") == "avro":
            raise definition.wrong(
                "real-time mode writes no Avro.", 'say format="json", or leave latency= out'
            )
        if stateful and not key:
            raise definition.wrong(
                "a row of it replaces the one before.", 'say which one: @app.stream(key="page", …)'
            )
    elif any(o.output == "update" and o.windowed for o in operators):
        raise definition.wrong("a stream carries final rows.", 'say emit="final", or make it a view')
    elif any(o.output != "append" for o in operators):
        raise definition.wrong("a stream carries final rows, and these may change.", "make it a view")
    elif stateful and not any(o.stateful for o in operators):
        raise definition.wrong(
            "a stream carries final rows, and Spark's own grouping gives values that still change.",
            'use ps.aggregate(..., emit="final"), or make it a view',
        )


def _output(
    definition: Definition, key: tuple[str, ...], columns: pa.Schema, operators: tuple[Operator, ...]
) -> Output:
    final_by = next((o.final_by for o in reversed(operators) if o.final_by), None)
    again_by = next((o.again_by for o in reversed(operators) if o.again_by), None)
    for needed in (final_by, again_by):
        if needed is not None and needed not in columns.names:
            raise definition.wrong(
                f'the result has lost "{needed}", by which it is known to be final.', "keep that column"
            )
    found = Output(definition.name, definition.kind, key, columns, final_by=final_by, again_by=again_by)
    with definition.blamed():
        found.check()
    return found


def _late_columns(definition: Definition, build: Build) -> pa.Schema | None:
    """What a late pair of this definition looks like."""
    from pyspark.sql.pandas.types import to_arrow_schema

    again = Build(build.session, build.log, build.home, mode="odd", clock=build.clock)
    with definition.blamed():
        builds.call(definition.function, again)
    found = [operator.late_rows for operator in again.operators if operator.late_rows is not None]
    return to_arrow_schema(found[0].schema, timezone="UTC") if found else None


def _has_state(df: DataFrame) -> bool:
    plan: Any = df._jdf.queryExecution().analyzed()
    return bool(_STATEFUL.search(plan.treeString()))


_STATEFUL = re.compile(
    r"\b(Aggregate|Deduplicate\w*|TransformWithState\w*|FlatMapGroups\w*|GlobalLimit|LocalLimit)\b"
)
_OF_ONE_BUILD = re.compile(
    r"(?<=[\w`)])#\d+L?|@[0-9a-f]+"  # numbers of columns and objects
    r"|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # of a watermark
    r"|StreamingRelationV2 .*"  # the source, with the log's place and the number of cores
)


def _identity(
    definition: Definition,
    build: Build,
    df: DataFrame,
    key: tuple[str, ...],
    known: Sequence[str],
    *,
    stateful: bool,
) -> str:
    """The same for the same plan over the same columns, whatever the source text looks like.

    The columns are part of it: with a column that a topic got since, the plan would be another one.
    """
    there = _columns_there(build)
    if known and set(known) < set(there):
        before = _over(definition, build, known)
        if before is not None:
            df, there = before, known
    plan: Any = df._jdf.queryExecution().analyzed()
    text = _OF_ONE_BUILD.sub("", plan.treeString())
    # What Spark does not show: Python is only a name in its plans.
    inside = [(o.name, o.late, o.emit, o.span_us, o.correct_us, o.means) for o in build.operators]
    whole = [
        text,
        build.topics,
        build.clock,
        inside,
        key,
        df.schema.json(),
        _clocks(build) if stateful else [],
        *(["realtime"] if build.realtime else []),
    ]
    digest = sha256("\n".join(map(str, whole)).encode()).hexdigest()[:16]
    return f"{digest}:{','.join(map(quote, there))}"


def _columns_there(build: Build) -> Sequence[str]:
    """The columns that its topics have now, as the source calls them."""
    if not build.groups:
        return build.log.port.settings(build.topics[0]).schema.names
    schemas = (build.log.port.settings(topics[0]).schema for topics in build.groups)
    return [column_of(number, name) for number, schema in enumerate(schemas) for name in schema.names]


def _clocks(build: Build) -> list[object]:
    """Which event times its topics take for usable; their lateness is in the plan."""
    found = (build.log.port.settings(topic) for topic in build.topics)
    return [(s.event_time, s.sent_time, s.received_time, s.ahead_ms, s.offline_ms) for s in found]


def columns_in(identity: str) -> list[str]:
    """The columns that a topic had when a definition of this identity first ran."""
    return [unquote(name) for name in identity.partition(":")[2].split(",") if name]


def _over(definition: Definition, build: Build, columns: Sequence[str]) -> DataFrame | None:
    """The definition over these columns of its topics; None if it needs others."""
    from pyspark.errors import AnalysisException

    narrow = frozenset((*columns, *builds.HIDDEN))
    again = Build(
        build.session, build.log, build.home, clock=build.clock, columns=narrow, groups=build.groups,
        tables=build.tables, realtime=build.realtime,
    )  # fmt: skip
    try:
        return outputs.flat(builds.call(definition.function, again))
    except (AnalysisException, BadInput, BadDefinition):
        return None


def _time(df: DataFrame, operators: Sequence[Operator]) -> str | None:
    marked = [f.name for f in df.schema.fields if f.metadata.get(builds.TIME_MARK)]
    if marked:
        return marked[0]
    # The start: a minute that ends with the hour belongs to that hour and not to the next one. But sessions
    # come out in the order in which they end, and a long one would be late by when it began.
    column = "window_end" if any(o.name == "session" for o in operators) else "window_start"
    return column if column in df.columns else None
