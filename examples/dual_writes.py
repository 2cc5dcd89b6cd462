"""Two ways to lose an event that is written beside a database, and one that loses none.

    python examples/dual_writes.py

An order is a row in the shop's database, and others are told of it by an event. Written one after the other,
the two disagree sooner or later: a crash comes between them, or two clerks do it in different orders. With an
outbox, the event is a row in the same transaction; capture publishes it in the order of the commits.
"""

import contextlib
import sqlite3
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import penstock as ps

ORDERS = "CREATE TABLE orders (id INTEGER PRIMARY KEY, status TEXT)"


class Shop:
    """A database and a log, side by side."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "shop.db"
        self.app = ps.App("shop", home=folder / "log")
        self.events = self.app.topic("order_events", "order_id BIGINT, status STRING", key="order_id")
        self.capture = self.app.capture("shopdb", self.path)
        with self.connect() as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(ORDERS)
            ps.outbox(db).create()

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=30)

    def in_database(self) -> dict[int, str]:
        with self.connect() as db:
            return dict(db.execute("SELECT id, status FROM orders"))

    def in_log(self) -> dict[int, str]:
        """What somebody believes who has read every event."""
        return {row["order_id"]: row["status"] for row in self.events.rows()}

    def catch_up(self) -> None:
        """As `penstock capture run` does all the time."""
        capture = self.capture.open()
        capture.run(threading.Event(), once=True)
        capture.source.close()


def write_both(shop: Shop, status: str, *, between: Callable[[], None] = lambda: None) -> None:
    """The obvious way: the database, and then the log."""
    with shop.connect() as db:
        db.execute("INSERT OR REPLACE INTO orders VALUES (7, ?)", (status,))
    between()
    shop.events.append({"order_id": 7, "status": status})


def write_with_outbox(shop: Shop, status: str, *, between: Callable[[], None] = lambda: None) -> None:
    """Row and event in one transaction."""
    with shop.connect() as db:
        db.execute("INSERT OR REPLACE INTO orders VALUES (7, ?)", (status,))
        ps.outbox(db).publish(shop.events, {"order_id": 7, "status": status})
    between()


Write = Callable[..., None]


def crash_between(write: Write, shop: Shop) -> None:
    """The process dies after the first of the two writes."""

    def die() -> None:
        raise RuntimeError("the power went")

    write(shop, "paid")
    with contextlib.suppress(RuntimeError):
        write(shop, "shipped", between=die)


def race(write: Write, shop: Shop) -> None:
    """The first clerk is held up between the two writes, and a second one does both meanwhile."""
    first_is_half_done, second_is_done = threading.Event(), threading.Event()

    def held_up() -> None:
        first_is_half_done.set()
        second_is_done.wait()

    first = threading.Thread(target=write, args=(shop, "paid"), kwargs={"between": held_up})
    first.start()
    first_is_half_done.wait()
    write(shop, "cancelled")
    second_is_done.set()
    first.join()


def compared(write: Write, trouble: Callable[[Write, Shop], None]) -> tuple[dict[int, str], dict[int, str]]:
    """What the database says, and what the log says, after trouble."""
    with tempfile.TemporaryDirectory() as folder:
        shop = Shop(Path(folder))
        trouble(write, shop)
        shop.catch_up()
        found = shop.in_database(), shop.in_log()
        shop.app.close()
        return found


def main() -> None:
    for write in (write_both, write_with_outbox):
        for trouble in (crash_between, race):
            database, log = compared(write, trouble)
            verdict = "they agree" if database == log else "they DISAGREE"
            print(f"{write.__name__:18} {trouble.__name__:14} database {database}, log {log}: {verdict}")


if __name__ == "__main__":
    main()
