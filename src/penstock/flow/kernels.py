"""Aggregates over many row ranges of one array, vectorized: what the stateful operators compute with.

A range is [lo, hi), one per output row; ranges may overlap and be empty. What these functions keep:

- A result depends on the values of its range alone, not on what lies around it: a float sum adds up the
  same way wherever the range lies in the array, so a replay with other batch borders gives the same bits,
  and an error cannot grow over the life of a stream (as it would with running sums).
- The cost is (rows + ranges) x log(rows), however much the ranges overlap.
- Order is Spark's: NaN is greater than any number, text goes by code point.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Array: TypeAlias = Any  # pyarrow carries no types
Ints: TypeAlias = npt.NDArray[np.int64]
Numbers: TypeAlias = npt.NDArray[Any]

_BIGINT_MAX = 2**63 - 1
_DECIMAL_DIGITS = 80  # enough for the sum of 2**64 values of 38 digits, and a quotient of them


def without_nulls(values: Array, lo: Ints, hi: Ints) -> tuple[Array, Ints, Ints]:
    """The values that are there, and the same ranges over them."""
    if values.null_count == 0:
        return values, lo, hi
    valid = values.is_valid()
    before = np.concatenate([[0], np.cumsum(valid.to_numpy(zero_copy_only=False), dtype=np.int64)])
    return values.filter(valid), before[lo], before[hi]


def sums(values: Array, lo: Ints, hi: Ints) -> Numbers:
    """Exact for whole numbers and decimals; doubles are added in pairs. 0 for an empty range.

    Whole numbers that could leave 64 bits come back as Python integers, decimals as `Decimal`.
    """
    if pa.types.is_decimal(values.type):
        return _folded(np.array(values.to_pylist(), dtype=object), lo, hi, decimal.Decimal(0))
    numbers = values.to_numpy(zero_copy_only=False)
    if pa.types.is_floating(values.type):
        return _folded(numbers.astype(np.float64), lo, hi, 0.0)
    numbers = numbers.astype(np.int64)
    if len(numbers) * max(abs(int(numbers.min(initial=0))), int(numbers.max(initial=0))) > _BIGINT_MAX:
        return _folded(numbers.astype(object), lo, hi, 0)
    before = np.concatenate([[0], np.cumsum(numbers)])
    return np.asarray(before[hi] - before[lo])


def means(values: Array, lo: Ints, hi: Ints) -> Numbers:
    """What an empty range gets means nothing: the caller makes it null."""
    counts = np.maximum(hi - lo, 1)
    totals = sums(values, lo, hi)
    if totals.dtype == object:
        # A count has to be a Python integer to divide one exactly.
        with decimal.localcontext(prec=_DECIMAL_DIGITS):
            return np.array([total / int(count) for total, count in zip(totals, counts, strict=True)])
    return np.asarray(totals / counts)


def _folded(numbers: Numbers, lo: Ints, hi: Ints, zero: object) -> Numbers:
    """Each range as a sum of blocks of 1, 2, 4 … values, beginning at its first."""
    result = np.full(len(lo), zero, dtype=numbers.dtype)
    at, left, block = lo.copy(), hi - lo, numbers
    with decimal.localcontext(prec=_DECIMAL_DIGITS), np.errstate(all="ignore"):
        for size in _doubling(int(left.max(initial=0))):
            chosen = (left & size) != 0
            result[chosen] += block[at[chosen]]
            at[chosen] += size
            block = block[:-size] + block[size:]
    return result


def _doubling(end: int) -> list[int]:
    return [1 << bit for bit in range(end.bit_length())]


def smallest(values: Array, lo: Ints, hi: Ints) -> Array:
    """The minimum of each range; null where it is empty."""
    return _extreme(values, lo, hi, np.minimum)


def largest(values: Array, lo: Ints, hi: Ints) -> Array:
    return _extreme(values, lo, hi, np.maximum)


def _extreme(values: Array, lo: Ints, hi: Ints, pick: Callable[..., Any]) -> Array:
    """Two blocks of one size cover a range, one from each end; what lies in both does no harm."""
    order, block = _ranks(values)
    found, lengths = np.zeros(len(lo), dtype=np.int64), hi - lo
    for size in _doubling(int(lengths.max(initial=0))):
        chosen = (lengths >= size) & (lengths < 2 * size)
        found[chosen] = pick(block[lo[chosen]], block[hi[chosen] - size])
        block = pick(block[:-size], block[size:])
    return take_or_null(values, order, found, lengths > 0)


def _ranks(values: Array) -> tuple[Ints, Ints]:
    """The row of each rank, and the rank of each row."""
    order = np.asarray(pc.array_sort_indices(values)).astype(np.int64)
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(len(order))
    return order, ranks


def take_or_null(values: Array, rows: Ints, at: Ints, there: npt.NDArray[np.bool_]) -> Array:
    """`values[rows[at]]`, null where nothing is there (whatever `at` says)."""
    if not len(rows):
        return pa.nulls(len(at), values.type)
    chosen = rows[np.where(there, at, 0)]
    return values.take(pa.array(chosen, mask=~there))


def kth_smallest(values: Array, lo: Ints, hi: Ints, k: Ints) -> Array:
    """The value at place k (from 0) of each range in order; null where the range is empty."""
    order, ranks = _ranks(values)
    there = hi > lo
    return take_or_null(values, order, _Wavelet(ranks).kth(lo, np.where(there, hi, lo), k), there)


def distinct(values: Array, lo: Ints, hi: Ints) -> Ints:
    """How many different values each range has: those with no equal before them in the range."""
    if pa.types.is_floating(values.type):
        values = pc.add(values, pa.scalar(0, values.type))  # -0.0 is 0.0
    codes = np.asarray(pc.dictionary_encode(values).indices).astype(np.int64)
    order = np.argsort(codes, kind="stable")
    repeats = codes[order][1:] == codes[order][:-1]
    previous = np.zeros(len(codes), dtype=np.int64)  # the row after the last equal one, 0 for none
    previous[order[1:][repeats]] = order[:-1][repeats] + 1
    return _Wavelet(previous).count_up_to(lo, hi, lo)


class _Wavelet:
    """A wavelet matrix: rows sorted by one bit after another, which answers for many ranges at a time."""

    def __init__(self, numbers: Ints) -> None:
        self._bits = list(reversed(range(int(numbers.max(initial=0)).bit_length())))
        self._zeros_before: list[Ints] = []
        for bit in self._bits:
            zero = (numbers >> bit) & 1 == 0
            self._zeros_before.append(np.concatenate([[0], np.cumsum(zero, dtype=np.int64)]))
            numbers = np.concatenate([numbers[zero], numbers[~zero]])

    def kth(self, lo: Ints, hi: Ints, k: Ints) -> Ints:
        """The number at place k of each range; for an empty range, anything."""
        found = np.zeros(len(lo), dtype=np.int64)
        for bit, before in zip(self._bits, self._zeros_before, strict=True):
            zeros = before[hi] - before[lo]
            one = k >= zeros
            k = np.where(one, k - zeros, k)
            found |= one.astype(np.int64) << bit
            lo, hi = self._down(before, one, lo), self._down(before, one, hi)
        return found

    def count_up_to(self, lo: Ints, hi: Ints, most: Ints) -> Ints:
        """How many numbers of each range are at most `most`."""
        counted = np.zeros(len(lo), dtype=np.int64)
        beyond = most >= 1 << len(self._bits)  # more than any number here
        whole = hi - lo
        for bit, before in zip(self._bits, self._zeros_before, strict=True):
            one = (most >> bit) & 1 == 1
            counted += np.where(one, before[hi] - before[lo], 0)
            lo, hi = self._down(before, one, lo), self._down(before, one, hi)
        return np.where(beyond, whole, counted + hi - lo)

    @staticmethod
    def _down(before: Ints, one: npt.NDArray[np.bool_], at: Ints) -> Ints:
        return np.where(one, before[-1] + at - before[at], before[at])


def percentiles(values: Array, lo: Ints, hi: Ints, quantile: float) -> Array:
    """Between the two nearest values, in proportion: Spark's `percentile`, to the last bit."""
    doubles = values.cast(pa.float64(), safe=False)
    place = np.maximum(hi - lo - 1, 0) * quantile
    below, above = np.floor(place), np.ceil(place)
    lower = kth_smallest(doubles, lo, hi, below.astype(np.int64))
    if np.array_equal(below, above):
        return lower
    left = lower.to_numpy(zero_copy_only=False)
    right = kth_smallest(doubles, lo, hi, above.astype(np.int64)).to_numpy(zero_copy_only=False)
    with np.errstate(all="ignore"):
        between = (above - place) * left + (place - below) * right
    return pa.array(np.where((below == above) | (left == right), left, between), mask=hi <= lo)


def lists(values: Array, lo: Ints, hi: Ints) -> Array:
    """The values of each range, in their order."""
    lengths = hi - lo
    ends = np.cumsum(lengths, dtype=np.int64)
    rows = np.arange(int(lengths.sum()), dtype=np.int64) + np.repeat(lo - (ends - lengths), lengths)
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())  # raises beyond 2**31 values
    return pa.ListArray.from_arrays(offsets, values.take(pa.array(rows)))
