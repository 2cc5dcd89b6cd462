"""Which partition a record belongs to: the bytes of its key, and Kafka's hash of them.

The bytes are what the key of a Kafka record will be, so that a topic that moves to Kafka keeps its
partitioning. A key of one column is its plain text (BINARY as it is). A key of several is one
netstring `length:text,` per column, `-,` for a null, so that no two keys share their bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from penstock.errors import BadSchema
from penstock.schema import ArrowArray, RecordSchema, ddl_of

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF

# Where one way of hashing becomes faster than another, measured.
_VECTOR_BYTES_MAX = 1_024
_SCALAR_ROWS_MAX = 32
_DIRECT_ROWS_MAX = 2_048


def check_key(schema: RecordSchema, key: tuple[str, ...]) -> None:
    """Raise BadSchema unless these columns exist and have one text per value."""
    for at, name in enumerate(key):
        dtype = schema.field(name).type
        if pa.types.is_nested(dtype) or pa.types.is_floating(dtype):
            raise BadSchema(
                f'column "{name}" is {ddl_of(dtype)} and cannot be part of a key.',
                hint="take a column of whole numbers, text, bytes, dates or times",
            )
        if name in key[:at]:
            raise BadSchema(f'column "{name}" is in the key twice.', hint="name each column once")


def murmur2(data: bytes) -> int:
    """Kafka's `Utils.murmur2`, a signed 32-bit number."""
    hashed = _SEED ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        word = (word ^ word >> 24) * _M & _MASK
        hashed = hashed * _M & _MASK ^ word
    if whole < len(data):
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    hashed = (hashed ^ hashed >> 13) * _M & _MASK
    hashed ^= hashed >> 15
    return hashed - (hashed >> 31 << 32)


def key_bytes(batch: pa.RecordBatch, key: tuple[str, ...]) -> ArrowArray:
    """The key of each row as bytes; null where a key of one column is null, and without key columns."""
    if not key:
        return pa.nulls(batch.num_rows, pa.binary())
    texts = [_text(batch.column(name)) for name in key]
    return texts[0] if len(texts) == 1 else _joined([_netstring(text) for text in texts])


def partitions_of(batch: pa.RecordBatch, key: tuple[str, ...], partitions: int) -> npt.NDArray[np.int32]:
    """The partition of each row, the same as Kafka's default; -1 where the key is null."""
    codes, distinct = _distinct(batch, key)
    keys = key_bytes(distinct, key)
    found = ((_murmur2_each(keys) & 0x7FFFFFFF) % partitions).astype(np.int32)
    if keys.null_count:
        found[np.asarray(keys.is_null())] = -1
    return found if codes is None else found[codes]


def key_digests(batch: pa.RecordBatch, key: tuple[str, ...]) -> npt.NDArray[np.uint64]:
    """128 bits per row, equal where the keys are; zeros where the key is null. Shape (rows, 2)."""
    codes, distinct = _distinct(batch, key)
    values = key_bytes(distinct, key).to_numpy(zero_copy_only=False).tolist()
    joined = b"".join(bytes(16) if value is None else xxhash.xxh3_128_digest(value) for value in values)
    digests = np.frombuffer(joined, np.uint64).reshape(-1, 2)
    return digests if codes is None else digests[codes]


def _distinct(
    batch: pa.RecordBatch, key: tuple[str, ...]
) -> tuple[npt.NDArray[np.int64] | None, pa.RecordBatch]:
    """One row per distinct key, and for each row of the batch which of them it has.

    None and all rows where finding the distinct ones would cost more than hashing them all.
    """
    batch = batch.select(list(key))
    if batch.num_rows <= _DIRECT_ROWS_MAX or any(_mostly_distinct(column) for column in batch.columns):
        return None, batch
    codes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        encoded = column.dictionary_encode(null_encoding="encode")
        pairs = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
        # Numbered anew, so that the next product cannot overflow.
        codes = pairs if len(key) == 1 else pa.array(pairs).dictionary_encode().indices.to_numpy()
    rows = np.empty(codes.max() + 1, np.int64)
    rows[codes] = np.arange(len(codes))
    return codes, batch.take(rows)


def _mostly_distinct(column: ArrowArray) -> bool:
    sample = column.slice(0, len(column) // 4)
    return len(sample.unique()) > len(sample) // 2


def _text(column: ArrowArray) -> ArrowArray:
    """The plain text of each value, as bytes."""
    if pa.types.is_binary(column.type):
        return column
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if pa.types.is_decimal(column.type) and column.type.scale > 6:
        # Arrow writes 0.0000001 as 1E-7.
        values = column.to_numpy(zero_copy_only=False).tolist()
        return pa.array([None if value is None else f"{value:f}".encode() for value in values], pa.binary())
    return column.cast(pa.string()).cast(pa.binary())


def _netstring(text: ArrowArray) -> ArrowArray:
    length = pc.binary_length(text).cast(pa.string()).cast(pa.binary())
    return _joined([length, pa.scalar(b":"), text, pa.scalar(b",")]).fill_null(b"-,")


def _joined(parts: list[Any]) -> ArrowArray:
    return pc.binary_join_element_wise(*parts, pa.scalar(b""))


def _murmur2_each(keys: ArrowArray) -> npt.NDArray[np.uint32]:
    """murmur2 of each element of a binary array, unsigned; of a null, that of no bytes."""
    keys = keys.fill_null(b"")
    if len(keys) <= _SCALAR_ROWS_MAX:
        return np.array([murmur2(value) & _MASK for value in keys.to_pylist()], np.uint32)
    offsets = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + len(keys) + 1]
    data = np.frombuffer(keys.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    starts, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
    # The vectorized loop takes a step for every four bytes of the longest key.
    short = lengths <= _VECTOR_BYTES_MAX
    if short.all():
        return _murmur2_short(data, starts, lengths)
    hashed = np.empty(len(keys), np.uint32)
    hashed[short] = _murmur2_short(data, starts[short], lengths[short])
    for at in np.flatnonzero(~short):
        hashed[at] = murmur2(data[starts[at] : starts[at] + lengths[at]].tobytes()) & _MASK
    return hashed


def _murmur2_short(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32]
) -> npt.NDArray[np.uint32]:
    """All keys step by step, four bytes at a time, the longest first: those still going are a prefix."""
    # A word starts at every byte; padded, so that there is one at the end of the last key.
    # Copied, because picking from words that are not aligned is ten times as slow.
    padded = np.append(data, np.zeros(4, np.uint8))
    words = np.ndarray((len(data) + 1,), "<u4", padded, strides=(1,)).copy()
    counts = (lengths >> 2).astype(np.uint16)
    order = np.argsort(~counts, kind="stable")
    starts, counts, lengths = starts[order], counts[order], lengths[order]
    hashed = lengths.astype(np.uint32) ^ np.uint32(_SEED)
    multiplier = np.uint32(_M)
    for step in range(int(counts[0]) if len(counts) else 0):
        going = np.searchsorted(~counts, np.uint16(~np.uint16(step)))
        word = words[starts[:going] + 4 * step] * multiplier
        word = (word ^ (word >> np.uint32(24))) * multiplier
        hashed[:going] = hashed[:going] * multiplier ^ word
    rest = (lengths & 3).astype(np.uint32)
    tail = words[starts + (lengths & ~3)] & ((np.uint32(1) << rest * np.uint32(8)) - np.uint32(1))
    hashed = np.where(rest > 0, (hashed ^ tail) * multiplier, hashed)
    hashed = (hashed ^ (hashed >> np.uint32(13))) * multiplier
    unsorted = np.empty_like(hashed)
    unsorted[order] = hashed ^ (hashed >> np.uint32(15))
    return unsorted
