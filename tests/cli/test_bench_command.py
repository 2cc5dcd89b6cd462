"""`penstock bench`: finding benches and printing what they give."""

from __future__ import annotations

import pytest
from tests.cli.command import Command, error_of

from penstock.bench import log as log_bench
from penstock.bench.report import Report, Result


def test_an_unknown_bench_lists_what_there_is(cli: Command) -> None:
    result = cli("bench", "nope", "--json")
    assert result.exit_code == 2
    assert "log" in error_of(result)["known"]
    assert error_of(cli("bench", "lgo", "--json"))["did_you_mean"] == "log"


def test_a_report_is_printed_as_a_table_and_as_json(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report("log", {"cores": 2}, [Result("append", 123_456.0, "events/s").at_least(100_000)])
    monkeypatch.setattr(log_bench, "run", lambda *, quick, home: report)
    assert cli.json("bench", "log", "--quick") == report.to_json()
    shown = cli("bench", "log").stdout
    assert "append" in shown
    assert "yes" in shown
