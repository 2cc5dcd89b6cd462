"""`penstock queue` on a real RabbitMQ, where each command has to find out what another one declared."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command import Command
from tests.servers import RabbitMQ
from tests.waiting import wait_until

from penstock.testing.queue_contract.backend import fresh


def test_commands_on_a_rabbitmq_know_what_another_one_declared(home: Path, rabbitmq: RabbitMQ) -> None:
    cli, at, jobs, logs = Command(home), ("--home", rabbitmq.url), fresh("jobs"), fresh("logs")
    cli("queue", "create", jobs, "--max-attempts", 2, "--max-priority", 3, "--max-length", 50, *at)
    assert cli.json("queue", "show", jobs, *at)["settings"]["max_length"] == 50
    cli("queue", "exchange", logs, "--kind", "topic", *at)
    assert cli("queue", "bind", logs, jobs, "--pattern", "*.error", *at).exit_code == 0
    assert cli("queue", "bind", fresh("none"), jobs, *at).exit_code == 2  # and makes none
    for number in (1, 2, 3):
        cli("queue", "publish", logs, str(number), "--exchange", "--key", "web.error", *at)
    seen = cli.lines("queue", "get", jobs, "--max", 2, "--then", "nack", *at)
    assert sorted(line["body"] for line in seen) == ["1", "2"]
    wait_until(lambda: _failed_at_last(cli, jobs, at), timeout_s=60, what="three dead letters")
    letters = cli.json("queue", "dead", jobs, *at)["dead_letters"]
    assert {letter["attempts"] for letter in letters} == {2}


def _failed_at_last(cli: Command, queue: str, at: tuple[str, ...]) -> bool:
    cli("queue", "work", queue, "--once", "--delay", "0.2 s", *at, "--", "false")
    return bool(cli.json("queue", "show", queue, *at)["messages"]["dead"] == 3)
