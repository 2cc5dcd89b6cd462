"""Rows as Kafka messages and back, in Spark's own expressions: what kafka/records.py does in Python.

For Spark's Kafka connector, which has no place for Python between its source and its sink.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.errors import BadDefinition
from penstock.schema import RecordSchema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from penstock.log.settings import TopicSettings

_CORRUPT = "_corrupt"
_BYTES = RecordSchema.of(None)
_TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}


def is_bytes(settings: TopicSettings) -> bool:
    """Whether every message is a record."""
    return settings.schema == _BYTES


def check_readable(settings: TopicSettings) -> None:
    """Raises BadDefinition for a topic whose messages only Python can read."""
    reason = ""
    if settings.format == "avro":
        reason = "is Avro"
    elif settings.compacted:
        reason = "is compacted, and its deletes have no value"
    elif settings.sent_time is not None:
        reason = "has an event time that is corrected by several clocks"
    elif not is_bytes(settings) and (odd := _odd_type(_columns(settings))):
        reason = f"has a column of {odd}"
    if reason:
        raise BadDefinition(
            f'topic "{settings.name}" {reason}, which real-time mode cannot read.',
            hint="leave latency= out: micro-batches read every topic",
        )


def _odd_type(dtype: DataType) -> str:
    """A type that JSON has in more than one form, in words; empty if there is none."""
    if isinstance(dtype, BinaryType):
        return "BINARY"
    if isinstance(dtype, MapType) and not isinstance(dtype.keyType, StringType):
        return "MAP with keys that are no text"
    return next((odd for inner in _inner(dtype) if (odd := _odd_type(inner))), "")


def _inner(dtype: DataType) -> list[DataType]:
    if isinstance(dtype, StructType):
        return [field.dataType for field in dtype.fields]
    if isinstance(dtype, ArrayType):
        return [dtype.elementType]
    return [dtype.valueType] if isinstance(dtype, MapType) else []


def _columns(settings: TopicSettings) -> StructType:
    return from_arrow_schema(settings.schema.arrow)


# ---- reading -------------------------------------------------------------------------------------------


def rows(raw: DataFrame, settings: TopicSettings) -> DataFrame:
    """The records of a topic, from what Spark's Kafka source gives; what is no record is left out."""
    if is_bytes(settings):
        return raw.select("key", "value", _headers().alias("headers"), *_system())
    parsed = _parsed(raw, settings)
    return parsed.filter(_is_record(settings)).select("_read.*", *_system()).drop(_CORRUPT)


def misfits(raw: DataFrame, settings: TopicSettings, ending: str) -> DataFrame:
    """What is no record, as messages of the topic beside its own in which it is put aside."""
    place = F.concat_ws(":", "partition", "offset")
    told = F.struct(
        place.alias("place"),
        "partition",
        "offset",
        *(_as_json(F.col(name), BinaryType()).alias(name) for name in ("key", "value")),
        F.lit("it does not fit the topic's schema").alias("reason"),
    )
    found = _parsed(raw, settings).filter(~_is_record(settings))
    return found.select(
        place.cast("binary").alias("key"),
        F.to_json(told, _TIMES).cast("binary").alias("value"),
        F.concat("topic", F.lit(ending)).alias("topic"),
    )


def _parsed(raw: DataFrame, settings: TopicSettings) -> DataFrame:
    schema = StructType([*_columns(settings).fields, StructField(_CORRUPT, StringType())])
    options = {"columnNameOfCorruptRecord": _CORRUPT}
    return raw.withColumn("_read", F.from_json(F.col("value").cast("string"), schema, options))


def _is_record(settings: TopicSettings) -> Column:
    # Spark's reader stops where an object ends, whatever comes then.
    whole = F.rtrim(F.col("value").cast("string")).endswith("}")
    required = [whole, F.col("_read").isNotNull(), F.col(f"_read.{_CORRUPT}").isNull()]
    required += [F.col(f"_read.`{f.name}`").isNotNull() for f in settings.schema.arrow if not f.nullable]
    return F.coalesce(reduce(lambda one, other: one & other, required), F.lit(False))


def _headers() -> Column:
    """As a map; of several with one name the last."""
    names = "array_distinct(transform(headers, h -> h.key))"
    values = f"transform({names}, name -> element_at(filter(headers, h -> h.key = name), -1).value)"
    return F.expr(f"map_from_arrays({names}, {values})")


def _system() -> Sequence[Column]:
    given = {"_topic": "topic", "_partition": "partition", "_offset": "offset", "_timestamp": "timestamp"}
    return [F.col(theirs).alias(ours) for ours, theirs in given.items()]


# ---- writing -------------------------------------------------------------------------------------------


def messages(df: DataFrame, settings: TopicSettings) -> DataFrame:
    """`df` as messages of a topic, for Spark's Kafka sink."""
    values = [_as_json(F.col(f"`{f.name}`"), f.dataType).alias(f.name) for f in df.schema.fields]
    value = F.to_json(F.struct(*values), _TIMES).cast("binary").alias("value")
    key = _key([(F.col(f"`{name}`"), df.schema[name].dataType) for name in settings.key])
    return df.select(key.alias("key"), value, F.lit(settings.name).alias("topic"))


def _as_json(value: Column, dtype: DataType) -> Column:
    """As our records write what JSON has no form for."""
    if isinstance(dtype, DecimalType):
        return value.cast("string")
    if isinstance(dtype, BinaryType):
        return F.when(value.isNotNull(), F.struct(F.base64(value).alias("base64")))
    if isinstance(dtype, StructType):
        parts = [_as_json(value.getField(f.name), f.dataType).alias(f.name) for f in dtype.fields]
        return F.when(value.isNotNull(), F.struct(*parts))
    if isinstance(dtype, ArrayType):
        return F.transform(value, lambda item: _as_json(item, dtype.elementType))
    if isinstance(dtype, MapType):
        return F.transform_values(value, lambda _, item: _as_json(item, dtype.valueType))
    return value


def _key(columns: Sequence[tuple[Column, DataType]]) -> Column:
    """The bytes by which a partition is chosen: those of log/keys.py."""
    texts = [_text(value, dtype) for value, dtype in columns]
    if not texts:
        return F.lit(None).cast("binary")
    return texts[0] if len(texts) == 1 else F.concat(*map(_netstring, texts))


def _text(value: Column, dtype: DataType) -> Column:
    if isinstance(dtype, TimestampType | TimestampNTZType):
        value = F.unix_micros(value.cast("timestamp"))
    return value if isinstance(dtype, BinaryType) else value.cast("string").cast("binary")


def _netstring(text: Column) -> Column:
    length = F.octet_length(text).cast("string").cast("binary")
    whole = F.concat(length, F.lit(b":"), text, F.lit(b","))
    return F.coalesce(whole, F.lit(b"-,"))
