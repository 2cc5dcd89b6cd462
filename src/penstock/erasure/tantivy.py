"""The documents of a search index on disk, read without tantivy: also those that were deleted.

A file of an index ends with JSON that tells the format. One with documents has, before that, where its blocks
are. The other files hold words of documents, cut and packed; Penstock puts whole rows into documents.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

import pyarrow as pa

_END = struct.Struct("<II")  # the length of the JSON, and a sign
_SIGN = 1337
_FORMAT = 7
_ABOUT = struct.Struct(
    "<IQB15s"
)  # of documents: version, where the index of blocks begins, how they are packed
_ABOUT_VERSION = 2
_NONE, _LZ4 = 0, 1


def is_one(data: bytes) -> bool:
    """Whether it is a file of an index, of documents or not."""
    return _told(data) is not None


def documents(data: bytes) -> Iterator[bytes]:
    """Blocks of them; none where it is a file of another kind. Raises ValueError for an unknown format."""
    told = _told(data)
    assert told is not None
    body, version = told
    if version != _FORMAT:
        raise ValueError(f"an index of format {version}")
    if len(body) < _ABOUT.size:
        return
    kind, index, packing, rest = _ABOUT.unpack(body[-_ABOUT.size :])
    if kind != _ABOUT_VERSION or any(rest) or index > len(body) - _ABOUT.size:
        return
    for start, size in _blocks(body[index : -_ABOUT.size], index):
        yield _unpacked(body[start : start + size], packing)


def _told(data: bytes) -> tuple[bytes, object] | None:
    """What comes before the JSON, and the format that it tells."""
    if len(data) < _END.size or not data.endswith(struct.pack("<I", _SIGN)):
        return None
    (size, _) = _END.unpack(data[-_END.size :])
    try:
        found = json.loads(data[-_END.size - size : -_END.size])
        return data[: -_END.size - size], found["version"]["index_format_version"]
    except (ValueError, KeyError, TypeError):
        return None


def _blocks(index: bytes, end: int) -> Iterator[tuple[int, int]]:
    """Where blocks begin, and how long they are. Raises ValueError unless they are everything up to `end`."""
    layers, at = _number(index, 0)
    ends = []
    for _ in range(layers):
        size, at = _number(index, at)
        ends.append(size)
    first, place = at + (ends[-2] if layers > 1 else 0), 0
    last = at + (ends[-1] if ends else 0)
    while first < last:
        count, first = _number(index, first)
        _, first = _number(index, first)  # the number of its first document
        start, first = _number(index, first)
        if start != place:
            raise ValueError("the index of blocks leaves some out")
        for _ in range(count):
            _, first = _number(index, first)  # how many documents
            size, first = _number(index, first)
            yield place, size
            place += size
    if place != end:
        raise ValueError("the index of blocks leaves some out")


def _unpacked(block: bytes, packing: int) -> bytes:
    if packing == _NONE:
        return block
    if packing != _LZ4:
        raise ValueError(f"documents packed in way {packing}")
    (size,) = struct.unpack_from("<I", block)
    return bytes(pa.Codec("lz4_raw").decompress(block[4:], decompressed_size=size, asbytes=True))


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number and where it ends: seven bits a byte, and the eighth in the last."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte & 0x80:
            return value, at
        shift += 7
