"""A login in one country and a purchase in another within five minutes.

    penstock run examples/foreign_purchase.py
    penstock consume suspicious_purchases --follow

Nobody travels that fast. The two topics are put in the order of their event times before the pattern is
looked for, so a purchase that arrives before its login is found as well.
"""

from pyspark.sql import DataFrame

import penstock as ps

app = ps.App("foreign-purchase")

logins = app.topic(
    "account_logins",
    "user_id BIGINT, country STRING, at TIMESTAMP",
    key="user_id",
    event_time="at",
    lateness="10 seconds",
)
purchases = app.topic(
    "purchases",
    "user_id BIGINT, country STRING, amount DOUBLE, at TIMESTAMP",
    key="user_id",
    event_time="at",
    lateness="10 seconds",
)

login, purchase = ps.step("login"), ps.step("purchase")


@app.stream(key="user_id")
def suspicious_purchases() -> DataFrame:
    """The login, and the first purchase in another country after it; `matched_at` is the purchase's time."""
    return (
        ps.pattern(by="user_id")
        .first("login", logins.stream())
        .then("purchase", purchases.stream(), where=purchase.country != login.country)
        .within("5 minutes")
        .emit(
            logged_in_at=login.at,
            logged_in_from=login.country,
            bought_from=purchase.country,
            amount=purchase.amount,
        )
    )
