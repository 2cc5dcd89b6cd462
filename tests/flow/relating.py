"""An app that relates events to each other and to tables, to be killed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from tests.flow.kill_points import START

import penstock as ps

QUERIES = ("joined", "unpaid", "found", "known", "named")


def declare(home: Path) -> ps.App:
    app = ps.App("relating", home=home)
    options: dict[str, Any] = {"event_time": "at", "lateness": "2 seconds", "idle_after": "1 day"}
    orders = app.topic("orders", "id BIGINT, k STRING, text STRING, at TIMESTAMP", **options)
    paid = app.topic("paid", "k STRING, amount BIGINT, at TIMESTAMP", **options)
    saved = app.table("saved", "id STRING, query STRING", key="id")
    people = app.table("people", "k STRING, name STRING, at TIMESTAMP", key="k", **options)
    bills = app.table("bills", "id BIGINT, k STRING", key="id")

    @app.stream(idle_after="1 day")
    def joined() -> DataFrame:
        return ps.join_within(orders.stream(), paid.stream(), on="k", after=3, before=1, how="full")

    @app.stream(idle_after="1 day")
    def unpaid() -> DataFrame:
        asked = ps.pattern(by="k").first("order", orders.stream()).then_not("payment", paid.stream())
        return asked.within(3).after_match("no_skip").emit(order=ps.step("order").id)

    @app.stream(idle_after="1 day")
    def found() -> DataFrame:
        return ps.search(orders.stream(), queries=saved, fields=["text"])

    @app.stream(idle_after="1 day")
    def known() -> DataFrame:
        return ps.enrich(orders.stream(), people, on="k", missing="wait 2 seconds")

    @app.view(key="id")
    def named() -> DataFrame:
        return ps.join_tables(bills, people, on="k", how="left")

    return app


def feed(app: ps.App, numbers: range) -> None:
    """Two orders a second, most of them paid, a little out of order, some far too late."""
    for number in numbers:
        behind = 20.0 if number % 11 == 10 else (number * 37 % 15) / 10
        at, key = START + timedelta(seconds=number / 2 - behind), "abcde"[number % 5]
        text = f"{'red' if number % 2 else 'blue'} number {number % 7}"
        app.log.topic("orders").append({"id": number, "k": key, "text": text, "at": at})
        if number % 3:
            later = at + timedelta(seconds=number % 4)
            app.log.topic("paid").append({"k": key, "amount": number, "at": later})
        if number % 4 == 0:
            app.log.topic("people").append({"k": key, "name": f"n{number}", "at": at})
            app.log.topic("bills").append({"id": number % 16, "k": "abcde"[number // 4 % 5]})
        if number % 13 == 12:
            app.log.topic("people").delete({"k": key})
            app.log.topic("bills").delete({"id": number % 16})
        if number % 6 == 0:
            query = f"{'red' if number % 4 else 'blue'} {number % 7}" if number % 18 else "(red"
            app.log.topic("saved").append({"id": f"s{number % 4}", "query": query})


def feed_the_end(app: ps.App) -> None:
    app.log.topic("paid").append({"k": "z", "amount": 0, "at": START + timedelta(hours=1)})
