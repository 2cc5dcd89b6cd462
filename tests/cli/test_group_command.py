"""`penstock group`."""

from __future__ import annotations

import pytest
from tests.cli.command import Command, error_of

import penstock as ps


@pytest.fixture
def topic(log: ps.Log, cli: Command) -> ps.Topic:
    """Ten records in each of two partitions; group `g` has read three of one."""
    topic = log.create_topic("t", "n BIGINT", partitions=2)
    for partition in (0, 1):
        topic.append([{"n": number} for number in range(10)], partition=partition)
    log.port.reset("g", "t", {0: 3, 1: 0})
    return topic


def _committed(log: ps.Log) -> dict[int, int]:
    return log.port.committed("g", "t")


def test_list_tells_lag(cli: Command, topic: ps.Topic) -> None:
    (only,) = cli.json("group", "list")["groups"]
    assert (only["group"], only["topic"], only["members"], only["lag_records"]) == ("g", "t", 0, 17)
    assert only["lag_seconds"] > 0


def test_an_empty_list_teaches(cli: Command, log: ps.Log) -> None:
    assert "penstock consume TOPIC --group NAME" in cli("group", "list").stderr


def test_show_has_a_row_for_every_partition(cli: Command, topic: ps.Topic) -> None:
    (shown,) = cli.json("group", "show", "g")["topics"]
    assert [(lag["committed"], lag["end"], lag["records"]) for lag in shown["lag"]] == [
        (3, 10, 7),
        (0, 10, 10),
    ]
    assert "no members at the moment" in cli("group", "show", "g").stdout


def test_members_are_shown_with_what_they_read_and_why_they_wait(cli: Command, topic: ps.Topic) -> None:
    with topic.consume(group="g") as one, topic.consume(group="g") as two, topic.consume(group="g") as three:
        for consumer in (one, two, three, one, two):
            consumer._poll()
        shown = cli("group", "show", "g").stdout
        (info,) = cli.json("group", "show", "g")["topics"]
    assert "reads partition 0" in shown
    assert "reads partition 1" in shown
    assert "waiting: more members than partitions" in shown
    assert sorted(member["waiting"] for member in info["members"]) == [False, False, True]


def test_show_warns_when_retention_will_take_unread_records(cli: Command, topic: ps.Topic) -> None:
    cli("topic", "alter", "t", "--retention", "3 hours")
    assert "expires in 2 h 59 min" in cli("group", "show", "g").stdout


def test_an_unknown_group_has_a_suggestion(cli: Command, log: ps.Log, topic: ps.Topic) -> None:
    log.port.reset("mailer", "t", {0: 0})
    result = cli("group", "show", "mailr", "--json")
    assert (result.exit_code, error_of(result)["did_you_mean"]) == (2, "mailer")
    assert error_of(cli("group", "show", "g", "--topic", "tt", "--json"))["type"] == "UnknownTopic"


def test_a_dry_run_shows_everything_and_changes_nothing(cli: Command, log: ps.Log, topic: ps.Topic) -> None:
    told = cli.json("group", "reset", "g", "--topic", "t", "--to", "5", "--dry-run")
    assert told["moved"] is False
    assert told["partitions"] == [
        {"partition": 0, "from": 3, "to": 5, "read_again": 0, "skipped": 2},
        {"partition": 1, "from": 0, "to": 5, "read_again": 0, "skipped": 5},
    ]
    shown = cli("group", "reset", "g", "--topic", "t", "--to", "earliest", "--dry-run")
    assert "3 records read again" in shown.stdout
    assert "nothing was changed" in shown.stderr
    assert _committed(log) == {0: 3, 1: 0}


def test_reset_moves_the_group(cli: Command, log: ps.Log, topic: ps.Topic) -> None:
    assert cli.json("group", "reset", "g", "--topic", "t", "--to", "latest", "--yes")["moved"] is True
    assert _committed(log) == {0: 10, 1: 10}
    cli("group", "reset", "g", "--topic", "t", "--to", "4", "--partition", 1, "--yes")
    assert _committed(log) == {0: 10, 1: 4}
    cli("group", "reset", "g", "--topic", "t", "--to", "1 hour ago", "--yes")
    assert _committed(log) == {0: 0, 1: 0}


def test_reset_asks_and_without_a_terminal_refuses(cli: Command, log: ps.Log, topic: ps.Topic) -> None:
    result = cli("group", "reset", "g", "--topic", "t", "--to", "latest")
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert _committed(log) == {0: 3, 1: 0}


def test_reset_counts_the_members_that_run(cli: Command, topic: ps.Topic) -> None:
    reset = ("group", "reset", "g", "--topic", "t", "--to", "latest", "--yes")
    with topic.consume(group="g") as one:
        one._poll()
        assert 'group "g" has 1 running member on "t".' in cli(*reset).stderr
        with topic.consume(group="g") as two:
            two._poll()
            assert 'group "g" has 2 running members on "t".' in cli(*reset).stderr


def test_reset_refuses_an_offset_that_is_not_there(cli: Command, log: ps.Log, topic: ps.Topic) -> None:
    result = cli("group", "reset", "g", "--topic", "t", "--to", "11", "--yes", "--json")
    assert (result.exit_code, error_of(result)["type"]) == (2, "OffsetOutOfRange")
    assert _committed(log) == {0: 3, 1: 0}
