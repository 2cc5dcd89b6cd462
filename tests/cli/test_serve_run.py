"""`penstock serve --run`: a real run beside the server, seen over HTTP, which ends with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cli import shop
from tests.cli.command import Command
from tests.waiting import wait_until

import penstock as ps
from penstock.app import published

_STARTED_S = 240.0


def _is_there(pid: int) -> bool:
    """A process that has ended and that nobody waited for is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _rows(http: httpx.Client, **wanted: Any) -> list[dict[str, Any]] | None:
    answer = http.get("/api/v1/views/per_minute/rows", params=wanted)
    return answer.json()["rows"] if answer.status_code == 200 else None


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="looks for processes in /proc")
@pytest.mark.timeout(600)
def test_a_run_is_served_as_it_is_and_does_not_outlive_a_killed_server(
    home: Path, tmp_path: Path, report: Callable[[str], None]
) -> None:
    one_view, _, _ = shop.APP.partition("@app.stream")
    file, cli = shop.write(tmp_path / "app", one_view), Command(home)
    shop.fill(home)
    with cli.start("serve", file, "--run", "--port", 0, "--json") as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["address"]
        with httpx.Client(base_url=url, timeout=60) as http:
            wait_until(
                lambda: "It is coming up" in http.get("/").text, timeout_s=60, what="a word of the run"
            )
            waited = wait_until(lambda: _rows(http), timeout_s=_STARTED_S, what="rows over HTTP")
            report(f"penstock serve --run: first rows over HTTP after {waited:.1f} s")
            _check_what_is_told(http, lambda: cli.json("view", file, "per_minute")["rows"])
        pid = _pid_of_the_run(home)
        assert _is_there(pid)
        process.kill()
        process.wait()
        wait_until(lambda: not _is_there(pid), timeout_s=120, what="the end of the run")


def _check_what_is_told(http: httpx.Client, read: Callable[[], list[dict[str, Any]]]) -> None:
    # A day ahead of all that was there, and so a row for every window before it is late.
    events = [{"page": page, "at": shop.at(at).isoformat()} for page, at in (("/new", 86_400), ("/old", 0))]
    for event in events:
        after = http.post("/api/v1/topics/views/records", json=event).json()["after"]
        wait_until(lambda after=after: _rows(http, after=after, timeout=30) is not None, timeout_s=120)  # type: ignore[misc]
    rows = _rows(http)
    assert rows is not None
    assert [(row["page"], row["views"]) for row in rows] == [("/", 2), ("/", 2), ("/", 1), ("/new", 1)]
    wait_until(lambda: _rows(http) == read(), what="the same rows: a window may become final in between")
    late = http.get("/api/v1/views/per_minute/late").json()
    assert [pair["row"]["page"] for pair in late["pairs"]] == ["/late", "/old"]
    (told,) = http.get("/api/v1/pipeline/explain").json()["definitions"]
    assert (told["flows"], told["rows"]) == (True, 4)
    assert "/new" in http.get("/views/per_minute").text


def _pid_of_the_run(home: Path) -> int:
    app = ps.App("shop", home=home)
    try:
        told = published.last(app)
    finally:
        app.close()
    assert told is not None
    return told.pid
