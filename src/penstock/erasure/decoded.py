"""A file as everything that can be read out of it: its bytes, and what they hold once they are decoded.

By what the bytes are, whatever the file is called: Arrow streams and files, Parquet, SQLite, zip, tar, gzip,
bzip2, xz, zstd, lz4, tables of RocksDB, streams of lz4-java, documents of a search index. What is inside is
decoded in turn. What is packed in another way is told: nobody may take it for searched.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import sqlite3
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from penstock.erasure import rocksdb, sqlite_image, tantivy

_NESTING_MAX = 8
_SAMPLE_BYTES = 64 << 10
_SAMPLE_BYTES_MIN = 512
_PACKED_RATIO = 0.95
_ARROW_END = b"\xff\xff\xff\xff\0\0\0\0"

Piece = tuple[str, bytes]
"""How it was come by, as "zip:state.sst/rocksdb", and bytes."""


class Unreadable(Exception):
    """Its first bytes say what it is, and it is not that."""


def pieces(data: bytes, *, wal: bytes = b"", depth: int = 0) -> Iterator[Piece]:
    """`data` itself, and everything inside. Raises Unreadable after what could be read.

    `wal`: the write-ahead log beside a SQLite file, which has the newest of its pages.
    """
    yield "bytes", data
    if depth == _NESTING_MAX:
        raise Unreadable("nested too deep")
    for name, is_it, read in _FORMS:
        if not is_it(data):
            continue
        try:
            for inside, found in _sqlite(data, wal) if name == "sqlite" else read(data):
                where = f"{name}{inside}"
                for further, piece in pieces(found, depth=depth + 1):
                    yield where if further == "bytes" else f"{where}/{further}", piece
        except Unreadable:
            raise
        except _WRONG as error:
            raise Unreadable(f"{name}: {error}") from error
        return
    if depth == 0 and _is_packed(data):
        raise Unreadable("packed or encrypted, in no way that is known here")


def _is_packed(data: bytes) -> bool:
    """Whether nothing is to be gained by compressing it: then somebody has, or it is encrypted."""
    middle = max(0, len(data) - _SAMPLE_BYTES) // 2
    sample = data[middle : middle + _SAMPLE_BYTES]
    return len(sample) >= _SAMPLE_BYTES_MIN and len(zlib.compress(sample)) > len(sample) * _PACKED_RATIO


def _arrow_file(data: bytes) -> Iterator[Piece]:
    yield from _batches(pa.ipc.open_file(data).get_batch, range(pa.ipc.open_file(data).num_record_batches))


def _arrow_stream(data: bytes) -> Iterator[Piece]:
    """Up to where it stops: a segment that is written to has no end, and zeros after it."""
    source = pa.BufferReader(data)
    reader, end = pa.ipc.open_stream(source), 0
    with contextlib.suppress(StopIteration, pa.ArrowInvalid, OSError):
        while True:
            end = source.tell()
            yield from _buffers(reader.read_next_batch())
    if data[end:].removeprefix(_ARROW_END).strip(b"\0"):
        raise Unreadable("arrow: something follows that is no record batch")


def _parquet(data: bytes) -> Iterator[Piece]:
    import pyarrow.parquet

    for batch in pyarrow.parquet.ParquetFile(io.BytesIO(data)).iter_batches():
        yield from _buffers(batch)


def _batches(get: Callable[[int], pa.RecordBatch], numbers: range) -> Iterator[Piece]:
    for number in numbers:
        yield from _buffers(get(number))


def _buffers(batch: pa.RecordBatch) -> Iterator[Piece]:
    for column in batch.columns:
        plain: Any = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        for buffer in plain.buffers():
            if buffer is not None:
                yield "", buffer.to_pybytes()


def _sqlite(data: bytes, wal: bytes = b"") -> Iterator[Piece]:
    """Every cell: one that is longer than a page is in pieces on disk. Free pages are in the bytes."""
    with contextlib.closing(sqlite_image.opened(data, wal)) as db:
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'").fetchall():
            for row in db.execute(f'SELECT * FROM "{table.replace(chr(34), chr(34) * 2)}"'):
                yield from ((f":{table}", value) for value in row if isinstance(value, bytes))
                yield f":{table}", "\n".join(map(str, row)).encode("utf-8", "surrogateescape")


def _zip(data: bytes) -> Iterator[Piece]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in archive.namelist():
            yield f":{name}", archive.read(name)


def _tar(data: bytes) -> Iterator[Piece]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            inside = archive.extractfile(member)
            if inside is not None:
                yield f":{member.name}", inside.read()


def _compressed(codec: str) -> Callable[[bytes], Iterator[Piece]]:
    def read(data: bytes) -> Iterator[Piece]:
        yield "", pa.CompressedInputStream(pa.BufferReader(data), codec).read()

    return read


def _begins(magic: bytes) -> Callable[[bytes], bool]:
    return lambda data: data.startswith(magic)


_WRONG = (ValueError, OSError, EOFError, IndexError, KeyError, RuntimeError, pa.ArrowException, sqlite3.Error,
          zipfile.BadZipFile, gzip.BadGzipFile, tarfile.TarError, lzma.LZMAError)  # fmt: skip
_FORMS: tuple[tuple[str, Callable[[bytes], bool], Callable[[bytes], Iterator[Piece]]], ...] = (
    ("parquet", _begins(b"PAR1"), _parquet),
    ("arrow", _begins(b"ARROW1\0\0"), _arrow_file),
    ("arrow", lambda data: data[:4] == b"\xff\xff\xff\xff" and len(data) > 8, _arrow_stream),
    ("sqlite", _begins(b"SQLite format 3\0"), _sqlite),
    ("zip", _begins(b"PK\x03\x04"), _zip),
    ("gzip", _begins(b"\x1f\x8b\x08"), _compressed("gzip")),
    ("bzip2", _begins(b"BZh"), lambda data: iter([("", bz2.decompress(data))])),
    ("xz", _begins(b"\xfd7zXZ\0"), lambda data: iter([("", lzma.decompress(data))])),
    ("tar", lambda data: data[257:262] == b"ustar", _tar),
    ("zstd", _begins(b"\x28\xb5\x2f\xfd"), _compressed("zstd")),
    ("lz4", _begins(b"\x04\x22\x4d\x18"), _compressed("lz4")),
    ("lz4-java", _begins(rocksdb.LZ4_BLOCK_MAGIC), lambda data: iter([("", rocksdb.unpacked(data))])),
    ("rocksdb", lambda data: data.endswith(rocksdb.TABLE_MAGIC),
     lambda data: (("", entry) for entry in rocksdb.entries(data))),
    ("search", tantivy.is_one, lambda data: (("", block) for block in tantivy.documents(data))),
)  # fmt: skip
