"""Orders with the name of who ordered, kept current when either changes.

    penstock run examples/order_names.py
    penstock view examples/order_names.py named_orders --follow

A user's new name changes all that user's orders, an order that moves to another user is one change, and what
is deleted on either side goes.
"""

from pyspark.sql import DataFrame

import penstock as ps

app = ps.App("order-names")

orders = app.table("open_orders", "order_id BIGINT, user_id BIGINT, amount DOUBLE", key="order_id")
users = app.table("users", "id BIGINT, name STRING", key="id")


@app.view(key="order_id")
def named_orders() -> DataFrame:
    return ps.join_tables(orders, users, on={"user_id": "id"})
