"""Loading lines into a topic: chunk by chunk, each stored before the next is read."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO

import xxhash

from penstock.cli.lines import LineReader
from penstock.errors import BadInput, BadOption, BadRecord
from penstock.log import json_rows
from penstock.log.log import Log
from penstock.log.port import Position
from penstock.log.topic import Topic

_CHUNK_LINES = 5_000
_SHOWN_CHARACTERS = 200
_JSON_FACTOR = 8  # JSON may need six characters for one byte

Lines = list[bytes | None]
Parser = Callable[[bytes], dict[str, object] | None]


class BadLine(BadInput):
    """One line cannot be stored. Everything before it is."""

    def __init__(self, line: int, reason: BadRecord, *, stored: int, go_on: str) -> None:
        self.line, self.column, self.stored = line, reason.column, stored
        before = f"the {stored:,} records before it are stored" if stored else "nothing was stored before it"
        super().__init__(
            f"line {line:,}: {reason_of(reason)}",
            hint=f"{_ended(reason.hint)}{before}; correct it and {go_on}, "
            "or leave bad lines out with --skip-bad",
        )


@dataclass(frozen=True, slots=True)
class _Record:
    line: int
    value: dict[str, object]


class Load:
    """One run of lines into a topic. `done`, `stored`, `bad`, `skipped` and `ranges` tell how far it is."""

    def __init__(
        self,
        log: Log,
        topic: str,
        stream: BinaryIO,
        *,
        text: bool = False,
        delete: bool = False,
        skip_bad: bool = False,
        partition: int | None = None,
        id: str | None = None,
    ) -> None:
        self.topic = log.topic(topic)
        self.id, self.delete = id, delete
        self.stored = self.bad = self.skipped = 0
        self.done = 0  # lines that are passed over, stored or left out for good
        self.ranges: dict[int, tuple[int, int]] = {}
        self.say: Callable[[str], None] = lambda line: print(line, file=sys.stderr)
        settings = self.topic.settings
        self.reader = LineReader(stream, line_bytes_max=settings.record_bytes_max * _JSON_FACTOR + (64 << 10))
        self._parse = _text_parser(self.topic) if text else _json_parser(self.topic)
        self._left_out: list[tuple[int, str]] = []
        self._skip_bad, self._partition = skip_bad, partition
        self._producer = None if id is None else log.producer(id)
        self._first_line = 1
        self._digest = xxhash.xxh3_64()  # of the lines that are done

    # ---- where to begin -----------------------------------------------------------------------

    def skip_to(self, line: int) -> None:
        """Pass over what is stored already: the lines before `line`, or those an earlier run had."""
        self._first_line = line
        position = self._producer.position() if self._producer else None
        before = json.loads(position) if position else {"line": line - 1}
        while self.done < before["line"]:
            lines = self.reader.take(min(_CHUNK_LINES, before["line"] - self.done))
            if not lines:
                break
            self._count_done(lines)
            self.skipped = self.done
        if position and (self.done, self._digest.hexdigest()) != (before["line"], before["digest"]):
            found = "the first of these are others" if self.done == before["line"] else "there are fewer here"
            raise BadOption(
                f'producer "{self.id}" has stored {before["line"]:,} lines, but {found}.',
                hint="give the same input from its beginning, or choose another --id",
            )

    def how_to_go_on(self) -> str:
        """What to do after a run that ended early."""
        if self._producer:
            return "run the same command again"
        # Whoever stops us while we pass over lines did not want those any more than before.
        return f"go on with --from-line {max(self.done + 1, self._first_line)}"

    def _count_done(self, lines: Lines) -> None:
        self.done += len(lines)
        self._digest.update(_digested(lines))

    # ---- chunk by chunk -----------------------------------------------------------------------------

    def next_chunk(self, *, holding: Callable[[], AbstractContextManager[None]]) -> bool:
        """Store the next lines; False when there are none left. `holding` keeps interrupts out."""
        lines = self.reader.take(_CHUNK_LINES)
        if not lines:
            return False
        with holding():
            records, bad = self._parsed(lines)
            bad = self._append_what_fits(records, lines, bad)
            self._report_left_out()
            if bad is not None:
                raise BadLine(self.done + 1, bad, stored=self.stored, go_on=self.how_to_go_on())
        return True

    def _parsed(self, lines: Lines) -> tuple[list[_Record], BadRecord | None]:
        """The records up to the first bad line, or without the bad ones."""
        records: list[_Record] = []
        for number, line in enumerate(lines, start=self.done + 1):
            try:
                value = self._parse(_within_limit(line))
            except BadRecord as error:
                if not self._skip_bad:
                    del lines[number - self.done - 1 :]
                    return records, error
                self._leave_out(number, error, shown=line or b"")
                continue
            if value is not None:
                records.append(_Record(number, value))
        return records, None

    def _append_what_fits(
        self, records: list[_Record], lines: Lines, bad: BadRecord | None
    ) -> BadRecord | None:
        """Append up to the first record that does not fit, or without those that do not."""
        try:
            self._append(records, lines)
            return bad
        except BadRecord as error:
            at = self._place_of(error, records)
            if not self._skip_bad:
                before = lines[: records[at].line - self.done - 1]
                self._append(records[:at], before)
                return error
        self._append([record for record in records if self._fits(record)], lines)
        return bad

    def _place_of(self, error: BadRecord, records: list[_Record]) -> int:
        if error.row is not None and 0 <= error.row < len(records):
            return error.row
        return next((at for at, record in enumerate(records) if self._refusal(record)), 0)

    def _refusal(self, record: _Record) -> BadRecord | None:
        try:
            list(self.topic.encode([record.value]))
        except BadRecord as error:
            return error
        return None

    def _fits(self, record: _Record) -> bool:
        refusal = self._refusal(record)
        if refusal:
            shown = json.dumps(json_rows.to_json(record.value), ensure_ascii=False).encode()
            self._leave_out(record.line, refusal, shown=shown)
        return refusal is None

    def _leave_out(self, number: int, error: BadRecord, *, shown: bytes) -> None:
        self.bad += 1
        text = shown[:_SHOWN_CHARACTERS].decode(errors="replace")
        told = {"line": number, "error": reason_of(error), "hint": error.hint, "text": text}
        self._left_out.append((number, json.dumps(told, ensure_ascii=False)))

    def _report_left_out(self) -> None:
        for _, told in sorted(self._left_out):
            self.say(told)
        self._left_out.clear()

    # ---- storing ----------------------------------------------------------------------------------------

    def _append(self, records: list[_Record], lines: Lines) -> None:
        """Store these records; from then on `lines` are done."""
        values = [record.value for record in records]
        self._note(self._positions(values, lines))
        self._count_done(lines)
        self.stored += len(values)

    def _positions(self, values: list[dict[str, object]], lines: Lines) -> Iterable[Position]:
        if self._producer is not None:
            digest = self._digest.copy()
            digest.update(_digested(lines))
            position = {"line": self.done + len(lines), "digest": digest.hexdigest()}
            return self._producer.append(
                {self.topic: values}, position=json.dumps(position).encode()
            ).positions
        if not values:
            return ()
        return (
            self.topic.delete(*values)
            if self.delete
            else self.topic.append(values, partition=self._partition),
        )

    def _note(self, positions: Iterable[Position]) -> None:
        for position in positions:
            for number, end in position.ends.items():
                first = position.firsts[number]
                self.ranges[number] = (self.ranges.get(number, (first, end))[0], end)


def reason_of(error: BadRecord) -> str:
    """Its message without the number of the row, which counts from the start of a chunk."""
    return re.sub(r"^record \d+ ", "the record ", re.sub(r"^row \d+, ", "", error.message))


def _ended(hint: str) -> str:
    return f"{hint}{' ' if hint.endswith('?') else '; '}" if hint else ""


def _digested(lines: Lines) -> bytes:
    return b"".join((line or b"") + b"\n" for line in lines)


def _within_limit(line: bytes | None) -> bytes:
    if line is None:
        raise BadRecord("the line is too long for any record.", hint="is it JSON lines, one object per line?")
    return line


def _json_parser(topic: Topic) -> Parser:
    schema = topic.schema
    read = json_rows.reader_of(schema)
    example = ", ".join(f'"{name}": …' for name in schema.names[:3])

    def parse(line: bytes) -> dict[str, object] | None:
        if not line.strip():
            return None
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadRecord(f"this is no JSON ({error}).", hint="write one object per line") from None
        if not isinstance(value, dict):
            raise BadRecord(
                f"a JSON {_kind(value)} is no record.", hint=f"write one object per line: {{{example}}}"
            )
        return read(value)

    return parse


def _kind(value: object) -> str:
    names = {list: "array", str: "text", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _text_parser(topic: Topic) -> Parser:
    types = {name: str(topic.schema.field(name).type) for name in topic.schema.names}
    if types.get("value") not in ("binary", "string"):
        raise BadOption(
            f'--text fills the column "value", which topic "{topic.name}" does not have as BINARY or STRING.',
            hint="send JSON lines, or create a topic without --schema",
        )

    def parse(line: bytes) -> dict[str, object]:
        try:
            return {"value": line if types["value"] == "binary" else line.decode()}
        except UnicodeDecodeError as error:
            raise BadRecord(f"this is no UTF-8 text ({error}).", hint="use a BINARY column") from None

    return parse
