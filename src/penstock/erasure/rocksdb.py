"""Spark's state on disk, read without Spark: sorted tables of RocksDB, and changelogs compressed by lz4-java.

Only as much of the formats as finding something takes. What is not understood raises ValueError: nobody may
take it for empty.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

TABLE_MAGIC = struct.pack("<Q", 0x88E241B785F4CFF7)  # the last eight bytes of a block-based table
LZ4_BLOCK_MAGIC = b"LZ4Block"
_FOOTER_BYTES = 53
_TRAILER_BYTES = 5  # after every block: how it is compressed, and a checksum
_LZ4_HEADER = struct.Struct("<8sBiii")
_WITH_SIZE = {4: "lz4_raw", 5: "lz4_raw", 7: "zstd"}
_VERSION_MAX = 5


def entries(table: bytes) -> Iterator[bytes]:
    """Every key of a sorted table followed by its value. Keys are whole: on disk they share beginnings."""
    at = 0
    for offset, size in _data_blocks(table):
        if offset != at:
            raise ValueError("the index does not lead through all of the table")
        at = offset + size + _TRAILER_BYTES
        for key, value, _ in _entries(_block(table, offset, size), delta=False):
            yield key + value


def unpacked(stream: bytes) -> bytes:
    """What lz4-java's block stream holds."""
    found, at = [], 0
    while at < len(stream):
        magic, token, packed, size, _ = _LZ4_HEADER.unpack_from(stream, at)
        if magic != LZ4_BLOCK_MAGIC:
            raise ValueError("this is no block of lz4-java")
        at += _LZ4_HEADER.size
        body = stream[at : at + packed]
        if size:
            found.append(body if token & 0xF0 == 0x10 else _decompressed("lz4_raw", body, size))
        at += packed
    return b"".join(found)


def _data_blocks(table: bytes) -> Iterator[tuple[int, int]]:
    footer = table[-_FOOTER_BYTES:]
    (version,) = struct.unpack_from("<I", footer, 41)
    if version > _VERSION_MAX:
        raise ValueError(f"a table of format {version}")
    at = 1
    for _ in range(2):  # of the index of other blocks
        _, at = _varint(footer, at)
    offset, at = _varint(footer, at)
    size, _ = _varint(footer, at)
    place = (0, 0)
    for _, value, shared in _entries(_block(table, offset, size), delta=version >= 4):
        if shared:  # only by how much the size differs; it begins where the one before ends
            change, _ = _varint(value, 0)
            place = place[0] + place[1] + _TRAILER_BYTES, place[1] + ((change >> 1) ^ -(change & 1))
        else:
            start, after = _varint(value, 0)
            place = start, _varint(value, after)[0]
        yield place


def _block(table: bytes, offset: int, size: int) -> bytes:
    body, kind = table[offset : offset + size], table[offset + size]
    if kind == 0:
        return body
    if kind == 1:
        return _decompressed("snappy", body, _varint(body, 0)[0])
    if kind not in _WITH_SIZE:
        raise ValueError(f"a block of compression {kind}")
    length, at = _varint(body, 0)
    return _decompressed(_WITH_SIZE[kind], body[at:], length)


def _entries(block: bytes, *, delta: bool) -> Iterator[tuple[bytes, bytes, int]]:
    """(key, value, how much of the key it shares with the one before).

    `delta`: values have no length of their own, and end where the two numbers that they are end.
    """
    (restarts,) = struct.unpack_from("<I", block, len(block) - 4)
    end = len(block) - 4 - 4 * (restarts & 0x7FFFFFFF)
    at, key = 0, b""
    while at < end:
        shared, at = _varint(block, at)
        own, at = _varint(block, at)
        length = 0
        if not delta:
            length, at = _varint(block, at)
        key = key[:shared] + block[at : at + own]
        at += own
        if delta:
            after = _varint(block, at)[1]
            length = (after if shared else _varint(block, after)[1]) - at
        yield key, block[at : at + length], shared
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _decompressed(codec: str, body: bytes, size: int) -> bytes:
    try:
        return bytes(pa.Codec(codec).decompress(body, decompressed_size=size, asbytes=True))
    except OSError as error:
        raise ValueError(str(error)) from error
