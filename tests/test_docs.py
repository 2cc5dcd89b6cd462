"""What the documents show is what happens."""

from __future__ import annotations

import doctest
import importlib
import re
import sys
from pathlib import Path

import pytest

import penstock as ps

ROOT = Path(__file__).parent.parent
GUIDES = (
    "LOG.md", "QUEUES.md", "FLOW.md", "RELATIONS.md", "FEEDS.md", "FOLLOWERS.md", "CAPTURE.md", "SOURCING.md",
    "ERASURE.md",
)  # fmt: skip
PAGES = [ROOT / "README.md", *(ROOT / "docs" / name for name in GUIDES)]
MODULES = [
    "penstock.app.app",
    "penstock.clock",
    "penstock.direct.channel",
    "penstock.flow.expressions",
    "penstock.flow.windows",
    "penstock.gateway.pages.health",
    "penstock.gateway.pages.plans",
    "penstock.gateway.pages.samples",
    "penstock.gateway.pages.sparkline",
    "penstock.gateway.pages.words",
    "penstock.log.balance",
    "penstock.opening",
    "penstock.queue.message",
    "penstock.queue.opening",
    "penstock.queue.pattern",
    "penstock.queue.rabbit_topology",
    "penstock.sourcing.aggregate",
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_on_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_HOME", raising=False)
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    # Dataclasses look up their module by name.
    page_module = type(sys)("a_page")
    monkeypatch.setitem(sys.modules, "a_page", page_module)
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page.name}, block {number + 1}", "exec", dont_inherit=True), vars(page_module))
    for opened in vars(page_module).values():
        if isinstance(opened, ps.App | ps.Log | ps.Queues):
            opened.close()


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_docstrings_hold(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0


def test_links_between_the_documents_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []
