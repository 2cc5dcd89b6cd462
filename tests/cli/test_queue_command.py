"""`penstock queue`: queues in a folder from the command line."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Command, error_of
from tests.waiting import wait_until

import penstock as ps


@pytest.fixture
def jobs(cli: Command) -> Command:
    """With a queue `jobs`, and three messages in it."""
    assert cli("queue", "create", "jobs", "--max-attempts", 2).exit_code == 0
    publish(cli, *({"id": number} for number in (1, 2, 3)))
    return cli


def publish(cli: Command, *bodies: object) -> None:
    lines = "".join(f"{json.dumps(body)}\n" for body in bodies)
    assert cli("queue", "publish", "jobs", input=lines).exit_code == 0


def messages(cli: Command, queue: str = "jobs") -> dict[str, Any]:
    found = cli.json("queue", "show", queue)["messages"]
    assert isinstance(found, dict)
    return found


def taken(cli: Command, *args: object, queue: str = "jobs") -> list[Any]:
    return [json.loads(line["body"]) for line in cli.lines("queue", "get", queue, "--max", 100, *args)]


# ---- queues -------------------------------------------------------------------------------------


def test_a_queue_is_declared_once_and_shown_as_it_was_declared(cli: Command) -> None:
    options = ("--max-length", 10, "--overflow", "drop_oldest", "--ttl", "1 day", "--max-attempts", "none")
    created = cli.json("queue", "create", "jobs", *options)
    assert created["created"] is True
    assert cli.json("queue", "create", "jobs", *options)["created"] is False
    settings = cli.json("queue", "show", "jobs")["settings"]
    assert (settings["max_length"], settings["overflow"], settings["ttl_ms"]) == (
        10,
        "drop_oldest",
        86_400_000,
    )
    assert settings["max_attempts"] is None
    differing = cli("queue", "create", "jobs", "--max-length", 11, "--json")
    assert (differing.exit_code, error_of(differing)["type"]) == (2, "QueueDiffers")


def test_list_says_what_waits(jobs: Command) -> None:
    (queue,) = jobs.json("queue", "list")["queues"]
    assert (queue["queue"], queue["ready"], queue["dead"]) == ("jobs", 3, 0)
    assert "jobs" in jobs("queue", "list").stdout


def test_alter_changes_and_keeps_what_waits(jobs: Command) -> None:
    changed = jobs.json("queue", "alter", "jobs", "--max-attempts", 7)
    assert (changed["settings"]["max_attempts"], changed["messages"]["ready"]) == (7, 3)


def test_purge_and_delete_ask_first(jobs: Command) -> None:
    assert jobs("queue", "purge", "jobs").exit_code == 2
    assert jobs.json("queue", "purge", "jobs", "--yes")["removed"] == 3
    assert jobs("queue", "delete", "jobs").exit_code == 2
    assert jobs("queue", "delete", "jobs", "--yes").exit_code == 0
    assert jobs.json("queue", "list")["queues"] == []


def test_an_unknown_queue_is_bad_input_with_a_way_out(jobs: Command) -> None:
    result = jobs("queue", "get", "jbos", "--json")
    assert result.exit_code == 2
    assert (error_of(result)["type"], "jobs" in error_of(result)["hint"]) == ("UnknownQueue", True)


# ---- messages -----------------------------------------------------------------------------------


def test_a_message_that_was_printed_is_gone(jobs: Command) -> None:
    assert taken(jobs) == [{"id": 1}, {"id": 2}, {"id": 3}]
    nothing = jobs("queue", "get", "jobs")
    assert (nothing.exit_code, nothing.stdout) == (1, "")


def test_without_json_the_body_is_printed_as_it_is(jobs: Command) -> None:
    assert jobs("queue", "get", "jobs").stdout == '{"id": 1}\n'


def test_a_message_that_is_put_back_comes_again_and_is_printed_once(jobs: Command) -> None:
    assert len(taken(jobs, "--then", "nack")) == 3
    again = jobs.lines("queue", "get", "jobs", "--max", 10)
    assert [(line["attempts"], line["redelivered"]) for line in again] == [(2, True)] * 3


def test_a_text_is_the_body_of_one_message(cli: Command, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("b\n\nc\n")
    cli("queue", "create", "jobs")
    assert cli.json("queue", "publish", "jobs", "a text", "--id", "first")["last_id"] == "first"
    for way in (("--file", lines), ("-",), ("--file", "-"), ()):
        assert cli.json("queue", "publish", "jobs", *way, input="b\nc\n")["published"] == 2
    assert cli("queue", "publish", "jobs", "--body", "-1").exit_code == 0
    bodies = [line["body"] for line in cli.lines("queue", "get", "jobs", "--max", 100)]
    assert bodies == ["a text", *["b", "c"] * 4, "-1"]


def test_a_text_that_names_a_file_is_still_the_body_and_says_so(cli: Command, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("b\n")
    cli("queue", "create", "jobs")
    published = cli("queue", "publish", "jobs", file)
    assert (published.exit_code, f"--file {file}" in published.stderr.replace("\n", "")) == (0, True)
    assert [line["body"] for line in cli.lines("queue", "get", "jobs")] == [str(file)]


@pytest.mark.parametrize("ways", [("a", "--body", "b"), ("a", "--file", "b"), ("--file", "no such file")])
def test_a_body_comes_from_one_place_that_can_be_read(jobs: Command, ways: tuple[str, ...]) -> None:
    result = jobs("queue", "publish", "jobs", *ways, "--json")
    assert (result.exit_code, error_of(result)["type"]) == (2, "BadOption")


def test_an_argument_that_is_no_text_is_bytes_in_a_body_and_refused_in_a_key(jobs: Command) -> None:
    jobs("queue", "purge", "jobs", "--yes")
    assert jobs("queue", "publish", "jobs", "a\udcff").exit_code == 0
    refused = jobs("queue", "publish", "jobs", "a", "--key", "\udcff", "--json")
    assert (refused.exit_code, error_of(refused)["type"]) == (2, "BadOption")
    (line,) = jobs.lines("queue", "get", "jobs")
    assert line["body"] == {"base64": "Yf8="}


def test_one_message_may_have_a_key_headers_a_priority_and_an_id(cli: Command) -> None:
    cli("queue", "create", "jobs", "--max-priority", 5)
    cli("queue", "publish", "jobs", "--body", "slow")
    about = ("--key", "a.b", "--header", "colour=red", "--priority", 3, "--id", "first")
    assert cli.json("queue", "publish", "jobs", "--body", "fast", *about)["last_id"] == "first"
    (line,) = cli.lines("queue", "get", "jobs")
    assert (line["body"], line["id"], line["key"], line["headers"]) == (
        "fast",
        "first",
        "a.b",
        {"colour": "red"},
    )


def test_a_delayed_message_is_kept_back(cli: Command) -> None:
    cli("queue", "create", "jobs")
    cli("queue", "publish", "jobs", "--body", "later", "--delay", "1 hour")
    assert cli("queue", "get", "jobs").exit_code == 1
    assert messages(cli)["delayed"] == 1


def test_a_full_queue_refuses_with_a_code_that_says_try_again(cli: Command) -> None:
    cli("queue", "create", "jobs", "--max-length", 1)
    cli("queue", "publish", "jobs", "--body", "1")
    result = cli("queue", "publish", "jobs", "--body", "2", "--json")
    assert (result.exit_code, error_of(result)["type"]) == (3, "QueueFull")


def test_lines_are_published_as_there_is_room_for_them(cli: Command) -> None:
    """Not all of a batch or none: with --overflow block no room would ever have been enough."""
    cli("queue", "create", "jobs", "--max-length", 2)
    told = cli("queue", "publish", "jobs", input="a\nb\nc\n")
    assert (told.exit_code, messages(cli)["ready"]) == (3, 2)
    assert "before that, 2 messages were published" in told.stderr


def test_follow_goes_on_until_ctrl_c(jobs: Command) -> None:
    with jobs.start("queue", "get", "jobs", "--follow") as process:
        assert process.stdout
        assert [json.loads(process.stdout.readline())["id"] for _ in range(3)] == [1, 2, 3]
        publish(jobs, {"id": 4})
        assert json.loads(process.stdout.readline())["id"] == 4
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert messages(jobs)["ready"] == 0


# ---- exchanges ----------------------------------------------------------------------------------


def test_an_exchange_hands_messages_to_the_queues_that_are_bound(cli: Command) -> None:
    for queue in ("errors", "all"):
        cli("queue", "create", queue)
    cli("queue", "exchange", "logs", "--kind", "topic")
    cli("queue", "bind", "logs", "errors", "--pattern", "*.error")
    cli("queue", "bind", "logs", "all", "--pattern", "#")
    for key in ("web.error", "web.info"):
        assert (
            cli("queue", "publish", "logs", "--exchange", "--key", key, "--body", f'"{key}"').exit_code == 0
        )
    assert taken(cli, queue="errors") == ["web.error"]
    assert taken(cli, queue="all") == ["web.error", "web.info"]
    listed = cli.json("queue", "list")
    assert listed["exchanges"] == [{"exchange": "logs", "kind": "topic"}]
    assert len(listed["bindings"]) == 2


def test_a_binding_may_be_taken_back_and_an_exchange_removed(cli: Command) -> None:
    cli("queue", "create", "jobs")
    cli("queue", "exchange", "work")
    cli("queue", "bind", "work", "jobs", "--pattern", "k")
    cli("queue", "bind", "work", "jobs", "--pattern", "k", "--remove")
    result = cli("queue", "publish", "work", "--exchange", "--key", "k", "--body", "x", "--json")
    assert (result.exit_code, error_of(result)["type"]) == (2, "Unroutable")
    assert cli("queue", "exchange", "work", "--delete").exit_code == 0
    result = cli("queue", "publish", "work", "--exchange", "--body", "x", "--json")
    assert (result.exit_code, error_of(result)["type"]) == (2, "UnknownExchange")


# ---- work and dead letters ----------------------------------------------------------------------


def worker(cli: Command, code: str, *options: object) -> Any:
    done = cli(
        "queue",
        "work",
        "jobs",
        "--once",
        "--delay",
        "0 s",
        *options,
        "--json",
        "--",
        sys.executable,
        "-c",
        code,
    )
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout.splitlines()[-1])


def test_a_command_that_ends_well_acks(jobs: Command) -> None:
    counts = worker(jobs, "import sys, json; json.load(sys.stdin)['id']")
    assert counts == {"queue": "jobs", "done": 3, "again": 0, "rejected": 0}
    assert messages(jobs) == {"ready": 0, "dead": 0, "unacked": 0, "delayed": 0, "consumers": 0}


def test_a_command_that_fails_is_tried_again_and_then_the_message_is_a_dead_letter(jobs: Command) -> None:
    poison = "import sys, json; sys.exit('cannot do two' if json.load(sys.stdin)['id'] == 2 else 0)"
    counts = worker(jobs, poison)
    assert (counts["done"], counts["again"]) == (2, 2)
    (letter,) = jobs.json("queue", "dead", "jobs")["dead_letters"]
    assert (letter["cause"], letter["attempts"]) == ("attempts", 2)
    assert letter["reason"] == "exit code 1: cannot do two"
    assert [one["attempt"] for one in letter["history"]] == [1, 2]


def test_bad_data_is_a_dead_letter_at_once_and_a_slow_command_is_killed(jobs: Command) -> None:
    counts = worker(jobs, "import sys; sys.exit(65)")
    assert counts["rejected"] == 3
    publish(jobs, {"id": 4})
    worker(jobs, "import time; time.sleep(60)", "--timeout", "0.3 s")
    reasons = [letter["reason"] for letter in jobs.json("queue", "dead", "jobs")["dead_letters"]]
    assert reasons == ["exit code 65"] * 3 + ["it took longer than 0.3 s"]


def test_a_command_that_does_not_exist_takes_no_message_with_it(jobs: Command) -> None:
    result = jobs("queue", "work", "jobs", "--once", "--", "no-such-program")
    assert (result.exit_code, "cannot be run" in result.stderr) == (2, True)
    assert messages(jobs)["ready"] == 3


@pytest.fixture
def buried(jobs: Command) -> Command:
    """All three are dead letters."""
    assert len(taken(jobs, "--then", "reject", "--reason", "no address")) == 3
    return jobs


def test_dead_letters_are_found_by_cause_id_and_body(buried: Command) -> None:
    letters = buried.json("queue", "dead", "jobs")["dead_letters"]
    assert [(letter["cause"], letter["reason"]) for letter in letters] == [("rejected", "no address")] * 3
    assert len(buried.json("queue", "dead", "jobs", "--cause", "expired")["dead_letters"]) == 0
    one = ("--id", letters[1]["id"])
    assert buried.json("queue", "dead", "jobs", *one)["dead_letters"] == letters[1:2]
    assert buried.json("queue", "dead", "jobs", "--containing", "3")["dead_letters"] == letters[2:]
    assert "no address" in buried("queue", "dead", "jobs").stdout


def test_redrive_gives_all_of_them_another_try(buried: Command) -> None:
    assert buried.json("queue", "redrive", "jobs")["redriven"] == 3
    assert taken(buried) == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_redrive_by_filter_leaves_the_others(buried: Command) -> None:
    assert buried.json("queue", "redrive", "jobs", "--containing", "2")["redriven"] == 1
    assert taken(buried) == [{"id": 2}]
    assert messages(buried)["dead"] == 2
    assert buried.json("queue", "purge", "jobs", "--dead", "--yes")["removed"] == 2


def test_redrive_with_another_body_into_another_queue(buried: Command) -> None:
    buried("queue", "create", "mended")
    buried(
        "queue",
        "redrive",
        "jobs",
        "--to",
        "mended",
        "--set",
        "to=ann@example.com",
        "--set",
        "tries=1",
        "--max",
        1,
    )
    assert taken(buried, queue="mended") == [{"id": 1, "to": "ann@example.com", "tries": 1}]
    buried("queue", "redrive", "jobs", "--body", '"new"')
    assert taken(buried) == ["new", "new"]


# ---- bridges ------------------------------------------------------------------------------------


def test_a_bridge_moves_messages_into_a_topic_and_records_into_a_queue(jobs: Command) -> None:
    jobs("topic", "create", "done", "--schema", "id BIGINT")
    jobs("queue", "create", "next")
    moved = jobs.json("queue", "bridge", "jobs", "--to-topic", "done", "--once")
    assert moved == {"queue": "jobs", "topic": "done", "moved": 3, "exactly_once": True}
    assert jobs.json("queue", "bridge", "next", "--from-topic", "done", "--once")["moved"] == 3
    assert jobs.json("queue", "bridge", "next", "--from-topic", "done", "--once")["moved"] == 0
    assert taken(jobs, queue="next") == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_a_bridge_runs_until_ctrl_c(jobs: Command, home: Path) -> None:
    jobs("topic", "create", "done", "--schema", "id BIGINT")
    with (
        jobs.start("queue", "bridge", "jobs", "--to-topic", "done", "--json") as process,
        ps.open_log(home) as log,
    ):
        wait_until(lambda: len(list(log.topic("done").rows())) == 3, timeout_s=60, what="the records")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stdout
        assert json.loads(process.stdout.read())["moved"] == 3


def test_a_bridge_without_a_direction_is_refused(jobs: Command) -> None:
    result = jobs("queue", "bridge", "jobs", "--json")
    assert (result.exit_code, "one direction" in error_of(result)["message"]) == (2, True)


def test_a_program_that_is_not_there_uses_no_attempt(jobs: Command) -> None:
    for _ in range(2):
        result = jobs("queue", "work", "jobs", "--once", "--json", "--", "no-such-program")
        assert (result.exit_code, error_of(result)["type"]) == (2, "BadOption")
    found = messages(jobs)
    assert (found["ready"], found["dead"]) == (3, 0)
    assert [line["attempts"] for line in jobs.lines("queue", "get", "jobs", "--max", 3)] == [1, 1, 1]


def test_what_a_command_has_started_is_killed_with_it(cli: Command, tmp_path: Path) -> None:
    cli("queue", "create", "jobs")
    cli("queue", "publish", "jobs", "job")
    pid = tmp_path / "pid"
    command = ("sh", "-c", f"sleep 600 & echo $! > {pid}; wait")
    ran = cli("queue", "work", "jobs", "--once", "--timeout", "2 s", "--", *command)
    assert ran.stdout == "0 done, 1 put back, 0 rejected\n"
    status = Path(f"/proc/{pid.read_text().strip()}/status")
    wait_until(lambda: not status.exists() or "(zombie)" in status.read_text(), what="its child to be gone")


def test_an_id_that_no_environment_can_hold_hinders_no_command(cli: Command) -> None:
    cli("queue", "create", "jobs")
    with ps.open_queues(cli.home) as queues:
        queues.open_queue("jobs").publish("job", id="a\0b", key="\0")
    assert cli("queue", "work", "jobs", "--once", "--", "true").stdout == "1 done, 0 put back, 0 rejected\n"


def test_a_dead_letter_that_is_no_json_can_be_passed_over(jobs: Command) -> None:
    jobs("queue", "publish", "jobs", "--body", "no json")
    jobs("queue", "get", "jobs", "--max", 4, "--then", "reject")
    refused = jobs("queue", "redrive", "jobs", "--set", "id=9", "--json")
    assert "--containing" in error_of(refused)["hint"]
    assert jobs.json("queue", "redrive", "jobs", "--set", "id=9", "--containing", '"id"')["redriven"] == 3
