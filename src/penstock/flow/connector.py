"""Spark's own Kafka connector: brought into a session, and told where the cluster is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.errors import NotSupported
from penstock.kafka import jars
from penstock.kafka.address import Address

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CLASS = "org.apache.spark.sql.kafka010.KafkaSourceProvider"


def with_connector(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings of a session that will need it.

    One that runs already cannot get it: with `ADD JAR` a query starts, and fails when its first long batch
    ends, because the driver does not find its classes.
    """
    given = [settings["spark.jars"]] if settings.get("spark.jars") else []
    ours = [str(jar) for jar in sorted(jars.connector().glob("*.jar"))]
    return {**settings, "spark.jars": ",".join([*given, *ours])}


def check(session: SparkSession) -> None:
    jvm: Any = session._jvm
    if not jvm.org.apache.spark.util.Utils.classIsLoadable(_CLASS):
        raise NotSupported(
            "the running Spark session has no Kafka connector, and it is too late to bring it in.",
            hint="stop the session: the app starts one with the connector, as `penstock run` does",
        )


def options(url: str) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in Address.parse(url).java().items()}


def source(session: SparkSession, url: str, topics: tuple[str, ...], *, starting: str) -> DataFrame:
    """Messages as they are. `starting`: "earliest", or offsets as JSON."""
    check(session)
    chosen = {
        **options(url),
        "kafka.isolation.level": "read_committed",
        "subscribe": ",".join(topics),
        "startingOffsets": starting,
        "includeHeaders": "true",
        "failOnDataLoss": "true",
    }
    return session.readStream.format("kafka").options(**chosen).load()
