"""Writes to a SQLite database at random, as an application would: sqlite_writer.py PATH SEED UNTIL."""

from __future__ import annotations

import random
import sqlite3
import sys
import time
from pathlib import Path


def write(db: sqlite3.Connection, dice: random.Random, own: int) -> None:
    """One transaction."""
    db.execute("BEGIN IMMEDIATE")
    for _ in range(dice.randint(1, 20)):
        key = dice.randrange(500)
        what = dice.random()
        if what < 0.35:
            db.execute(
                "INSERT OR REPLACE INTO users (id, name, email) VALUES (?, ?, ?)",
                (key, f"{own}-{dice.random()}", f"{dice.randrange(300)}@x"),
            )
        elif what < 0.7:
            db.execute("UPDATE users SET name = ? WHERE id = ?", (f"{own}:{dice.random()}", key))
        elif what < 0.85:
            db.execute("DELETE FROM users WHERE id = ?", (key,))
        else:
            db.execute("UPDATE OR IGNORE users SET id = ? WHERE id = ?", (dice.randrange(500), key))
        db.execute("INSERT OR REPLACE INTO lines VALUES (?, ?, ?)", (own, key, str(dice.random())))
    db.execute("ROLLBACK" if dice.random() < 0.2 else "COMMIT")


def main(path: str, seed: int, until: Path) -> None:
    dice = random.Random(seed)
    db = sqlite3.connect(path, timeout=60, isolation_level=None)
    while not until.exists():
        write(db, dice, seed)
        time.sleep(dice.random() / 100)
    db.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
