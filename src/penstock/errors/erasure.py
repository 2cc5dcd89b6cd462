"""What can go wrong with what is personal."""

from __future__ import annotations

from penstock.errors.roots import BadInput, BadRecord, PenstockError


class SubjectForgotten(BadRecord):
    """Something personal of a subject that was forgotten. Nothing of that append was stored."""

    def __init__(self, place: str, *, row: int | None = None, column: str | None = None) -> None:
        self.place = place
        where = "" if row is None else f"row {row}, "
        what = "" if column is None else f'column "{column}": '
        super().__init__(
            f"{where}{what}its subject was forgotten: nothing personal of it is stored any more.",
            row=row,
            column=column,
            hint="leave the record out, or its personal fields; who comes back gets a new id",
        )


class UnknownSubject(BadInput):
    def __init__(self, subject: str) -> None:
        self.subject = subject
        super().__init__(
            f'nothing personal was ever stored for subject "{subject}".',
            hint="name it as the subject column does; check that this is the home it was stored in",
        )


class SealBroken(PenstockError):
    """A personal value was not sealed for where it is, or its key was never here. It is not revealed."""

    def __init__(self, place: str, *, column: str, reason: str, at: tuple[int, int] | None = None) -> None:
        self.place, self.column, self.reason = place, column, reason
        self.partition = at[0] if at else None
        self.offset = at[1] if at else None
        where = f" partition {at[0]}, offset {at[1]}" if at else ""
        super().__init__(
            f'"{place}"{where}, column "{column}": {reason}; it is not revealed.',
            hint="look at it unrevealed; are these the keys that it was sealed with (keys=, PENSTOCK_KEYS)?",
        )
