"""Apps named on a command line: what is found, and what is said when nothing is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.app.loading import AppNotLoaded, load

ONE = 'import penstock as ps\napp = ps.App("shop")\n'


@pytest.fixture(autouse=True)
def imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing that a test imports is left for the next."""
    before = dict(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.chdir(tmp_path)
    yield
    for name in set(sys.modules) - set(before):
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def _write(name: str, text: str) -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return name


def test_the_one_app_of_a_file_is_found(home: Path) -> None:
    found = load(_write("some_shop.py", ONE), home=home)
    assert (found.app.name, found.app.home, found.from_file) == ("shop", home, True)


def test_the_home_is_set_for_the_app_only(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", "elsewhere")
    load(_write("some_shop.py", ONE), home=home)
    assert load("some_shop.py").app.home == Path("elsewhere").absolute()


def test_a_name_after_a_colon_chooses_among_several() -> None:
    _write("two.py", ONE + 'other = ps.App("other")\n')
    assert load("two.py:other").app.name == "other"
    with pytest.raises(AppNotLoaded, match="2 apps") as caught:
        load("two.py")
    assert caught.value.hint == "say which: two.py:app or two.py:other"
    with pytest.raises(AppNotLoaded, match='has no "othr"') as caught:
        load("two.py:othr")
    assert caught.value.hint == 'did you mean "other"?'


def test_an_app_under_two_names_is_one_app() -> None:
    assert load(_write("twice.py", ONE + "again = app\n")).app.name == "shop"


def test_a_module_is_found_from_the_current_folder() -> None:
    _write("pack/__init__.py", "")
    _write("pack/shop.py", ONE)
    found = load("pack.shop:app")
    assert (found.app.name, found.from_file) == ("shop", False)


def test_a_file_can_import_its_neighbours() -> None:
    _write("deep/neighbour_of_it.py", "NAME = 'from next door'\n")
    _write("deep/with_neighbour.py", "import neighbour_of_it\n" + ONE)
    assert load("deep/with_neighbour.py").app.name == "shop"


def test_a_file_does_not_take_the_place_of_a_module_that_is_in_use() -> None:
    import json

    load(_write("json.py", ONE))
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("broken.py", "import penstock\n\nx = 1 / 0\n", r"broken\.py:3: ZeroDivisionError"),
        ("syntax.py", "import penstock\ndef (\n", r"syntax\.py:2: "),
        ("bad_topic.py", ONE + 'app.topic("t", "x WRONG")\n', r"bad_topic\.py:3: "),
        ("leaves.py", "import sys\nsys.exit(3)\n", "ends the program"),
        ("empty.py", "x = 1\n", "no app in"),
        ("not-a-name.py", ONE, "no name that Python can import"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_named_with_its_line(file: str, text: str, said: str) -> None:
    with pytest.raises(AppNotLoaded, match=said) as caught:
        load(_write(file, text))
    assert caught.value.hint


def test_what_is_not_there_is_told() -> None:
    with pytest.raises(AppNotLoaded, match=r"no file missing\.py"):
        load("missing.py")
    _write("here.py", ONE)
    with pytest.raises(AppNotLoaded, match='no module "heree"'):
        load("heree:app")
    with pytest.raises(AppNotLoaded, match=r'no module "deep\.down"'):
        load("deep.down")


def test_a_home_against_the_app_s_own_is_refused(home: Path, tmp_path: Path) -> None:
    text = f'import penstock as ps\napp = ps.App("shop", home={str(tmp_path / "own")!r})\n'
    with pytest.raises(AppNotLoaded, match="says itself where its log is"):
        load(_write("own_home.py", text), home=home)
