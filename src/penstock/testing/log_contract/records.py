"""Records come back as they were given, and those that do not fit are refused."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from penstock.errors import BadRecord, RecordTooLarge
from penstock.log.log import Log
from penstock.testing.log_contract.backend import Backend, column, fresh, numbers

_VALUES: dict[str, list[Any]] = {
    "TINYINT": [-128, 0, 127],
    "SMALLINT": [-(2**15), 2**15 - 1],
    "INT": [-(2**31), 2**31 - 1],
    "BIGINT": [-(2**63), 2**53 + 1, 2**63 - 1],
    "FLOAT": [0.5, -(2.0**100), math.inf],
    "DOUBLE": [0.1, 1e308, 5e-324, -0.0, -math.inf],
    "STRING": ["", "plain", 'quotes " and \\', "null \0 inside", "Grüße 🚰"],
    "BINARY": [b"", b"text", bytes(range(256))],
    "BOOLEAN": [True, False],
    "DATE": [date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)],
    "TIMESTAMP": [datetime(1, 1, 1, tzinfo=UTC), datetime(2026, 11, 15, 12, 30, 0, 123_456, tzinfo=UTC)],
    "TIMESTAMP_NTZ": [datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(9999, 12, 31, 23, 59)],
    "DECIMAL(38, 18)": [Decimal("12345678901234567890.123456789012345678"), Decimal("-0.000000000000000001")],
    "ARRAY<STRING>": [[], ["a", None, ""]],
    "ARRAY<ARRAY<INT>>": [[[1, None], None, []]],
    "MAP<STRING, DOUBLE>": [{}, {"a": 1.5, "b": None}],
    "MAP<INT, ARRAY<STRING>>": [{-1: ["x"], 2: None}],
    "STRUCT<a: INT, b: STRUCT<c: BINARY, d: ARRAY<DATE>>>": [
        {"a": 1, "b": {"c": b"\xff", "d": [date(2026, 1, 1), None]}},
        {"a": None, "b": None},
    ],
}


@dataclass
class _Address:
    street: str
    number: int | None


@dataclass
class _Customer:
    name: str
    home: _Address
    tags: list[str]


class Records(Backend):
    @pytest.mark.parametrize("dtype", _VALUES, ids=lambda dtype: dtype.replace(" ", ""))
    def test_values_of_every_type_come_back_as_they_were(self, log: Log, dtype: str) -> None:
        topic = log.create_topic(fresh("values"), f"v {dtype}")
        values = [*_VALUES[dtype], None]
        topic.append([{"v": value} for value in values])
        found = column(topic, "v")
        assert found == values
        assert list(map(repr, found)) == list(map(repr, values))  # 1 is not True, -0.0 is not 0.0

    def test_not_a_number_comes_back(self, log: Log) -> None:
        topic = log.create_topic(fresh("values"), "v DOUBLE")
        topic.append({"v": math.nan})
        (found,) = column(topic, "v")
        assert math.isnan(found)

    def test_a_record_of_nothing_but_nulls_comes_back(self, log: Log) -> None:
        topic = log.create_topic(fresh("values"), "a INT, b STRING, c STRUCT<d: INT>")
        topic.append({})
        assert list(topic.rows()) == [{"a": None, "b": None, "c": None}]

    @pytest.mark.parametrize("columns", [1, 100, 1_600])
    def test_a_structure_of_many_columns_comes_back(self, log: Log, columns: int) -> None:
        fields = ", ".join(f"a_column_of_a_wide_table_{number}: INT" for number in range(columns))
        topic = log.create_topic(fresh("wide"), f"value STRUCT<{fields}>")
        wanted = {"value": {f"a_column_of_a_wide_table_{number}": number for number in range(columns)}}
        topic.append(wanted)
        assert list(topic.rows()) == [wanted]

    def test_columns_of_any_name_come_back(self, log: Log) -> None:
        topic = log.create_topic(fresh("values"), "`a b` INT, `ü` INT, `key` INT, value INT")
        row = {"a b": 1, "ü": 2, "key": 3, "value": 4}
        topic.append(row)
        assert list(topic.rows()) == [row]

    def test_dataclasses_come_back_as_dataclasses(self, log: Log) -> None:
        topic = log.create_topic(fresh("customers"), _Customer)
        ann = _Customer("ann", _Address("main", None), ["new"])
        topic.append(ann)
        assert [event.value for event in topic.events()] == [ann]

    def test_a_topic_without_a_schema_holds_bytes_with_headers(self, log: Log) -> None:
        topic = log.create_topic(fresh("bytes"))
        row = {"key": b"k", "value": b"\x00\xff", "headers": {"trace": b"1", "empty": b"", "none": None}}
        topic.append(row)
        assert list(topic.rows()) == [row]

    def test_bytes_may_lack_key_value_and_headers(self, log: Log) -> None:
        topic = log.create_topic(fresh("bytes"))
        topic.append([{"value": b"v"}, {"key": b"k"}, {"key": b"", "value": b""}])
        rows = list(topic.rows())
        assert [(row["key"], row["value"]) for row in rows] == [(None, b"v"), (b"k", None), (b"", b"")]
        assert not any(row["headers"] for row in rows)  # no headers and none at all are the same

    @pytest.mark.parametrize(
        "bad",
        [{"n": "one"}, {"n": 2**63}, {"n": 1.5}, {"m": 1}, 7],
        ids=["type", "range", "fraction", "column", "row"],
    )
    def test_a_record_that_does_not_fit_is_refused_with_all_of_its_append(self, log: Log, bad: Any) -> None:
        topic = numbers(log)
        with pytest.raises(BadRecord) as refused:
            topic.append([{"n": 1}, bad, {"n": 3}])
        assert refused.value.row == 1
        assert column(topic) == []

    def test_a_missing_value_that_must_be_there_is_refused(self, log: Log) -> None:
        topic = log.create_topic(fresh("orders"), "id BIGINT NOT NULL, note STRING")
        with pytest.raises(BadRecord) as refused:
            topic.append({"note": "no id"})
        assert refused.value.column == "id"

    def test_a_record_that_is_too_large_is_refused_with_all_of_its_append(self, log: Log) -> None:
        topic = log.create_topic(fresh("texts"), "text STRING", record_bytes_max=1_000)
        with pytest.raises(RecordTooLarge) as refused:
            topic.append([{"text": "short"}, {"text": "x" * 1_001}])
        assert (refused.value.row, refused.value.size_bytes_max) == (1, 1_000)
        assert column(topic, "text") == []

    def test_a_record_as_large_as_allowed_is_stored(self, log: Log) -> None:
        topic = log.create_topic(fresh("texts"), "text STRING")
        text = "x" * (topic.settings.record_bytes_max - 100)
        topic.append({"text": text})
        assert column(topic, "text") == [text]
