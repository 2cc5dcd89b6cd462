"""docs/TESTING.md shows an app and its tests: both are run as they stand there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from penstock.testing.plugin import Flow

PAGE = Path(__file__).parents[2] / "docs" / "TESTING.md"


def test_the_tests_on_the_page_pass(flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_HOME", raising=False)
    app_block, *test_blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    shop, tests = type(sys)("shop"), type(sys)("a_page")
    monkeypatch.setitem(sys.modules, "shop", shop)
    exec(compile(app_block, "shop.py", "exec", dont_inherit=True), vars(shop))
    for block in test_blocks:
        exec(compile(block, PAGE.name, "exec", dont_inherit=True), vars(tests))
    found = [value for name, value in vars(tests).items() if name.startswith("test_")]
    assert found
    for test in found:
        test(flow)
    assert not (tmp_path / ".penstock").exists()
