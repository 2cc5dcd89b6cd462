"""A shop: what `penstock demo` runs, one definition for each thing that streams are for.

It is an app like any other. To make it one of your own, copy this file and take what you need:

    penstock run shop.py
    penstock serve shop.py

Its application database is a SQLite file under the app's home, captured while it changes. Times are short,
so that one sees windows close while one watches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import penstock as ps
from penstock.sourcing import Aggregate, applies, command

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

app = ps.App(
    "shop",
    # A dozen small queries on a small machine: what compiles fast and stays small beats what is fastest.
    spark_settings={
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": (
            "-Xss8m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
        ),
        "spark.sql.shuffle.partitions": "1",  # they keep the cores busy side by side
    },
)

LATENESS = "2 seconds"  # how far events may come out of order and still count

# ---- what happens in the shop: streams of events --------------------------------------------------

page_views = app.topic(
    "page_views",
    "producer INT, number BIGINT, user_id BIGINT NOT NULL, page STRING, at TIMESTAMP",
    key="user_id", event_time="at", lateness=LATENESS, partitions=4,
    doc="Who looks at which page. One view in a thousand comes 20 seconds late.",
)  # fmt: skip
requests = app.topic(
    "requests", "endpoint STRING, took_ms DOUBLE, at TIMESTAMP",
    key="endpoint", event_time="at", lateness=LATENESS,
    doc="How long each answer of the shop's servers took.",
)  # fmt: skip
impressions = app.topic(
    "impressions", "impression_id BIGINT, ad STRING, user_id BIGINT, shown_at TIMESTAMP",
    key="ad", event_time="shown_at", lateness=LATENESS,
    doc="Which ad was shown to whom.",
)  # fmt: skip
clicks = app.topic(
    "clicks", "ad STRING, user_id BIGINT, clicked_at TIMESTAMP",
    key="ad", event_time="clicked_at", lateness=LATENESS,
    doc="Clicks on ads. A click may arrive before its impression.",
)  # fmt: skip
searches = app.topic(
    "searches", "user_id BIGINT, query STRING, searched_at TIMESTAMP",
    key="user_id", event_time="searched_at", lateness=LATENESS,
    doc="What customers search for.",
)  # fmt: skip
result_clicks = app.topic(
    "result_clicks", "user_id BIGINT, query STRING, product STRING, found_at TIMESTAMP",
    key="user_id", event_time="found_at", lateness=LATENESS,
    doc="Which result of a search was clicked on.",
)  # fmt: skip
imported = app.topic(
    "imported", "line BIGINT, text STRING",
    doc="Lines of a file, ten at a time with the place in it. Some are sent twice, and are here once.",
)  # fmt: skip
logins = app.topic(
    "logins", "user_id BIGINT, ok BOOLEAN, country STRING, at TIMESTAMP",
    key="user_id", event_time="at", lateness=LATENESS,
    doc="Logins, those that failed too. A thief is among them, who guesses passwords.",
)  # fmt: skip
purchases = app.topic(
    "purchases", "purchase_id STRING, user_id BIGINT, country STRING, amount DOUBLE, at TIMESTAMP",
    key="user_id", event_time="at", lateness=LATENESS,
    doc="Purchases. A client that saw no answer sends its purchase again, so some are here twice.",
)  # fmt: skip
taps = app.topic(
    "taps", "device STRING, screen STRING, occurred_at TIMESTAMP, sent_at TIMESTAMP",
    key="device", event_time=ps.corrected_time("occurred_at", "sent_at"), lateness=LATENESS,
    doc="Taps on phones whose clocks are minutes and hours off; one phone drives through tunnels.",
)  # fmt: skip
reviews = app.topic(
    "reviews", "product STRING, text STRING, stars INT, at TIMESTAMP",
    event_time="at", lateness=LATENESS, doc="What customers write about products.",
)  # fmt: skip
saved_searches = app.table(
    "saved_searches", "owner STRING, query STRING", key="owner",
    doc="Searches over reviews that people saved. They change meanwhile, and bob's cannot be read.",
)  # fmt: skip

# ---- work to hand out and forget -------------------------------------------------------------------

MAIL_TRIES = 3

mails = app.queue(
    "mails", max_attempts=MAIL_TRIES,
    doc="Mails to send once and forget. Some have no address: after three tries they are put aside as dead.",
)  # fmt: skip

# ---- the application's database, captured: its tables are tables here -------------------------------

database = app.capture("database", app.home / "shop.db")
customers, products, wishes = (database.table(name) for name in ("customers", "products", "wishes"))

# ---- carts: what happened to each is recorded for ever, and what is in it follows from that ---------


@dataclass(frozen=True)
class Added:
    product: str


@dataclass(frozen=True)
class CheckedOut:
    paid: float


@dataclass
class Cart(Aggregate):
    """A cart: commands are refused or become events, and the events are a topic."""

    products: list[str] = field(default_factory=list)
    is_open: bool = True

    @command
    def add(self, product: str) -> Added:
        if not self.is_open:
            raise ps.CommandRefused(f'cart "{self.id}" is checked out.', hint="begin a new one")
        return Added(product)

    @command
    def check_out(self, paid: float) -> CheckedOut:
        if not (self.is_open and self.products):
            raise ps.CommandRefused(f'cart "{self.id}" cannot be checked out.', hint="put something in")
        return CheckedOut(paid)

    @applies
    def _added(self, event: Added) -> None:
        self.products.append(event.product)

    @applies
    def _checked_out(self, _event: CheckedOut) -> None:
        self.is_open = False


carts = app.aggregates("carts", Cart, lateness=LATENESS)


# ---- windows ----------------------------------------------------------------------------------------


@app.view(key=["page", "window"])
def views_per_page() -> DataFrame:
    """Page views in windows of five seconds, side by side (tumbling). What comes too late is kept aside."""
    return ps.aggregate(page_views.stream(), by="page", window=ps.tumbling("5 seconds"), views=ps.count())


@app.view(key=["endpoint", "window"])
def response_times() -> DataFrame:
    """Percentiles of response times: each window has 20 seconds, and one begins every 5 (hopping)."""
    return ps.aggregate(
        requests.stream(),
        by="endpoint",
        window=ps.hopping("20 seconds", "5 seconds"),
        requests=ps.count(),
        p50_ms=ps.percentile("took_ms", 0.5),
        p99_ms=ps.percentile("took_ms", 0.99),
    )


@app.stream(key="user_id")
def spent_lately() -> DataFrame:
    """For each purchase, what its customer has spent in the minute up to it (sliding)."""
    return ps.aggregate(
        unique_purchases.stream(), by="user_id", window=ps.sliding("1 minute"),
        times=ps.count(), spent=ps.sum("amount"),
    )  # fmt: skip


@app.view(key=["user_id", "window"])
def visits() -> DataFrame:
    """Visits: a customer's page views belong together until there is none for three seconds (session)."""
    return ps.aggregate(page_views.stream(), by="user_id", window=ps.session("3 seconds"), pages=ps.count())


@app.view(key=["screen", "window"])
def taps_per_screen() -> DataFrame:
    """Taps on phones with wrong clocks, put right by three timestamps. A phone that was in a tunnel sends its
    taps late: their windows are opened again and corrected, and say how often (revision)."""
    return ps.aggregate(
        taps.stream(), by="screen", window=ps.tumbling("5 seconds"),
        late="correct", correct_for="1 minute", taps=ps.count(),
    )  # fmt: skip


# ---- duplicates ---------------------------------------------------------------------------------------


@app.stream(key="user_id")
def unique_purchases() -> DataFrame:
    """A client that saw no answer sends its purchase again: here each purchase is once."""
    return ps.deduplicate(purchases.stream(), id="purchase_id", within="30 seconds")


# ---- streams that meet ----------------------------------------------------------------------------------


@app.stream(key="ad")
def ad_outcomes() -> DataFrame:
    """Each ad that was shown with the click on it within five seconds, or alone when nobody clicked."""
    return ps.join_within(
        impressions.stream(), clicks.stream(), on=["ad", "user_id"], after="5 seconds", how="left"
    )


@app.view(key="ad")
def click_through() -> DataFrame:
    """Which share of those who saw an ad clicked on it."""
    counted = ps.aggregate(ad_outcomes.stream(), by="ad", shown=ps.count(), clicked=ps.count("clicked_at"))
    return counted.selectExpr("ad", "shown", "clicked", "clicked / shown AS rate")


@app.stream(key="user_id")
def searches_with_clicks() -> DataFrame:
    """Each search with the result that was clicked on; without a product, a search that led nowhere."""
    return ps.join_within(
        searches.stream(), result_clicks.stream(), on=["user_id", "query"], after="5 seconds", how="left"
    )


# ---- streams and tables -------------------------------------------------------------------------------


@app.stream(key="user_id")
def purchases_with_plan() -> DataFrame:
    """Each purchase with the plan that the customer had when it happened, not the one of today."""
    return ps.enrich(unique_purchases.stream(), customers, on={"user_id": "customer_id"})


@app.view(key="wish_id")
def wish_lists() -> DataFrame:
    """What customers wish for, at today's price: two tables of the database, joined and kept current."""
    return ps.join_tables(wishes, products, on="product_id")


# ---- patterns and standing searches -------------------------------------------------------------------

begun, done = ps.step("begun"), ps.step("done")
failure, success = ps.step("failure"), ps.step("success")
login, purchase = ps.step("login"), ps.step("purchase")


@app.stream(key="aggregate_id")
def carts_left() -> DataFrame:
    """Carts that something was put into, and that nobody has checked out within ten seconds."""
    events = carts.stream()
    return (
        ps.pattern(by="aggregate_id")
        .first("begun", events, where=(begun.event == "Added") & (begun.version == 1))
        .then_not("done", events, where=done.event == "CheckedOut")
        .within("10 seconds")
        .emit(since=begun.at, product=begun.product)
    )


@app.stream(key="user_id")
def break_ins() -> DataFrame:
    """Three or more failed logins, then one that succeeds, within half a minute: a password was guessed."""
    tried = logins.stream()
    return (
        ps.pattern(by="user_id")
        .first("failure", tried, where=~failure.ok)
        .at_least(3)
        .then("success", tried, where=success.ok)
        .within("30 seconds")
        .emit(since=failure.first().at, failures=failure.count(), country=success.country)
    )


@app.stream(key="user_id")
def purchases_from_abroad() -> DataFrame:
    """A login in one country and a purchase in another within half a minute: nobody travels that fast."""
    return (
        ps.pattern(by="user_id")
        .first("login", logins.stream(), where=login.ok)
        .then("purchase", purchases.stream(), where=purchase.country != login.country)
        .within("30 seconds")
        .emit(logged_in_from=login.country, bought_from=purchase.country, amount=purchase.amount)
    )


@app.stream()
def review_alerts() -> DataFrame:
    """Reviews that fit a search somebody has saved. The searches change meanwhile; one cannot be read."""
    return ps.search(reviews.stream(), queries=saved_searches, fields=["product", "text", "stars"])
