"""What `penstock topic` takes and tells about personal columns."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.errors import BadOption

if TYPE_CHECKING:
    from penstock.log.settings import TopicSettings


class OnForgotten(StrEnum):
    refuse = "refuse"
    blank = "blank"


Sealed = Annotated[
    list[str] | None,
    typer.Option("--personal", metavar="COL=SUBJECT", help="Seal COL under a key of who SUBJECT names."),
]
Comparable = Annotated[
    list[str] | None,
    typer.Option("--comparable", metavar="COL", help="Equal values of one subject may look the same."),
]
WhenForgotten = Annotated[
    OnForgotten,
    typer.Option(
        "--on-forgotten", help="Records of who was forgotten: refuse, or blank what is personal in them."
    ),
]


def columns(given: list[str]) -> dict[str, str]:
    """Out of `--personal email=customer_id`."""
    for each in given:
        if not all(each.partition("=")):
            raise BadOption(
                f"--personal {each} does not say whose it is.",
                hint="name the column with the subject's id too: --personal email=customer_id",
            )
    return {column: subject for column, _, subject in (each.partition("=") for each in given)}


def told(settings: TopicSettings) -> str:
    """In words; empty where nothing is personal."""
    return "; ".join(
        f"{each.column} of {each.subject}{', comparable' * each.comparable}" for each in settings.personal
    )
