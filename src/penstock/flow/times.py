"""Event times of records, and the watermark each record met when it was appended.

**What late means.** Put all records of a query's topics in the order of their append times. The watermark a
record meets is the highest event time appended strictly before it, less the topic's lateness. That is a
property of the log, not of how a query cuts it into batches: a replay in other batches finds the same rows
late. Two things can only move it further: a declared watermark, which is in the log too, and idleness,
which is in the query's recorded offsets. Each batch therefore also has a floor: the watermark at its start.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.flow.offset import NEVER_US, STEP_US
from penstock.log.settings import TopicSettings

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def micros(column: pa.Array) -> Ints:
    """A timestamp column as microseconds; nulls are NEVER_US."""
    whole = column.cast(pa.timestamp("us", tz="UTC")).view(pa.int64())
    filled = whole.fill_null(NEVER_US) if whole.null_count else whole
    return np.asarray(filled)


def event_times(settings: TopicSettings, batch: pa.RecordBatch, clock: str) -> tuple[Ints, Bools]:
    """The event time of each record, and whether it is one that time can go by."""
    appended = micros(batch.column("_timestamp"))
    if clock != "event" or settings.event_time is None:
        return appended, np.ones(len(appended), np.bool_)
    times = micros(batch.column(settings.event_time))
    usable = times != NEVER_US
    if settings.sent_time:
        received = micros(batch.column(settings.received_time)) if settings.received_time else appended
        sent = micros(batch.column(settings.sent_time))
        offline = sent - times
        usable &= (sent != NEVER_US) & (received != NEVER_US)
        usable &= (offline >= 0) & (offline <= settings.offline_ms * 1_000)
        times = np.where(usable, times + (received - sent), times)
    usable &= times <= appended + settings.ahead_ms * 1_000
    return times, usable


@dataclass(frozen=True, slots=True)
class Steps:
    """The watermark as a staircase over append time: `values[i]` holds after `appended[i]`."""

    appended: Ints
    values: Ints
    first: int  # before the first step

    def met_by(self, appended: Ints) -> Ints:
        """The watermark that records with these append times met."""
        if not len(self.appended):
            return np.full(len(appended), self.first)
        index = np.searchsorted(self.appended, appended, side="left") - 1
        return np.where(index >= 0, self.values[np.maximum(index, 0)], self.first)


def steps_of(appended: Ints, times: Ints, *, lateness_us: int, clock_us: int | None) -> Steps:
    """The staircase that records with these times make, from where the clock stood before them."""
    first = NEVER_US if clock_us is None else clock_us // STEP_US * STEP_US - lateness_us
    if not len(appended):
        return Steps(appended, times, first)
    if np.any(appended[1:] < appended[:-1]):
        order = np.argsort(appended, kind="stable")
        appended, times = appended[order], times[order]
    highest = np.maximum.accumulate(times)
    values = np.where(highest == NEVER_US, NEVER_US, highest // STEP_US * STEP_US - lateness_us)
    values = np.maximum(values, first)
    last_of_its_time = np.append(appended[1:] != appended[:-1], True)
    appended, values = appended[last_of_its_time], values[last_of_its_time]
    rises = np.append(values[:1] > first, values[1:] > values[:-1])
    return Steps(appended[rises], values[rises], first)
