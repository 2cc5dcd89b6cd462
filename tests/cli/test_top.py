"""`penstock top`: what is there now, with rates, and nothing created by looking."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tests.app.test_published import TOLD
from tests.cli.command import Command

import penstock as ps
from penstock.app import published
from penstock.cli import top


@pytest.fixture
def filled(cli: Command) -> Command:
    with ps.open_log(cli.home) as log:
        topic = log.create_topic("page_views", "user_id BIGINT")
        topic.append([{"user_id": n} for n in range(7)])
        assert len(list(topic.consume(group="mailer", follow=False))) == 7
    return cli


def test_it_shows_topics_groups_and_queues(filled: Command) -> None:
    with ps.open_queues(filled.home) as queues:
        queues.queue("mails").publish({"to": "ann@example.com"})
    (told,) = filled.lines("top", "--once", "--every", "100 ms")
    (topic,) = told["topics"]
    assert (topic["topic"], topic["records"], topic["per_second"]) == ("page_views", 7, 0.0)
    assert [(each["group"], each["lag_records"]) for each in told["groups"]] == [("mailer", 0)]
    assert [(each["queue"], each["ready"]) for each in told["queues"]] == [("mails", 1)]


def test_it_shows_the_queries_of_an_app_that_runs_elsewhere(filled: Command) -> None:
    published._write(ps.App("shop", home=filled.home), TOLD)
    (told,) = filled.lines("top", "--once", "--every", "100 ms")
    assert told["apps"]["shop"]["live"] is False  # what it said is from long ago
    assert [query["name"] for query in told["apps"]["shop"]["queries"]] == ["per_minute", "failing"]
    shown = filled("top", "--once", "--every", "100 ms").stdout
    assert "shop last told" in shown
    assert "page_views" in shown


def test_looking_creates_nothing(filled: Command) -> None:
    before = sorted(filled.home.iterdir())
    assert filled("top", "--once", "--every", "100 ms").exit_code == 0
    assert sorted(filled.home.iterdir()) == before


def test_it_goes_on_until_ctrl_c(filled: Command) -> None:
    with filled.start("top", "--json", "--every", "100 ms") as process:
        assert process.stdout is not None
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert first["at"] < second["at"]


class Forgetful(ps.Log):
    """A log that lists what somebody deletes before it is looked at."""

    def topics(self) -> list[str]:
        return [*super().topics(), "gone"]

    def groups(self) -> list[tuple[str, str]]:
        return [*super().groups(), ("mailer", "gone")]


def test_what_is_deleted_meanwhile_is_left_out(filled: Command) -> None:
    with ps.open_log(filled.home) as log:
        look = next(top._looks(Forgetful(log.port), filled.home, 0.01))
    assert [topic.topic for topic in look.topics] == ["page_views"]
    assert [info.topic for info in look.groups] == ["page_views"]


def test_a_topic_that_cannot_be_read_hides_no_other(filled: Command) -> None:
    with ps.open_log(filled.home) as log:
        log.create_topic("broken", "n BIGINT").append({"n": 1})
    partition = filled.home / "topics" / "broken" / "0"
    (segment,) = partition.glob("*.arrows")
    segment.unlink()
    (partition / "manifest.json").write_text("{")
    (told,) = filled.lines("top", "--once", "--every", "100 ms")
    assert [(topic["topic"], topic["records"]) for topic in told["topics"]] == [
        ("broken", 0),
        ("page_views", 7),
    ]
    assert told["topics"][0]["error"]["type"] == "SegmentMissing"
    assert "cannot be read" in filled("top", "--once", "--every", "100 ms").stdout


def test_a_place_without_a_log_is_refused(cli: Command, tmp_path: Path) -> None:
    assert cli("top", "--once").exit_code == 2
    assert not cli.home.exists()
