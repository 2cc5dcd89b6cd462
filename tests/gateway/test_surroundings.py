"""Where a process that the gateway starts finds the log."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock as ps
from penstock.gateway.surroundings import surroundings

_KAFKA = "kafka://127.0.0.1:1"


def _told(app: ps.App) -> str:
    try:
        return surroundings(app)["PENSTOCK_HOME"]
    finally:
        app.close()


def test_a_run_is_told_the_folder_that_was_chosen(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", "elsewhere")
    assert _told(ps.App("shop", home=home)) == str(home)


def test_a_run_on_kafka_is_led_to_the_same_kafka(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", _KAFKA)
    assert _told(ps.App("shop")) == _KAFKA
    monkeypatch.delenv("PENSTOCK_HOME")
    assert _told(ps.App("shop", home=home, log=_KAFKA)) == str(home)
