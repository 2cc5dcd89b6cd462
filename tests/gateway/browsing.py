"""A real browser on the pages: what it complained of, what it looked like, whom it would keep out."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
ARTEFACTS = Path(__file__).parents[2] / "artefacts" / "pages"
AXE = Path(__file__).parent / "assets" / "axe.min.js"
WAIT_MS = 90_000


class Reader:
    """A page of the browser that remembers what went wrong on it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url
        self.complaints: list[str] = []
        page.set_default_timeout(WAIT_MS)
        page.on("console", lambda said: self._note(said.type, said.text))
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("response", lambda answer: self._answered(answer.status, answer.url))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(f"{kind}: {text}")

    def _answered(self, status: int, url: str) -> None:
        if status >= 400:
            self.complaints.append(f"{status}: {url}")

    def open(self, path: str) -> Page:
        self.page.goto(f"{self.url}{path}", wait_until="load")
        if path != "/login":
            self.page.wait_for_selector("html[data-ready=yes]")
        return self.page


@contextmanager
def a_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, headless=True)
        yield opened
        opened.close()


@contextmanager
def reading(browser: Browser, url: str) -> Iterator[Reader]:
    """Fails at the end if a page complained of something."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, accept_downloads=True)
    found = Reader(context.new_page(), url)
    yield found
    context.close()
    assert found.complaints == []


def shot(page: Page, name: str) -> None:
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=ARTEFACTS / f"{name}.png", full_page=True)


def shut_out(page: Page) -> list[str]:
    """What would keep somebody out: rule, and the first place."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())
    found: dict[str, Any] = page.evaluate(
        "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']})"
    )
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:120]} {each['nodes'][0].get('failureSummary', '')[:200]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]
