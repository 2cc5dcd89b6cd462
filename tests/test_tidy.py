"""What a reviewer should not have to look for."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
DRAWERS = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_a_file_holds_one_idea(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= FILE_LINES_MAX


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_a_function_does_one_thing(path: Path) -> None:
    long = {
        node.name: node.end_lineno - node.lineno + 1
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    }
    assert {name: lines for name, lines in long.items() if lines > FUNCTION_LINES_MAX} == {}


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_nothing_is_left_behind(path: Path) -> None:
    text = path.read_text()
    assert path.stem not in DRAWERS, "name a module after what it holds"
    assert not re.search(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError|breakpoint)\b", text)
    assert text.startswith('"""'), "a module says what it holds in its first line"


def test_no_two_test_files_have_the_same_name() -> None:
    """pytest imports them by their name alone, and would refuse the second."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_only_disk_touches_the_file_system_in_the_log() -> None:
    """Otherwise a test could not lose power at every write."""
    # group.py keeps a SQLite file, log.py looks for the home, signal.py needs the process id.
    door = {"disk.py", "group.py", "log.py", "signal.py"}
    writes = re.compile(
        r"\bos\.(open|write|pwrite|fsync|fdatasync|rename|replace|unlink)\b|\.write_(bytes|text)\(|\bopen\("
    )
    found = [
        f"{_name(path)}:{number}"
        for path in (ROOT / "src/penstock/log").glob("*.py")
        if path.name not in door
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if writes.search(line) and "disk.open(" not in line and "def open(" not in line
    ]
    assert found == []


def test_the_public_api_is_sorted_and_importable() -> None:
    import penstock

    assert list(penstock.__all__) == sorted(penstock.__all__)
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None


def _promises() -> Iterator[tuple[str, str]]:
    for line in (ROOT / "docs/GUARANTEES.md").read_text().splitlines():
        for test in re.findall(r"`(tests/[^`]+)`", line):
            yield line, test


@pytest.mark.parametrize("test", sorted({test for _, test in _promises()}))
def test_every_promise_names_a_test_that_exists(test: str) -> None:
    path, _, name = test.partition("::")
    text = (ROOT / path).read_text()
    assert name == "" or re.search(rf"def {re.escape(name)}\b|class {re.escape(name)}\b", text)


def test_every_promise_has_a_test() -> None:
    text = (ROOT / "docs/GUARANTEES.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    assert [row for row in rows if "`tests/" not in row and "the test behind it" not in row] == []


def test_lock_files_hold_hashes_and_no_addresses() -> None:
    for lock in (ROOT / "requirements").glob("*.lock"):
        text = lock.read_text()
        assert "--hash=sha256:" in text
        assert "://" not in text
        assert "--index-url" not in text


def test_no_file_is_tracked_that_should_not_be() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    assert [
        name for name in tracked if name.endswith((".pyc", ".arrows", ".db")) or name.startswith(".penstock")
    ] == []
    big = [name for name in tracked if (ROOT / name).exists() and (ROOT / name).stat().st_size > 1 << 20]
    assert big == []
