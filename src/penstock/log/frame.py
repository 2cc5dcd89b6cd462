"""One batch of records as bytes: an Arrow IPC message that checks itself.

A frame is an ordinary encapsulated record-batch message. Its custom metadata
holds one entry, `penstock`, with a JSON header: where the batch stands (base
offset, rows), when it was appended, the event times it spans, who produced it,
and a checksum over every byte of the frame (with the checksum's own digits
taken as zeros). Arrow itself would not notice a flipped bit.

The header is written in two steps: the message is serialized around a
placeholder of the header's exact length, then the header is put in its place.
So the expensive part runs before the partition is locked, and offset and time
are filled in under the lock.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

_KEY = b"penstock"
_MARK = b'{"v":1,'
_CONTINUATION = b"\xff\xff\xff\xff"
_NO_SUM = b"0" * 16
_SUM_MARK = b'"sum":"'
_METADATA_BYTES_MAX = 16 << 20
_PREFIX_BYTES = 8
# Given, so that no environment variable can change the format, nor is looked up for every frame.
_OPTIONS = pa.ipc.IpcWriteOptions()


class BrokenFrame(Exception):
    """The bytes at this position are not a whole, undamaged frame."""


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """What a frame says about itself."""

    base: int
    rows: int
    end: int  # one past the last offset; base + rows unless compaction left gaps
    time_us_min: int
    time_us_max: int
    event_us_min: int | None
    event_us_max: int | None
    producer: str | None
    epoch: int | None
    sequence: int | None
    transaction: str | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Origin:
    """Who wrote a frame as part of which atomic append."""

    producer: str
    epoch: int
    sequence: int
    transaction: str


class PendingFrame:
    """A serialized batch that waits for its place in the log."""

    def __init__(
        self,
        batch: pa.RecordBatch,
        *,
        event_us: tuple[int, int] | None = None,
        origin: Origin | None = None,
    ) -> None:
        self.rows = batch.num_rows
        by = [origin.producer, origin.epoch, origin.sequence, origin.transaction] if origin else None
        self._known = f'"event":{json.dumps(event_us)},"by":{json.dumps(by)}'
        blank = self._header(0, 0, 0, 0, 0)
        self._bytes, self._header_at = _serialize(batch, blank)

    @property
    def size_bytes(self) -> int:
        return len(self._bytes)

    def place(
        self, base: int, time_us: int, *, end: int | None = None, time_us_max: int | None = None
    ) -> memoryview:
        """The finished bytes of this frame at offset `base`."""
        header = self._header(
            base,
            end if end is not None else base + self.rows,
            time_us,
            time_us_max or time_us,
            self.size_bytes,
        )
        self._bytes[self._header_at : self._header_at + len(header)] = header
        sum_at = self._header_at + header.index(_SUM_MARK) + len(_SUM_MARK)
        self._bytes[sum_at : sum_at + 16] = _checksum(self._bytes, sum_at)
        return self._bytes

    def _header(self, base: int, end: int, time_us: int, time_us_max: int, size_bytes: int) -> bytes:
        # Fixed widths: the header's length must not depend on what is filled in later.
        return (
            f'{{"v":1,"base":{base:>19},"end":{end:>19},"rows":{self.rows},"time":[{time_us:>17},{time_us_max:>17}],'
            f'{self._known},"size":{size_bytes:>12},"sum":"{"0" * 16}"}}'
        ).encode()


def _serialize(batch: pa.RecordBatch, placeholder: bytes) -> tuple[memoryview, int]:
    room = pa.allocate_buffer(
        batch.schema.serialize().size + pa.ipc.get_record_batch_size(batch) + 4 * len(placeholder) + 4096,
        resizable=False,
    )
    sink = pa.FixedSizeBufferWriter(room)
    with pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS) as writer:
        writer.write_batch(batch, custom_metadata={_KEY: placeholder})
        stream = memoryview(room)[: sink.tell()].cast("B")
    # The writer puts the schema first; the segment has it already.
    frame = stream[_PREFIX_BYTES + int.from_bytes(stream[4:8], "little") :]
    return frame, _find(frame, placeholder)


def _find(frame: memoryview, text: bytes) -> int:
    metadata_bytes = int.from_bytes(frame[4:8], "little")
    at = bytes(frame[_PREFIX_BYTES : _PREFIX_BYTES + metadata_bytes]).find(text)
    assert at >= 0, "the header placeholder must be in the message metadata"
    return _PREFIX_BYTES + at


def _checksum(frame: memoryview | pa.Buffer, sum_at: int) -> bytes:
    view = memoryview(frame)
    digest = xxhash.xxh3_64(view[:sum_at])
    digest.update(_NO_SUM)
    digest.update(view[sum_at + 16 :])
    return digest.hexdigest().encode()


def read_header(data: pa.Buffer, position: int) -> FrameHeader:
    """The header of the frame at `position`, without checking the rest. Raises BrokenFrame."""
    header, _ = _locate(data, position)
    return header


def check(data: pa.Buffer, position: int) -> FrameHeader:
    """The header of the frame at `position` after checking every byte of it. Raises BrokenFrame."""
    header, sum_at = _locate(data, position)
    frame = data.slice(position, header.size_bytes)
    if _checksum(frame, sum_at) != bytes(memoryview(frame)[sum_at : sum_at + 16]):
        raise BrokenFrame("the checksum does not match")
    return header


def decode(data: pa.Buffer, position: int, header: FrameHeader, schema: pa.Schema) -> pa.RecordBatch:
    """The records of a frame that `check` has passed; the columns stay in `data`, nothing is copied."""
    message = pa.ipc.read_message(data.slice(position, header.size_bytes))
    return pa.ipc.read_record_batch(message, schema)


def _locate(data: pa.Buffer, position: int) -> tuple[FrameHeader, int]:
    view = memoryview(data)
    prefix = bytes(view[position : position + _PREFIX_BYTES])
    if len(prefix) < _PREFIX_BYTES or prefix[:4] != _CONTINUATION:
        raise BrokenFrame("no frame starts here")
    (metadata_bytes,) = struct.unpack("<i", prefix[4:])
    if not 0 < metadata_bytes <= min(_METADATA_BYTES_MAX, len(view) - position - _PREFIX_BYTES):
        raise BrokenFrame("the frame is cut off")
    metadata = bytes(view[position + _PREFIX_BYTES : position + _PREFIX_BYTES + metadata_bytes])
    header, sum_in_metadata = _parse(metadata)
    if header.size_bytes > len(view) - position or header.size_bytes < metadata_bytes + _PREFIX_BYTES:
        raise BrokenFrame("the frame is cut off")
    return header, _PREFIX_BYTES + sum_in_metadata


def _parse(metadata: bytes) -> tuple[FrameHeader, int]:
    start = metadata.find(_MARK)
    sum_at = metadata.find(_SUM_MARK, start) + len(_SUM_MARK)
    if start < 0 or sum_at < len(_SUM_MARK):
        raise BrokenFrame("the frame has no header")
    try:
        fields = json.loads(metadata[start : sum_at + 18])
        earliest, latest = fields["time"]
        event_min, event_max = fields["event"] or (None, None)
        producer, epoch, sequence, transaction = fields["by"] or (None, None, None, None)
        header = FrameHeader(
            fields["base"], fields["rows"], fields["end"], earliest, latest, event_min, event_max,
            producer, epoch, sequence, transaction, fields["size"],
        )  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise BrokenFrame("the frame's header cannot be read") from error
    if type(header.size_bytes) is not int:
        raise BrokenFrame("the frame's header cannot be read")
    return header, sum_at


def event_range(column: str | None, batch: pa.RecordBatch) -> tuple[int, int] | None:
    """The earliest and latest event time of a batch, in microseconds."""
    if column is None:
        return None
    found = pc.min_max(batch.column(column).cast(pa.int64())).as_py()
    return None if found["min"] is None else (found["min"], found["max"])


def seal_schema(schema: pa.Schema, facts: dict[str, object]) -> bytes:
    """The schema message that opens a segment; its metadata holds facts and a checksum."""
    text = json.dumps({"v": 1, **facts}, separators=(",", ":"))
    header = f'{text[:-1]},"sum":"{"0" * 16}"}}'.encode()
    message = bytearray(schema.with_metadata({_KEY: header}).serialize())
    sum_at = message.index(header) + header.rindex(_SUM_MARK) + len(_SUM_MARK)
    message[sum_at : sum_at + 16] = _checksum(memoryview(message), sum_at)
    return bytes(message)


def open_schema(data: pa.Buffer) -> tuple[pa.Schema, dict[str, object], int]:
    """The schema (without our metadata), the facts, and where the first frame starts. Raises BrokenFrame."""
    view = memoryview(data)
    if len(view) < _PREFIX_BYTES or bytes(view[:4]) != _CONTINUATION:
        raise BrokenFrame("the segment has no schema")
    size = _PREFIX_BYTES + int.from_bytes(view[4:8], "little", signed=True)
    if not _PREFIX_BYTES < size <= len(view):
        raise BrokenFrame("the segment's schema is cut off")
    message = bytes(view[:size])
    start = message.find(_MARK)
    sum_at = message.find(_SUM_MARK, start) + len(_SUM_MARK)
    if start < 0 or sum_at < len(_SUM_MARK):
        raise BrokenFrame("the segment's schema has no header")
    if _checksum(memoryview(message), sum_at) != message[sum_at : sum_at + 16]:
        raise BrokenFrame("the checksum of the segment's schema does not match")
    facts = json.loads(message[start : sum_at + 18])
    return pa.ipc.read_schema(pa.py_buffer(message)).remove_metadata(), facts, size
