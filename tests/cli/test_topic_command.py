"""`penstock topic`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.cli.command import Command, error_of

import penstock as ps

DDL = "id BIGINT, name STRING, at TIMESTAMP"


def _lines(*records: Mapping[str, object]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def test_create_says_what_it_made(cli: Command) -> None:
    result = cli("topic", "create", "orders", "--schema", DDL, "--key", "id", "--partitions", 3)
    assert result.stdout == 'created topic "orders" with 3 partitions, keyed by id\n'


def test_create_takes_every_setting(cli: Command, log: ps.Log) -> None:
    made = cli.json(
        "topic", "create", "t", "--schema", DDL, "--key", "id", "--key", "name", "--event-time", "at",
        "--partitions", 2, "--retention", "7 days", "--retention-bytes", "1 GiB", "--durability", "os",
        "--archive", "--max-record-bytes", "2 MiB", "--segment-bytes", 1_000_000, "--lateness", "3 seconds",
    )  # fmt: skip
    settings = log.topic("t").settings
    assert made["created"] is True
    assert settings.key == ("id", "name")
    assert (settings.event_time, settings.partitions, settings.archive) == ("at", 2, True)
    assert settings.lateness_ms == 3_000
    assert "at; late after 3 s" in cli("topic", "show", "t").stdout
    assert (settings.retention_ms, settings.retention_bytes) == (7 * 86_400_000, 1 << 30)
    assert (settings.record_bytes_max, settings.segment_bytes, settings.durability) == (
        2 << 20,
        1_000_000,
        "os",
    )


def test_an_archive_without_retention_says_that_nothing_will_be_archived(cli: Command) -> None:
    says = "nothing will be archived until retention is set: penstock topic alter t --retention"
    created = cli("topic", "create", "t", "--archive")
    assert (created.exit_code, says in created.stdout) == (0, True)
    assert says in cli("topic", "show", "t").stdout
    assert says in cli.json("topic", "show", "t")["archive_means"]
    assert says in cli.json("topic", "create", "t", "--archive", "--if-missing")["archive_means"]


@pytest.mark.parametrize("limit", [("--retention", "7 days"), ("--retention-bytes", "1 GiB")])
def test_an_archive_with_retention_is_shown_and_needs_no_remark(cli: Command, limit: tuple[str, str]) -> None:
    assert "archive" not in cli("topic", "create", "t", "--archive", *limit).stdout
    assert "what retention would remove becomes Parquet" in cli("topic", "show", "t").stdout


def test_an_archive_of_a_compacted_topic_says_that_it_comes_on_request(cli: Command) -> None:
    created = cli("topic", "create", "t", "--archive", "--cleanup", "compact", "--retention", "7 days")
    assert "on request: penstock topic archive t" in created.stdout


def test_alter_says_when_an_archive_comes_to_a_halt(cli: Command) -> None:
    says = "nothing will be archived until retention is set"
    cli("topic", "create", "t", "--archive")
    assert says not in cli("topic", "alter", "t", "--retention", "7 days").stdout
    assert says in cli("topic", "alter", "t", "--retention", "none").stdout
    assert cli.json("topic", "alter", "t", "--no-archive")["archive_means"] == "off"


def test_create_twice_is_refused_unless_it_may_exist(cli: Command) -> None:
    cli("topic", "create", "t", "--partitions", 2)
    assert cli("topic", "create", "t").exit_code == 2
    again = cli.json("topic", "create", "t", "--if-missing")
    assert (again["created"], again["partitions"]) == (False, 2)


def test_a_schema_that_cannot_be_read_is_explained(cli: Command) -> None:
    result = cli("topic", "create", "t", "--schema", "id BIGNT")
    assert result.exit_code == 2
    assert 'did you mean "BIGINT"?' in result.stderr


def test_list_tells_how_much_there_is(cli: Command) -> None:
    cli("topic", "create", "a", "--schema", DDL)
    cli("topic", "create", "b", "--schema", DDL)
    cli("produce", "b", input=_lines({"id": 1}, {"id": 2}))
    found = cli.json("topic", "list")["topics"]
    assert [(one["topic"], one["records"]) for one in found] == [("a", 0), ("b", 2)]
    assert "2" in cli("topic", "list").stdout


def test_a_broken_topic_does_not_hide_the_others(cli: Command, home: Path) -> None:
    cli("topic", "create", "a")
    cli("topic", "create", "b")
    (home / "topics/a/topic.json").write_text("{")
    broken, whole = cli.json("topic", "list", code=1)["topics"]
    assert (broken["error"]["type"], whole["topic"]) == ("StorageError", "b")


def test_an_empty_list_teaches(cli: Command) -> None:
    result = cli("topic", "list")
    assert result.stdout == ""
    assert "penstock topic create NAME" in result.stderr


def test_show_has_a_row_for_every_partition(cli: Command) -> None:
    cli("topic", "create", "t", "--schema", DDL, "--partitions", 2)
    cli("produce", "t", "--partition", 1, input=_lines({"id": 1}, {"id": 2}, {"id": 3}))
    shown = cli.json("topic", "show", "t")
    first, second = shown["partitions"]
    assert (first["records"], first["last_appended"]) == (0, None)
    assert (second["start"], second["end"], second["records"], second["segments"]) == (0, 3, 3, 1)
    assert second["first_appended"] == second["last_appended"] is not None
    assert shown["schema"] == DDL


def test_durability_is_told_in_words(cli: Command) -> None:
    cli("topic", "create", "safe")
    cli("topic", "create", "fast", "--durability", "os")
    assert "survives power loss" in cli("topic", "show", "safe").stdout
    assert "not power loss" in cli("topic", "show", "fast").stdout


def test_sizes_add_up_over_sealed_and_active_segments(cli: Command, home: Path) -> None:
    cli("topic", "create", "t", "--schema", DDL, "--segment-bytes", 2_000)
    for number in range(8):
        cli("produce", "t", input=_lines({"id": number, "name": "x" * 800}))
    shown = cli.json("topic", "show", "t")
    (only,) = shown["partitions"]
    assert (only["records"], only["segments"] > 1) == (8, True)
    files = sum(file.stat().st_size for file in (home / "topics/t/0").glob("*.arrows"))
    assert only["bytes"] == files


def test_alter_changes_limits_and_takes_them_away(cli: Command) -> None:
    cli("topic", "create", "t", "--schema", DDL)
    assert cli.json("topic", "alter", "t", "--retention", "1 hour")["changed"] == {
        "retention_ms": {"from": None, "to": 3_600_000}
    }
    assert cli.json("topic", "alter", "t", "--retention", "none")["changed"] == {
        "retention_ms": {"from": 3_600_000, "to": None}
    }


def test_alter_adds_columns_and_refuses_to_lose_any(cli: Command) -> None:
    cli("topic", "create", "t", "--schema", "id INT")
    changed = cli.json("topic", "alter", "t", "--schema", "id BIGINT, name STRING")["changed"]
    assert changed["schema"]["to"] == "id BIGINT, name STRING"
    assert cli("topic", "alter", "t", "--schema", "name STRING").exit_code == 2


def test_alter_without_a_change_is_bad_input(cli: Command) -> None:
    cli("topic", "create", "t")
    assert cli("topic", "alter", "t").exit_code == 2


@pytest.fixture
def two(cli: Command) -> Command:
    cli("topic", "create", "t", "--schema", "id BIGINT", "--key", "id", "--partitions", 2)
    cli("produce", "t", "--partition", 0, input=_lines({"id": 1}, {"id": 2}))
    cli("produce", "t", "--partition", 1, input=_lines({"id": 3}))
    return cli


def test_twice_the_partitions_keep_order_in_groups_and_say_where_plain_readers_must_look(
    two: Command,
) -> None:
    altered = two("topic", "alter", "t", "--partitions", 4)
    assert (
        "Consumer groups keep order per key by themselves: partitions 2 and 3 are held back" in altered.stdout
    )
    assert "partition 0 before offset 2 (its moved keys are now in 2)" in altered.stdout
    assert "partition 1 before offset 1 (its moved keys are now in 3)" in altered.stdout


def test_other_numbers_of_partitions_say_plainly_that_order_does_not_hold(two: Command) -> None:
    altered = two.json("topic", "alter", "t", "--partitions", 3)
    assert "does not hold across this change by itself" in altered["order_per_key"][0]
    assert altered["order_per_key"][2:] == ["  partition 0 before offset 2", "  partition 1 before offset 1"]
    assert altered["grown"][0]["groups_keep_order_per_key"] is False


def test_show_remembers_where_order_did_not_hold(two: Command) -> None:
    two("topic", "alter", "t", "--partitions", 3)
    assert "2 partitions became 3" in two("topic", "show", "t").stdout
    (grown,) = two.json("topic", "show", "t")["grown"]
    assert (grown["before"], grown["after"], grown["ends"]) == (2, 3, [2, 1])


def test_delete_asks_and_without_a_terminal_refuses(cli: Command) -> None:
    cli("topic", "create", "t", "--schema", "id BIGINT")
    cli("produce", "t", input=_lines({"id": 1}))
    refused = cli("topic", "delete", "t")
    assert refused.exit_code == 2
    assert 'topic "t" with 1 record would be deleted for good' in refused.stderr
    assert "--yes" in refused.stderr
    assert cli.json("topic", "delete", "t", "--yes") == {"deleted": "t", "records": 1, "groups": []}
    assert cli.json("topic", "list")["topics"] == []


def test_compact_keeps_the_latest_of_every_key(cli: Command) -> None:
    cli("topic", "create", "t", "--schema", "id BIGINT, v STRING", "--key", "id", "--cleanup", "compact")
    cli("produce", "t", input=_lines(*({"id": number % 3, "v": str(number)} for number in range(30))))
    (done,) = cli.json("topic", "compact", "t")["partitions"]
    assert done["records"] == {"before": 30, "after": 3}
    assert done["done"]["compacted_records"] == 27
    assert [line["value"]["v"] for line in cli.lines("consume", "t")] == ["27", "28", "29"]


def test_compact_tells_records_before_and_after(cli: Command) -> None:
    cli("topic", "create", "t", "--schema", "id BIGINT", "--key", "id", "--cleanup", "compact")
    cli("produce", "t", input=_lines({"id": 1}, {"id": 1}))
    assert "1 compacted record" in cli("topic", "compact", "t").stdout


def test_archive_turns_sealed_segments_into_parquet_at_the_same_offsets(cli: Command, home: Path) -> None:
    cli("topic", "create", "t", "--schema", "id BIGINT")
    cli("produce", "t", input=_lines(*({"id": number} for number in range(10))))
    before = cli.lines("consume", "t")
    assert "nothing to archive" in cli("topic", "archive", "t").stderr
    cli("topic", "compact", "t")
    (done,) = cli.json("topic", "archive", "t")["partitions"]
    assert done["done"]["archived_segments"] == 1
    assert len(list((home / "topics/t/0").glob("*.parquet"))) == 1
    assert cli.lines("consume", "t") == before


def test_a_name_that_is_none_is_refused(cli: Command) -> None:
    result = cli("topic", "create", "no/slash", "--json")
    assert (result.exit_code, error_of(result)["type"]) == (2, "BadName")
