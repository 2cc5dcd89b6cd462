"""An app on the command line: loading it, and the Spark it needs for some commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import progress
from penstock.cli.session import Session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.app.graph import Graph
    from penstock.app.loading import Loaded

AppFile = Annotated[
    str, typer.Argument(metavar="APP", help="Where the app is: shop.py, shop.py:app or package.module:app.")
]


@contextmanager
def loaded(session: Session, text: str) -> Iterator[Loaded]:
    """The app, closed at the end. Loading declares its topics, as importing its file would."""
    from penstock.app.loading import load

    found = load(text, home=session.folder if session.home is not None else None)
    try:
        yield found
    finally:
        found.app.close()


@contextmanager
def analysed(
    session: Session, text: str, *, checked: tuple[str, ...] = (), to_run: bool = False
) -> Iterator[Graph]:
    """The app with its definitions analysed, and Spark running; that is stopped if it was started here.

    Names in `checked` must be defined. All definitions are analysed: which query a definition is part of
    depends on the others. `to_run`: a page that looks at the app meanwhile is told that it is coming up.
    """
    from penstock.app.graph import Graph
    from penstock.app.published import Starting

    with loaded(session, text) as found:
        for name in checked:
            found.app.definition(name)
        if not found.app.definitions:  # an app of tables alone
            yield Graph(found.app, None)
            return
        with ExitStack() as until_the_end:
            with Starting(found.app) if to_run else nullcontext():
                spark = until_the_end.enter_context(_spark(found, hidden=session.json))
                graph = Graph(found.app, spark).analyse()
            yield graph


@contextmanager
def _spark(found: Loaded, *, hidden: bool) -> Iterator[SparkSession]:
    from penstock.flow.session import is_running, send_by_value

    if found.from_file:
        send_by_value(found.module)
    where = f" on {found.app.spark}" if found.app.spark else ""
    with progress.watched(f"starting Spark{where}", total=None, hidden=hidden):
        before = is_running()
        spark = found.app.start_spark()
    try:
        yield spark
    finally:
        if not before:
            _stop(spark)


def _stop(spark: SparkSession) -> None:
    from penstock.flow.failure import is_sparks

    try:
        spark.stop()
    except Exception as error:
        if not is_sparks(error):  # else it has ended before us
            raise
