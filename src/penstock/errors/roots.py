"""The errors from which whole families come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self


class PenstockError(Exception):
    """The root of the tree. `str(error)` is the message followed by its hint.

    One that comes in the middle of an append over several partitions says so in its message, and
    `stored_ranges` has the offsets of what is stored by then. (The atomic append stores all or nothing.)
    """

    stored_ranges: Mapping[int, tuple[int, int]] = {}

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nHint: {self.hint}" if self.hint else self.message

    def after_storing(self, stored: Mapping[int, tuple[int, int]]) -> Self:
        """The same error, telling what was stored before it."""
        if stored and not self.stored_ranges:
            listed = ", ".join(map(str, stored))
            self.message += f" Before that, a part of this append was stored in partition {listed}."
        self.stored_ranges = {**self.stored_ranges, **stored}
        return self


class BadInput(PenstockError):
    """What was asked cannot be done as asked."""


class BadRecord(BadInput):
    """One record of an append does not fit the schema. Nothing of that append was stored."""

    def __init__(
        self, message: str, *, row: int | None = None, column: str | None = None, hint: str = ""
    ) -> None:
        self.row, self.column = row, column
        super().__init__(message, hint=hint)


class Contended(PenstockError):
    """Somebody else has it at the moment. Nothing was changed, unless it says so; try again."""
