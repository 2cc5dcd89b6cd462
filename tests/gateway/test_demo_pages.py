"""The demo as a visitor sees it: a real run of the whole shop, its pages in a real browser, and its end.

One demo serves all tests of this file; the last one ends it.
"""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect
from tests.cli.command import Command
from tests.gateway.browsing import CHROMIUM, WAIT_MS, Reader, reading, shot
from tests.waiting import wait_until

import penstock as ps
from penstock.cli.demo import shop
from penstock.cli.demo.command import SHOP

COMING_UP_S = 600.0  # fifteen queries on two cores that others share
PROVED_S = 600.0
ROWS_MAX = 100  # that a page shows of a view, newest change first
PATHS = {
    "overview": "/", "pipeline": "/pipeline", "topics": "/topics", "topic": "/topics/purchases",
    "messages": "/topics/page_views/messages", "views": "/views", "tables": "/tables",
    "table": "/tables/database.customers", "groups": "/groups", "group": "/groups/mailer/page_views",
    "queues": "/queues", "queue": "/queues/mails", "late": "/late", "batches": "/batches",
    "capture": "/capture", "alerts": "/alerts",
    **{f"view-{name}": f"/views/{name}" for name in shop.app.definitions},
}  # fmt: skip

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
    pytest.mark.timeout(1_500),
    pytest.mark.xdist_group("demo"),
    pytest.mark.crash,  # fifteen queries and a browser want two cores for themselves
]


@dataclass(frozen=True)
class Demo:
    process: subprocess.Popen[str]
    cli: Command
    http: httpx.Client

    @property
    def url(self) -> str:
        return str(self.http.base_url).rstrip("/")

    def wait_until_whole(self) -> None:
        """Every query has stored something."""
        wait_until(self._is_whole, timeout_s=COMING_UP_S, what="a result of every query", pause_s=1)

    def get(self, path: str) -> Any:
        answer = self.http.get(f"/api/v1{path}")
        answer.raise_for_status()
        return answer.json()

    def _is_whole(self) -> bool:
        assert self.process.poll() is None, "it ended"
        found = self.get("/pipeline")
        queries = found["queries"] if found["running"] else []
        return bool(queries) and all(query["batch"] is not None for query in queries)


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    with tempfile.TemporaryDirectory(prefix="penstock-shown-", ignore_cleanup_errors=True) as folder:
        cli = Command(Path(folder) / "home")
        with (
            cli.start("demo", "--port", 0, "--json") as process,
            httpx.Client(base_url=_address_of(process), timeout=60) as http,
        ):
            yield Demo(process, cli, http)


def _address_of(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if "the page: " in line:
            return line.split("the page: ")[1].strip()
    raise AssertionError("it ended before the page answered")


@pytest.fixture
def reader(browser: Browser, demo: Demo) -> Iterator[Reader]:
    with reading(browser, demo.url) as found:
        yield found


def test_the_page_is_there_before_spark_is_and_says_so(reader: Reader) -> None:
    page = reader.open("/")
    expect(page.locator(".lede")).to_contain_text(re.compile("coming up|starting|of 15 views"))
    expect(page.locator("[data-node='page_views']")).to_be_visible()


def test_every_query_shows_something(reader: Reader, demo: Demo) -> None:
    demo.wait_until_whole()
    page = reader.open("/views")
    expect(page.locator("main")).not_to_contain_text("not run yet")


@pytest.mark.parametrize("name", PATHS)
def test_a_page_of_the_shop_complains_of_nothing(reader: Reader, name: str) -> None:
    page = reader.open(PATHS[name])
    expect(page.locator("h1")).to_be_visible()
    expect(page.locator("main")).not_to_contain_text("Traceback")
    if name.startswith("view-"):  # each panel says in a sentence what one is looking at
        expect(page.locator(".lede")).to_contain_text(re.compile(r"\w+ \w+ .*\."))
    shot(page, f"demo-{name}")


def test_numbers_move_while_one_looks(reader: Reader) -> None:
    page = reader.open("/topics/page_views")
    records = page.locator("#part_figures .fig b").nth(1)
    expect(records).not_to_have_text(records.inner_text(), timeout=WAIT_MS)
    page = reader.open("/batches")
    newest = page.locator("#part_batches tbody tr").first
    expect(newest).not_to_have_text(newest.inner_text(), timeout=WAIT_MS)


def test_messages_are_sought_and_filtered(reader: Reader) -> None:
    page = reader.open("/topics/page_views/messages")
    page.get_by_label("From").fill("7")
    page.get_by_label("Partition").select_option("1")
    page.get_by_role("button", name="Look").click()
    expect(page.locator("#part_messages tbody tr").first).to_have_attribute("id", "m-1-7")
    page.get_by_label("From").fill("earliest")
    page.get_by_label("Filter").fill("page=/cart")
    page.get_by_role("button", name="Look").click()
    expect(page.locator("#part_messages tbody tr").first).to_contain_text("/cart")
    assert all("/cart" in row for row in page.locator("#part_messages .value").all_inner_texts())


def test_a_review_is_edited_sent_again_and_found(reader: Reader, demo: Demo) -> None:
    page = reader.open("/topics/reviews/messages?from=earliest")
    page.get_by_role("button", name=re.compile("Resend message")).first.click()
    record = page.get_by_label("Record, as JSON")
    expect(record).to_have_value(re.compile("text"))
    sent = json.loads(record.input_value())
    record.fill(json.dumps({**sent, "text": "a sentence that only a visitor of the page would write"}))
    page.get_by_role("button", name="Append", exact=True).click()
    expect(page.locator("[data-answer]")).to_contain_text("Stored in reviews")
    page = reader.open("/topics/reviews/messages?from=earliest&filter=visitor")
    expect(page.locator("#part_messages tbody tr")).to_have_count(1)


def test_a_group_is_shown_where_it_would_go_and_stays_where_it_is(reader: Reader, demo: Demo) -> None:
    page = reader.open("/groups/audit/page_views")
    page.get_by_label("To", exact=True).fill("earliest")
    page.get_by_role("button", name="Show what would happen").click()
    expect(page.locator("#moves")).to_contain_text("Nothing has been changed yet")
    (told,) = demo.get("/groups/audit")["topics"]
    assert all(partition["committed"] > 0 for partition in told["lag"])


def test_a_dead_mail_is_mended_and_sent(reader: Reader) -> None:
    page = reader.open("/queues/mails")
    letter = page.locator("#part_letters tbody tr").first
    expect(letter).to_contain_text("there is no address")
    shown = letter.get_attribute("id") or ""
    letter.get_by_role("button", name="Edit").click()
    body = page.get_by_label("Body")
    expect(body).to_have_value(re.compile(r"\S"))
    body.fill(json.dumps({**json.loads(body.input_value()), "to": "mended@example.org"}))
    page.get_by_role("button", name="Redrive", exact=True).last.click()
    expect(page.locator("#edit [data-answer]")).to_contain_text("1 message of mails handed out again")
    expect(page.locator(f"#{shown}")).to_have_count(0, timeout=WAIT_MS)


def test_the_slider_shows_what_as_of_says(reader: Reader, demo: Demo) -> None:
    page = reader.open("/views/views_per_page?rows=all")
    slider = page.locator("input[data-moment]")
    last = int(slider.get_attribute("max") or 0)
    at_ms = (_first_row_ms(demo) + last) // 2
    slider.evaluate("(it, at) => { it.value = at; it.dispatchEvent(new Event('input')); }", at_ms)
    page.wait_for_selector("html[data-moment*='at=']")
    expect(page.locator("#part_rows h2")).to_contain_text("Rows at")
    moment = datetime.fromtimestamp(int(slider.input_value()) / 1_000, UTC).isoformat()
    answer = demo.cli.run("view", SHOP, "views_per_page", "--as-of", moment, "--json", timeout_s=120)
    assert answer.returncode == 0, answer.stderr
    told, shown = _told(json.loads(answer.stdout)["rows"]), _shown(page)
    expect(page.locator("#part_rows h2 .aside")).to_contain_text(f"{len(told):,} rows")
    assert shown <= told
    assert len(shown) == min(len(told), ROWS_MAX) > 0
    shot(page, "demo-view-past")


def _first_row_ms(demo: Demo) -> int:
    """When the view got its first row: what was stored before may be a watermark alone."""
    with ps.open_log(demo.cli.home) as log:
        rows = (row for batch in log.topic("views_per_page").read() for row in batch.to_pylist())
        first: datetime = next(row["_timestamp"] for row in rows if row["_op"] == "u")
        return math.ceil(first.timestamp() * 1_000)


def _shown(page: Page) -> set[tuple[str, str, str]]:
    cells: list[list[str]] = page.locator("#part_rows tbody").evaluate(
        "body => [...body.rows].map(row => [...row.cells].map(cell => cell.firstChild.textContent))"
    )
    return {(name, window[:8], views) for name, window, views, *_ in cells}


def _told(rows: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {(row["page"], row["window_start"][11:19], f"{row['views']:,}") for row in rows}


def test_it_is_dark_where_one_wants_it_dark(reader: Reader) -> None:
    page = reader.open("/")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    shot(page, "demo-overview-dark")


def test_ctrl_c_ends_it_with_a_proof_and_leaves_nothing_behind(demo: Demo) -> None:
    """After all that visitors did, everything holds."""
    demo.wait_until_whole()
    demo.process.send_signal(signal.SIGINT)
    out, complained = demo.process.communicate(timeout=PROVED_S)
    assert demo.process.returncode == 0, out + complained
    told = json.loads(out)
    assert told["holds"] is True
    assert told["page"] == demo.url
    assert set(told["views"]) == set(shop.app.definitions)
    assert {found["verdict"] for found in told["views"].values()} == {"equal"}
    assert told["queries"] == len(told["views"]) >= 12
    assert told["events_per_second"] > 0
    assert told["latency_p99_ms"] > 0
    assert told["memory_bytes_max"] < 6 * 2**30
    assert not demo.cli.home.exists()
