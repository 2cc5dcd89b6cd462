"""The shop's own database, in SQLite: customers, products and wishes, changed while it is captured."""

from __future__ import annotations

import random
import sqlite3
import threading
from pathlib import Path

from penstock.cli.demo.world import CUSTOMERS, PRODUCTS
from penstock.log.log import Log

CAPTURE = "database"
_TABLES = {
    "customers": "SELECT customer_id, name, plan FROM customers",
    "products": "SELECT product_id, name, price FROM products",
    "wishes": "SELECT wish_id, customer_id, product_id FROM wishes",
}
_SCHEMA = """
CREATE TABLE customers (customer_id INTEGER PRIMARY KEY, name TEXT, plan TEXT);
CREATE TABLE products (product_id INTEGER PRIMARY KEY, name TEXT, price REAL);
CREATE TABLE wishes (wish_id INTEGER PRIMARY KEY, customer_id INTEGER, product_id INTEGER);
"""
_PLANS = ("free", "basic", "plus", "team")
_WISHES = 40


def create(path: Path) -> None:
    """As an application would have it before anybody captures it."""
    db = _connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.executescript(_SCHEMA)
    people = [(number, f"customer {number}", _PLANS[number % 2]) for number in range(CUSTOMERS)]
    db.executemany("INSERT INTO customers VALUES (?, ?, ?)", people)
    goods = [(number, name, 9.5 + 5 * number) for number, name in enumerate(PRODUCTS)]
    db.executemany("INSERT INTO products VALUES (?, ?, ?)", goods)
    wishes = [(number, number, number % len(PRODUCTS)) for number in range(_WISHES // 2)]
    db.executemany("INSERT INTO wishes VALUES (?, ?, ?)", wishes)
    db.close()


class Clerk:
    """Changes a row now and then. Of one thread."""

    def __init__(self, path: Path, seed: int) -> None:
        self._db, self._chance, self.changes = _connect(path), random.Random(seed), 0

    def change_something(self) -> None:
        what = self._chance.choice(("plan", "price", "wish", "no wish"))
        self.changes += 1
        if what == "plan":
            plan, who = self._chance.choice(_PLANS), self._chance.randrange(CUSTOMERS)
            self._db.execute("UPDATE customers SET plan = ? WHERE customer_id = ?", (plan, who))
        elif what == "price":
            price, which = round(self._chance.uniform(5, 60), 2), self._chance.randrange(len(PRODUCTS))
            self._db.execute("UPDATE products SET price = ? WHERE product_id = ?", (price, which))
        elif what == "wish":
            wish = (
                self._chance.randrange(_WISHES),
                self._chance.randrange(CUSTOMERS),
                self._chance.randrange(6),
            )
            self._db.execute("INSERT OR REPLACE INTO wishes VALUES (?, ?, ?)", wish)
        else:
            self._db.execute("DELETE FROM wishes WHERE wish_id = ?", (self._chance.randrange(_WISHES),))

    def close(self) -> None:
        self._db.close()


def is_captured(path: Path, log: Log) -> bool:
    """Capture what is left; whether the log then has the same rows, as it tells them itself."""
    from penstock.capture.engine import Capture
    from penstock.capture.sqlite_source import SQLiteSource

    last = Capture(log, CAPTURE, SQLiteSource(path, name=CAPTURE))
    last.run(threading.Event(), once=True)
    last.source.close()
    return all(_is_same(path, log, table) for table in _TABLES)


def _is_same(path: Path, log: Log, table: str) -> bool:
    db = _connect(path)
    try:
        found = db.execute(_TABLES[table])
        columns = [column[0] for column in found.description]
        rows = set(found)
    finally:
        db.close()
    stored = log.topic(f"{CAPTURE}.{table}").latest().values()
    return rows == {tuple(row[column] for column in columns) for row in stored}


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, timeout=30)
