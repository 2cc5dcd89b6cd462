"""Definitions that must be refused, with a reason and the place they were written in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import SparkSession

import penstock as ps
from penstock.app.graph import Graph

Refusals = Mapping[str, tuple[Callable[[], Any], str]]


def not_refused(app: ps.App, spark: SparkSession, refusals: Refusals, file: str) -> dict[str, str]:
    """Those that are taken, or refused for another reason or at another place."""
    other = {}
    for name, (function, reason) in refusals.items():
        app.definitions.clear()
        app.stream(name="wrong")(function)
        try:
            Graph(app, spark).analyse()
            other[name] = "it was taken"
        except ps.BadDefinition as refused:
            if reason not in str(refused) or refused.file != file:
                other[name] = str(refused)
    return other
