"""The pages in a real browser, on an app that runs: they load, they are true, they can be used."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect
from tests.gateway.browsing import CHROMIUM, WAIT_MS, Reader, reading, shot, shut_out
from tests.gateway.served import serving
from tests.gateway.stage import HOSTILE, Stage, past_moment, staged

import penstock as ps

PATHS = {
    "overview": "/", "pipeline": "/pipeline", "topics": "/topics", "all-topics": "/topics?all=1",
    "topic": "/topics/page_views", "messages": "/topics/page_views/messages",
    "empty-topic": "/topics/notes/messages", "views": "/views", "view": "/views/per_5s",
    "quiet-view": "/views/per_ad", "tables": "/tables", "table": "/tables/users", "groups": "/groups",
    "group": "/groups/mailer/page_views", "queues": "/queues", "queue": "/queues/mail", "late": "/late",
    "batches": "/batches", "capture": "/capture", "alerts": "/alerts", "login": "/login",
}  # fmt: skip

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="penstock-pages-") as folder, staged(Path(folder)) as found:
        yield found


@pytest.fixture
def reader(browser: Browser, stage: Stage) -> Iterator[Reader]:
    with reading(browser, stage.url) as found:
        yield found


@pytest.mark.parametrize("name", PATHS)
def test_a_page_complains_of_nothing_keeps_nobody_out_and_fits_a_phone(reader: Reader, name: str) -> None:
    page = reader.open(PATHS[name])
    expect(page.locator("h1")).to_be_visible()
    shot(page, f"{name}-light")
    assert shut_out(page) == []
    if name in ("overview", "view", "messages", "queue", "group"):
        page.emulate_media(color_scheme="dark")
        shot(page, f"{name}-dark")
        assert shut_out(page) == []
    page.set_viewport_size({"width": 390, "height": 844})
    shot(page, f"{name}-phone")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_first_sentence_says_what_is_the_case(reader: Reader) -> None:
    page = reader.open("/")
    expect(page.locator(".lede")).to_contain_text(re.compile("of 2 views are current|behind|current"))
    expect(page.locator("#part_needs")).to_contain_text("2 messages are dead in mail")
    expect(page.locator("#part_needs")).to_contain_text("SMTP 550 mailbox unknown")


def test_on_a_phone_what_needs_somebody_comes_before_the_pipeline(reader: Reader) -> None:
    page = reader.open("/")
    page.set_viewport_size({"width": 390, "height": 844})
    boxes: list[Any] = [page.locator(f"#part_{name}").bounding_box() for name in ("needs", "graph", "views")]
    tops = [box["y"] for box in boxes]
    assert tops == sorted(tops)


def test_numbers_move_while_one_looks(reader: Reader) -> None:
    page = reader.open("/topics/page_views")
    records = page.locator("#part_figures .fig b").nth(1)
    before = records.inner_text()
    expect(records).not_to_have_text(before)


def test_the_pipeline_is_drawn_and_is_a_list_on_a_phone(reader: Reader) -> None:
    page = reader.open("/pipeline")
    expect(page.locator("[data-node='page_views']")).to_be_visible()
    expect(page.locator("[data-edge]").first).to_be_attached()
    page.set_viewport_size({"width": 390, "height": 844})
    expect(page.locator("[data-node='page_views']")).to_be_hidden()
    expect(page.locator(".flowlist")).to_contain_text("from page_views")


def test_names_and_payloads_are_text(reader: Reader, stage: Stage) -> None:
    page = reader.open("/topics/page_views/messages?filter=script")
    expect(page.locator("#part_messages .value").first).to_contain_text(HOSTILE)
    page = reader.open("/views/per_5s")
    expect(page.locator("#part_rows")).to_contain_text(HOSTILE)
    assert page.locator("main script").count() == 0
    for hostile in ("/topics/..%2F..%2Fetc", "/topics/%00", "/topics/a%0Ab", "/views/%22%3E%3Cscript%3E"):
        answer = httpx.get(f"{stage.url}{hostile}")
        assert answer.status_code in (400, 404, 422), hostile
        assert "<script>" not in answer.text.replace('<script src="', "")


def test_messages_can_be_sought_by_offset_and_time_and_filtered(reader: Reader) -> None:
    page = reader.open("/topics/page_views/messages")
    page.get_by_label("From").fill("3")
    page.get_by_label("Partition").select_option("1")
    page.get_by_role("button", name="Look").click()
    expect(page.locator("#part_messages tbody tr").first).to_have_attribute("id", "m-1-3")
    page.get_by_label("From").fill("10 minutes ago")
    page.get_by_label("Filter").fill("page=/cart")
    page.get_by_role("button", name="Look").click()
    expect(page.locator("#part_messages tbody tr").first).to_contain_text("/cart")
    assert all("/cart" in row for row in page.locator("#part_messages .value").all_inner_texts())


def test_the_tail_is_live_and_can_be_paused(reader: Reader, stage: Stage) -> None:
    page = reader.open("/topics/page_views/messages")
    first = page.locator("#part_messages tbody tr").first
    shown = first.get_attribute("id") or ""
    expect(first).not_to_have_id(shown)
    page.get_by_role("button", name="Pause").click()
    held = first.get_attribute("id") or ""
    before = page.locator("#part_nav").inner_text()
    stage.append("/paused", ago_s=30)  # late: a number beside the page moves, so news has come
    expect(page.locator("#part_nav")).not_to_have_text(before, use_inner_text=True)
    expect(first).to_have_id(held)
    page.get_by_role("button", name="Go on").click()
    expect(first).not_to_have_id(held)


def test_messages_are_exported_as_they_are_shown(reader: Reader) -> None:
    page = reader.open("/topics/page_views/messages?from=earliest&filter=page=/cart")
    with page.expect_download() as download:
        page.get_by_role("link", name="Export").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert lines
    assert {json.loads(line)["page"] for line in lines} == {"/cart"}


def test_a_test_message_is_appended_and_an_edited_one_sent_again(reader: Reader, stage: Stage) -> None:
    page = reader.open("/topics/notes/messages")
    page.get_by_role("button", name="Append a test message").click()
    page.get_by_label("Record, as JSON").fill('{"key": "k", "value": "first"}')
    page.get_by_role("button", name="Append", exact=True).click()
    expect(page.locator("[data-answer]")).to_contain_text("Stored in notes, partition 0 at offset")
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name=re.compile("Resend message 0:0")).click()
    record = page.get_by_label("Record, as JSON")
    expect(record).to_have_value(re.compile("first"))
    record.fill(record.input_value().replace("first", "second"))
    page.get_by_role("button", name="Append", exact=True).click()
    expect(page.locator("[data-answer]")).to_contain_text("Stored in notes")
    values = [row["value"] for row in stage.app.log.topic("notes").rows()]
    assert values == [b"first", b"second"]


def test_a_record_that_does_not_fit_is_refused_with_the_reason(browser: Browser, stage: Stage) -> None:
    page = browser.new_page()
    page.goto(f"{stage.url}/topics/page_views/messages")
    page.get_by_role("button", name="Append a test message").click()
    page.get_by_label("Record, as JSON").fill('{"user_id": "no number"}')
    page.get_by_role("button", name="Append", exact=True).click()
    expect(page.locator("[data-answer] .error")).to_contain_text("user_id", timeout=WAIT_MS)
    page.close()


def test_a_group_is_moved_only_after_a_dry_run(reader: Reader, stage: Stage) -> None:
    log = stage.app.log
    before = log.port.committed("mailer", "page_views")
    page = reader.open("/groups/mailer/page_views")
    page.get_by_label("To", exact=True).fill("earliest")
    page.get_by_role("button", name="Show what would happen").click()
    expect(page.locator("#moves")).to_contain_text("Nothing has been changed yet")
    expect(page.locator("#moves")).to_contain_text("5 records read again")
    assert log.port.committed("mailer", "page_views") == before
    page.get_by_role("button", name="Move it").click()
    expect(page.locator("#moves")).to_contain_text("Moved")
    assert set(log.port.committed("mailer", "page_views").values()) == {0}


def test_dead_letters_are_redriven_one_edited_and_the_rest(reader: Reader, stage: Stage) -> None:
    page = reader.open("/queues/mail")
    expect(page.locator("#part_letters")).to_contain_text(HOSTILE)
    page.get_by_role("button", name="Edit").first.click()
    page.get_by_label("Body").fill('{"to": "mended@example.org"}')
    page.get_by_role("button", name="Redrive", exact=True).last.click()
    expect(page.locator("#edit [data-answer]")).to_contain_text("1 message of mail handed out again")
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name=re.compile("Redrive all")).click()
    expect(page.locator("#part_letters")).to_contain_text("None.")
    with ps.open_queues(stage.app.home) as queues:
        bodies = [delivery.json()["to"] for delivery in queues.queue("mail").get_many(10)]
    assert sorted(bodies) == ["b@example.org", "mended@example.org"]


def test_a_past_moment_shows_what_as_of_says(reader: Reader, stage: Stage) -> None:
    moment = past_moment(stage.app)
    expected = stage.app.read("per_5s", as_of=moment)
    page = reader.open("/views/per_5s?rows=all")
    slider = page.locator("[data-moment]")
    milliseconds = round(moment.timestamp() * 1000)
    slider.evaluate(
        "(slider, at) => { slider.value = at; slider.dispatchEvent(new Event('input')); }", milliseconds
    )
    page.wait_for_selector("html[data-moment*='at=']")
    expect(page.locator("#part_rows h2")).to_contain_text("Rows at")
    assert _shown_rows(page) == _told(expected)
    shot(page, "view-past")
    page.get_by_role("button", name="Back to now").click()
    expect(page.locator("#part_rows h2")).to_contain_text("Rows now")


def _shown_rows(page: Page) -> set[tuple[str, str, str, bool]]:
    cells: list[list[str]] = page.locator("#part_rows tbody").evaluate(
        "body => [...body.rows].map(row => [...row.cells].map(cell => cell.firstChild.textContent))"
    )
    return {(name, window[:8], views, state != "open") for name, window, views, state, _ in cells}


def _told(rows: Any) -> set[tuple[str, str, str, bool]]:
    return {
        (row["page"], row["window_start"].strftime("%H:%M:%S"), f"{row['views']:,}", row["final"])
        for row in rows
    }


def test_the_slider_reaches_what_has_come_meanwhile(reader: Reader) -> None:
    page = reader.open("/views/per_5s")
    slider = page.locator("[data-moment]")
    expect(slider).not_to_have_attribute("max", slider.get_attribute("max") or "")
    assert slider.evaluate("slider => slider.value === slider.max")


def test_a_moment_that_cannot_be_had_at_once_is_asked_for_again(browser: Browser, stage: Stage) -> None:
    """Else the rows of another moment would stand under it."""
    context = browser.new_context()
    page = Reader(context.new_page(), stage.url).open("/views/per_5s")
    page.route("**/parts?*", lambda route: route.fulfill(status=429), times=1)
    slider = page.locator("[data-moment]")
    slider.evaluate("slider => { slider.value = slider.min; slider.dispatchEvent(new Event('input')); }")
    expect(page.locator("#part_rows")).to_contain_text("It had no rows then.")
    context.close()


def test_the_chart_is_there_again_after_a_moment_that_had_nothing_to_draw(reader: Reader) -> None:
    page = reader.open("/views/per_5s")
    expect(page.locator("#part_chart canvas")).to_be_visible()
    slider = page.locator("[data-moment]")
    slider.evaluate("slider => { slider.value = slider.min; slider.dispatchEvent(new Event('input')); }")
    expect(page.locator("#part_rows")).to_contain_text("It had no rows then.")
    page.get_by_role("button", name="Back to now").click()
    expect(page.locator("#part_chart canvas")).to_be_visible()


def test_windows_are_seen_open_final_corrected_and_late(reader: Reader) -> None:
    page = reader.open("/views/per_5s")
    picture = page.locator("#part_windows svg[role=img]")
    expect(picture).to_be_visible()
    expect(picture.locator("rect.w-final").first).to_be_attached()
    expect(picture.locator("rect.w-revised").first).to_be_attached()
    expect(picture.locator("line.w-mark")).to_be_attached()
    assert "windows are final" in (picture.get_attribute("aria-label") or "")


def test_rows_are_filtered_by_a_column(reader: Reader) -> None:
    page = reader.open("/views/per_5s")
    page.get_by_label("Rows where").fill("page=/cart")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("#part_rows tbody tr").first).to_contain_text("/cart")
    assert HOSTILE not in page.locator("#part_rows").inner_text()


def test_the_palette_goes_anywhere(reader: Reader) -> None:
    page = reader.open("/")
    page.keyboard.press("Control+k")
    page.keyboard.type("per_5s")
    expect(page.locator("#palette-list li").first).to_contain_text("per_5s")
    page.keyboard.press("Enter")
    page.wait_for_url("**/views/per_5s")


def test_keys_filter_and_list_themselves(reader: Reader) -> None:
    page = reader.open("/topics")
    page.keyboard.press("/")
    page.keyboard.type("click")
    expect(page.locator("#part_topics tbody tr:visible")).to_have_count(1)
    page.keyboard.press("Escape")
    page.locator("h1").click()
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()


def test_two_letters_go_to_a_page(reader: Reader) -> None:
    page = reader.open("/")
    for letter, place in (("g", "groups"), ("b", "tables")):
        page.keyboard.press("g")
        page.keyboard.press(letter)
        page.wait_for_url(f"**/{place}")
        page.wait_for_selector("html[data-ready=yes]")


def test_the_mode_is_chosen_and_remembered(reader: Reader) -> None:
    page = reader.open("/")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name=re.compile("Mode:")).click()
    page.get_by_role("button", name=re.compile("Mode:")).click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page = reader.open("/topics")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_phases_and_state_of_batches_are_told(reader: Reader) -> None:
    page = reader.open("/batches")
    expect(page.locator("#part_phases")).to_contain_text("Compute and store")
    expect(page.locator("#part_phases rect.p-compute").first).to_be_attached()
    expect(page.locator("#part_batches tbody tr").first).to_be_visible()
    page = reader.open("/views/per_5s")
    expect(page.locator("#part_fares")).to_contain_text(re.compile(r"State\s*\d+ row"))


def test_late_rows_are_listed_with_the_watermark_they_met(reader: Reader) -> None:
    page = reader.open("/late")
    expect(page.locator("#part_late tbody tr").first).to_contain_text("per_5s")


def test_topics_that_nothing_reads_yet_stand_in_rows(browser: Browser, home: Path) -> None:
    app = ps.App("shop", home=home)
    for number in range(9):
        app.log.create_topic(f"topic-{number}")
    with serving(app) as served, reading(browser, served.url) as reader:
        page = reader.open("/")
        expect(page.locator("[data-node]")).to_have_count(9)
        places: list[Any] = [box.bounding_box() or {} for box in page.locator("[data-node]").all()]
    assert len({(place["x"], place["y"]) for place in places}) == 9
    assert len({place["y"] for place in places}) == 2
    app.close()


def test_a_page_that_hears_nothing_says_that_it_is_stale(browser: Browser, home: Path) -> None:
    page = browser.new_page()
    app = ps.App("shop", home=home)
    with serving(app) as served:
        page.goto(f"{served.url}/")
        page.wait_for_selector("html[data-ready=yes]")
        expect(page.locator("#part_views")).to_contain_text("A view is a function")
    expect(page.locator("#stale")).to_contain_text("seconds old", timeout=WAIT_MS)
    page.close()
    app.close()
