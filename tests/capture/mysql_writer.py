"""Writes to a MariaDB at random, as an application would: mysql_writer.py SOCKET SEED UNTIL.

A server that is killed is waited for.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

import pymysql


def write(cursor: Any, dice: random.Random, own: int) -> None:
    """One transaction."""
    cursor.execute("BEGIN")
    for _ in range(dice.randint(1, 12)):
        key, what = dice.randrange(400), dice.random()
        if what < 0.4:
            cursor.execute("REPLACE INTO users (id, name) VALUES (%s, %s)", (key, f"{own}-{dice.random()}"))
        elif what < 0.7:
            cursor.execute("UPDATE users SET name = %s WHERE id = %s", (f"{own}:{dice.random()}", key))
        elif what < 0.85:
            cursor.execute("DELETE FROM users WHERE id = %s", (key,))
        else:
            cursor.execute("UPDATE IGNORE users SET id = %s WHERE id = %s", (dice.randrange(400), key))
        cursor.execute("REPLACE INTO parts VALUES (%s, %s, %s)", (own, key, str(dice.random())))
    cursor.execute("ROLLBACK" if dice.random() < 0.2 else "COMMIT")


def main(socket: str, seed: int, until: Path) -> None:
    dice = random.Random(seed)
    while not until.exists():
        try:
            db = pymysql.connect(unix_socket=socket, user="root", database="shop", autocommit=True)
            while not until.exists():
                write(db.cursor(), dice, seed)
                time.sleep(dice.random() / 50)
            db.close()
        except pymysql.err.OperationalError:  # a deadlock, or a server that was killed
            time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
