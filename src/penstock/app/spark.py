"""The Spark session that an app runs in."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from penstock.flow.cluster import LOCAL, check_log, is_cluster
from penstock.opening import is_kafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.app.app import App


def start_spark(app: App) -> SparkSession:
    """Spark where the app wants it, ready for its definitions, or the session that there is."""
    from penstock.flow import connector
    from penstock.flow.session import send_by_value, start_session

    if is_cluster(app.spark or LOCAL):
        for name in {definition.function.__module__ for definition in app.definitions.values()}:
            if name in sys.modules:
                send_by_value(sys.modules[name])
    held, settings = _held(app), app.spark_settings
    if held and is_kafka(app.address):
        settings = connector.with_connector(settings)
    session = start_session(
        app.name, master=app.spark, settings=settings, checkpoints=app.checkpoints, held=held
    )
    check_log(session.sparkContext.master or LOCAL, app.address)  # it may be the program's own
    return session


def _held(app: App) -> int:
    """How many tasks its real-time definitions may hold for good; what each reads is known later."""
    from penstock.flow.session import cores

    definitions = list(app.definitions.values())
    count = sum(definition.realtime for definition in definitions)
    if not count:
        return 0
    read = sum(topic.settings.partitions for topic in app.topics.values())
    derived = sum(int(definition.options.get("partitions", 1)) for definition in definitions)
    return count * (read + derived + cores())
