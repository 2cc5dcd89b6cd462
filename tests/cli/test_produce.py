"""`penstock produce`: what is stored, what is not, and how to go on."""

from __future__ import annotations

import array
import fcntl
import json
import signal
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.command import Command, error_of
from tests.waiting import wait_until

import penstock as ps
from penstock.cli.lines import LineReader


@pytest.fixture
def numbers(cli: Command) -> Command:
    """A home with the topic `t`."""
    cli("topic", "create", "t", "--schema", "n BIGINT, text STRING", "--partitions", 2)
    return cli


def _line(number: int) -> str:
    return json.dumps({"n": number}) + "\n"


def _stored(cli: Command, topic: str = "t") -> list[int]:
    with ps.open_log(cli.home) as log:
        return sorted(row["n"] for row in log.topic(topic).rows())


def _count(cli: Command, topic: str = "t") -> int:
    with ps.open_log(cli.home) as log:
        return sum(end for _, end in log.topic(topic).bounds().values())


def _wait_for_records(cli: Command, count: int) -> None:
    wait_until(lambda: _count(cli) >= count, what=f"{count} records", timeout_s=60)


def test_what_goes_in_comes_out(cli: Command) -> None:
    ddl = "i BIGINT, d DOUBLE, b BOOLEAN, s STRING, raw BINARY, at TIMESTAMP, day DATE, m MAP<STRING, INT>"
    cli("topic", "create", "t", "--schema", ddl)
    times = {"at": "2026-01-31T12:00:00.000001Z", "day": "2026-01-31"}
    record = {
        "i": 7,
        "d": 0.5,
        "b": True,
        "s": "žluťoučký",
        "raw": {"base64": "/wA="},
        **times,
        "m": {"a": 1},
    }
    produced = cli.run("produce", "t", input=json.dumps(record, ensure_ascii=False) + "\n")
    assert produced.returncode == 0, produced.stderr
    consumed = cli.run("consume", "t")
    assert json.loads(consumed.stdout)["value"] == record


def test_the_summary_names_records_and_offsets(numbers: Command) -> None:
    first = numbers.json("produce", "t", "--partition", 1, input="".join(map(_line, range(3))))
    again = numbers.json("produce", "t", "--partition", 1, input="".join(map(_line, range(2))))
    assert (first["records"], first["partitions"]) == (3, [{"partition": 1, "first": 0, "end": 3}])
    assert again["partitions"] == [{"partition": 1, "first": 3, "end": 5}]
    shown = numbers("produce", "t", "--partition", 0, input=_line(1)).stdout
    assert shown.startswith("stored 1 record in t in ")


def test_a_file_of_many_chunks_is_stored_in_order(numbers: Command, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text("".join(map(_line, range(12_345))))
    assert numbers.json("produce", "t", file, "--partition", 0)["records"] == 12_345
    assert [line["value"]["n"] for line in numbers.lines("consume", "t")] == list(range(12_345))


def test_blank_lines_and_a_missing_last_newline_are_fine(numbers: Command) -> None:
    told = numbers.json("produce", "t", input='\n{"n": 1}\n  \n{"n": 2}')
    assert (told["records"], told["lines"]) == (2, 4)


def test_a_missing_file_is_bad_input(numbers: Command, tmp_path: Path) -> None:
    assert numbers("produce", "t", tmp_path / "none.jsonl").exit_code == 2


def test_lines_of_a_pipe_are_stored_while_it_is_open(numbers: Command) -> None:
    with numbers.start("produce", "t") as process:
        assert process.stdin
        for count in (1, 2, 3):
            process.stdin.write(_line(count))
            process.stdin.flush()
            _wait_for_records(numbers, count)
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"n": "seven"}', "column \"n\": expected BIGINT, got 'seven' (str)"),
        ('{"m": 7}', 'column "m": there is no such column'),
        ('{"n": 7', "this is no JSON"),
        ("[1, 2]", "a JSON array is no record"),
        ("\xff", "this is no JSON"),
    ],
)
def test_a_bad_line_is_named_and_everything_before_it_is_stored(
    numbers: Command, line: str, says: str
) -> None:
    lines = [*map(_line, range(6_000)), line + "\n", _line(6_000)]
    result = numbers("produce", "t", "--json", input="".join(lines).encode("latin-1"))
    assert result.exit_code == 2
    error = error_of(result)
    assert error["message"].startswith(f"line 6,001: {says}")
    assert (error["line"], error["stored"]) == (6_001, 6_000)
    assert "the 6,000 records before it are stored" in error["hint"]
    assert "--from-line 6001" in error["hint"]
    assert _stored(numbers) == list(range(6_000))


def test_from_line_goes_on_after_a_corrected_line(numbers: Command, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(_line(1) + "oops\n" + _line(3))
    assert numbers("produce", "t", file).exit_code == 2
    file.write_text(_line(1) + _line(2) + _line(3))
    assert numbers.json("produce", "t", file, "--from-line", 2)["skipped_lines"] == 1
    assert _stored(numbers) == [1, 2, 3]


def test_a_record_that_is_too_large_is_a_bad_line(cli: Command) -> None:
    cli("topic", "create", "t", "--schema", "n BIGINT, text STRING", "--max-record-bytes", 1_000)
    result = cli("produce", "t", "--json", input=_line(1) + json.dumps({"n": 2, "text": "x" * 2_000}) + "\n")
    assert (result.exit_code, error_of(result)["line"]) == (2, 2)
    result = cli(
        "produce", "t", "--json", input=_line(3) + json.dumps({"n": 4, "text": "x" * 200_000}) + "\n"
    )
    assert "too long for any record" in error_of(result)["message"]
    assert _stored(cli) == [1, 3]


def test_bad_lines_can_be_left_out_and_are_told_as_json(numbers: Command) -> None:
    lines = [_line(1), '{"n": "x"}\n', "nope\n", _line(4), '{"m": 1}\n']
    result = numbers("produce", "t", "--skip-bad", "--json", input="".join(lines))
    assert result.exit_code == 1
    told = [json.loads(line) for line in result.stderr.splitlines()]
    assert [one["line"] for one in told] == [2, 3, 5]
    assert json.loads(result.stdout)["bad_lines"] == 3
    assert _stored(numbers) == [1, 4]


def test_a_record_without_a_key_is_found_in_a_compacted_topic(cli: Command) -> None:
    cli("topic", "create", "t", "--schema", "n BIGINT, v BIGINT", "--key", "n", "--cleanup", "compact")
    result = cli("produce", "t", "--json", input='{"n": 1}\n{"v": 2}\n{"n": 3}\n')
    assert (result.exit_code, error_of(result)["line"]) == (2, 2)
    assert _stored(cli) == [1]


def test_keys_can_be_deleted(cli: Command) -> None:
    cli("topic", "create", "t", "--schema", "n BIGINT", "--key", "n", "--cleanup", "compact")
    cli("produce", "t", input=_line(1) + _line(2))
    cli("produce", "t", "--delete", input=_line(1))
    last = cli.lines("consume", "t")[-1]
    assert (last["deleted"], last["value"]) == (True, {"n": 1})
    with ps.open_log(cli.home) as log:
        assert list(log.topic("t").latest()) == [2]


def test_text_lines_are_values(cli: Command) -> None:
    cli("topic", "create", "raw")
    cli("produce", "raw", "--text", input=b"hello\n\n\xff{\n")
    values = [line["value"]["value"] for line in cli.lines("consume", "raw")]
    assert values == ["hello", "", {"base64": "/3s="}]


def test_a_line_for_bytes_may_carry_key_and_headers(cli: Command) -> None:
    cli("topic", "create", "raw")
    record = {"key": "k", "value": "v", "headers": {"h": "1"}}
    cli("produce", "raw", input=json.dumps(record) + "\n")
    assert [line["value"] for line in cli.lines("consume", "raw")] == [record]


def test_text_needs_a_value_column(numbers: Command) -> None:
    assert numbers("produce", "t", "--text", input="x\n").exit_code == 2


# ---- Ctrl-C --------------------------------------------------------------------------------------


def test_ctrl_c_with_json_tells_what_was_stored(numbers: Command) -> None:
    with numbers.start("produce", "t", "--partition", 1, "--json") as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(_line(1) + "\n" + _line(2))
        process.stdin.flush()
        _wait_for_records(numbers, 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        told = json.loads(process.stdout.read())
        assert "interrupted: 2 records stored" in process.stderr.read()
    assert (told["topic"], told["records"], told["lines"], told["bad_lines"]) == ("t", 2, 3, 0)
    assert told["partitions"] == [{"partition": 1, "first": 0, "end": 2}]


def test_ctrl_c_before_anything_was_stored_says_so(numbers: Command) -> None:
    with numbers.start("produce", "t", "--from-line", 3, "--json") as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(_line(1))
        process.stdin.flush()
        _wait_until_it_waits_for_input(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        told = json.loads(process.stdout.read())
        # The lines it was told to pass over are not to be stored the next time either.
        assert "go on with --from-line 3" in process.stderr.read()
    assert (told["records"], told["lines"], told["skipped_lines"], told["partitions"]) == (0, 1, 1, [])


def _wait_until_it_waits_for_input(process: subprocess.Popen[str]) -> None:
    """The pipe is empty and the kernel says that the process sleeps in a read of it."""
    assert process.stdin
    pipe = process.stdin.fileno()
    sleeping = Path(f"/proc/{process.pid}/wchan")

    def waits() -> bool:
        unread = array.array("i", [0])
        fcntl.ioctl(pipe, termios.FIONREAD, unread)
        return unread[0] == 0 and "pipe_read" in sleeping.read_text()

    if not sleeping.exists():
        pytest.skip("no way to see here what a process waits for")
    wait_until(waits, what="a read of the empty pipe", timeout_s=60)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_ctrl_c_whose_reader_is_gone_too_has_the_same_exit_code(
    numbers: Command, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with numbers.start("produce", "t", "--json") as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(_line(1))
        process.stdin.flush()
        _wait_for_records(numbers, 1)
        process.stdout.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == "interrupted: 1 record stored; go on with --from-line 2\n"


# ---- exactly once --------------------------------------------------------------------------------


def test_a_second_run_with_the_same_id_stores_nothing_twice(numbers: Command, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text("".join(map(_line, range(100))))
    assert numbers.json("produce", "t", file, "--id", "load")["records"] == 100
    with file.open("a") as grown:
        grown.write("".join(map(_line, range(100, 150))))
    told = numbers.json("produce", "t", file, "--id", "load")
    assert (told["records"], told["skipped_lines"]) == (50, 100)
    assert _stored(numbers) == list(range(150))


def test_other_input_under_the_same_id_is_refused(numbers: Command) -> None:
    numbers("produce", "t", "--id", "load", input=_line(1) + _line(2))
    for other in (_line(9) + _line(2) + _line(3), _line(1)):
        assert numbers("produce", "t", "--id", "load", input=other).exit_code == 2
    assert _stored(numbers) == [1, 2]


def test_a_bad_line_with_an_id_is_where_the_next_run_goes_on(numbers: Command) -> None:
    result = numbers("produce", "t", "--id", "load", "--json", input=_line(1) + "oops\n" + _line(3))
    assert "run the same command again" in error_of(result)["hint"]
    told = numbers.json("produce", "t", "--id", "load", input=_line(1) + _line(2) + _line(3))
    assert (told["records"], told["skipped_lines"]) == (2, 1)
    assert _stored(numbers) == [1, 2, 3]


def test_exactly_once_across_kill_9(numbers: Command, tmp_path: Path) -> None:
    lines = [_line(number) for number in range(30_000)]
    for fed in (8_000, 20_000):
        with numbers.start("produce", "t", "--id", "load") as process:
            assert process.stdin
            before = _count(numbers)
            process.stdin.write("".join(lines[:fed]))
            process.stdin.flush()
            _wait_for_records(numbers, before + 1)
            process.send_signal(signal.SIGKILL)
            process.wait(60)
    file = tmp_path / "in.jsonl"
    file.write_text("".join(lines))
    told = numbers.json("produce", "t", file, "--id", "load")
    assert told["skipped_lines"] > 0
    assert _stored(numbers) == list(range(30_000))


# ---- lines ------------------------------------------------------------------------------------------


class _Slow:
    """A stream without a file behind it that gives a few bytes at a time."""

    def __init__(self, data: bytes, step: int) -> None:
        self._steps: Iterator[bytes] = (data[at : at + step] for at in range(0, len(data), step))

    def read(self, size: int) -> bytes:
        return next(self._steps, b"")


@pytest.mark.parametrize("step", [1, 2, 3, 7, 100])
def test_lines_are_the_same_however_they_arrive(step: int) -> None:
    reader = LineReader(_Slow(b"a\n\nbcd\n" + b"x" * 20 + b"\nlast", step), line_bytes_max=10)  # type: ignore[arg-type]
    found = []
    while lines := reader.take(2):
        found += lines
    assert found == [b"a", b"", b"bcd", None, b"last"]
    assert reader.taken == 5
