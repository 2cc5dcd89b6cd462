"""Numbers and times as people read them, and the terminal that asks before it acts."""

from __future__ import annotations

import doctest

import pytest
from tests.cli.command import Command

import penstock as ps
from penstock import places
from penstock.cli import words


@pytest.mark.parametrize("module", [places, words])
def test_the_examples_in_docstrings_hold(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0004, "under 1 ms"),
        (0.25, "250 ms"),
        (4.25, "4.2 s"),
        (59.4, "59 s"),
        (61, "1 min 1 s"),
        (3_600 * 3 + 720, "3 h 12 min"),
        (7 * 86_400, "7 d"),
        (40 * 86_400 + 3_600, "40 d"),
    ],
)
def test_spans(seconds: float, text: str) -> None:
    assert words.span(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (200 << 30, "200 GiB")],
)
def test_sizes(size: int, text: str) -> None:
    assert words.size(size) == text


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([0, 1], "0 and 1"), ([2, 0, 1, 7], "0 to 2, 7")]
)
def test_lists_of_partitions(numbers: list[int], text: str) -> None:
    assert words.listed(numbers) == text


@pytest.mark.parametrize("text", ["", "-1", "10 XB", "one"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ps.BadOption):
        words.parse_size(text)


@pytest.mark.parametrize(("answer", "code", "left"), [("y", 0, []), ("n", 1, ["t"])])
def test_on_a_terminal_a_delete_asks_first(
    cli: Command, log: ps.Log, answer: str, code: int, left: list[str]
) -> None:
    log.create_topic("t", "n BIGINT").append({"n": 1})
    script = "export -f penstock; SHELL=$BASH script -qec 'penstock topic delete t' /dev/null"
    asked = cli.shell(f"command -v script >/dev/null || exit 99; echo {answer} | ({script})")
    if asked.returncode == 99:
        pytest.skip("no terminal to be had: script is not installed")
    assert 'delete topic "t" with 1 record? [y/N]' in asked.stdout
    assert (asked.returncode, log.topics()) == (code, left)
