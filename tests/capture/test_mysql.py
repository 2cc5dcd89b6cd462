"""MariaDB as a source: whatever anybody writes to it, the log has the same rows."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pymysql
import pytest
from tests.capture.mariadb_server import MariaDB, grant, throwaway
from tests.capture.world import caught_up, ops, rows_in_log, running
from tests.servers import free_port
from tests.waiting import wait_until

import penstock as ps
from penstock.capture import mysql_binlog
from penstock.capture.engine import Capture
from penstock.capture.mysql_source import MySQLSource

SHOP = (
    "CREATE TABLE users (id INT PRIMARY KEY, name VARCHAR(40), score DOUBLE)",
    "CREATE TABLE `lines` (order_id INT, line INT, item TEXT, PRIMARY KEY (line, order_id))",
    "CREATE TABLE notes (text TEXT)",
)


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDB]:
    with throwaway() as made:
        grant(made)
        yield made


@pytest.fixture
def home(in_memory: Path) -> Path:
    return in_memory / "home"


@pytest.fixture
def db(server: MariaDB) -> Iterator[Any]:
    """The database `shop`, as it is at the beginning of every test."""
    with closing(server.connect()) as made, made.cursor() as cursor:
        for statement in ("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop CHARSET utf8mb4", "USE shop"):
            cursor.execute(statement)
        run(cursor, *SHOP)
        yield cursor


def run(cursor: Any, *statements: str) -> None:
    for statement in statements:
        cursor.execute(statement)


def source(server: MariaDB, **options: Any) -> MySQLSource:
    return MySQLSource(server.url("shop"), name="shop", **options)


def rows_in(db: Any, statement: str) -> list[tuple[Any, ...]]:
    db.execute(statement)
    return sorted(db.fetchall(), key=repr)


def same(log: ps.Log, db: Any, table: str, columns: str = "*") -> None:
    assert rows_in_log(log, f"shop.{table}") == rows_in(db, f"SELECT {columns} FROM `{table}`")


def test_rows_that_are_there_and_every_change_after(log: ps.Log, server: MariaDB, db: Any) -> None:
    run(db, "INSERT INTO users VALUES (1, 'Änn', 1.5), (2, 'Bob', NULL)")
    caught_up(log, "shop", source(server))
    same(log, db, "users")
    run(
        db,
        "INSERT INTO users VALUES (3, 'Cid', 0.1)",
        "UPDATE users SET name = 'Anna' WHERE id = 1",
        "UPDATE users SET id = 20 WHERE id = 2",
        "DELETE FROM users WHERE id = 3",
        "REPLACE INTO users VALUES (1, 'Ann again', 2)",
        "INSERT INTO `lines` VALUES (7, 1, 'tea'), (7, 2, 'milk')",
        "UPDATE `lines` SET item = 'oat milk' WHERE line = 2",
    )
    caught_up(log, "shop", source(server))
    for table in ("users", "lines"):
        same(log, db, table)
    assert ops(log, "shop.users") == ["r", "r", "c", "u", "u", "d", "u"]
    assert ops(log, "shop.lines") == ["c", "c", "u"]
    assert log.topic("shop.lines").settings.key == ("line", "order_id")
    moved = list(log.topic("shop.users.changes").rows())[4]
    assert moved["before"] == {"id": 2, "name": "Bob", "score": None}
    assert moved["after"] == {"id": 20, "name": "Bob", "score": None}
    assert "shop.notes" not in log.topics()  # it has no key


def test_a_transaction_is_told_as_one(log: ps.Log, server: MariaDB, db: Any) -> None:
    caught_up(log, "shop", source(server))
    run(
        db, "BEGIN", "INSERT INTO users VALUES (1, 'Ann', 1)", "INSERT INTO `lines` VALUES (1, 1, 'tea')",
        "DELETE FROM users", "COMMIT", "INSERT INTO users VALUES (2, 'Bob', 1)",
    )  # fmt: skip
    caught_up(log, "shop", source(server))
    told = list(log.topic("shop.users.changes").rows())
    (line,) = log.topic("shop.lines.changes").rows()
    assert [row["transaction_order"] for row in told] == [1, 3, 1]
    assert line["transaction_order"] == 2
    assert told[0]["transaction"] == told[1]["transaction"] == line["transaction"]
    assert told[2]["transaction"] != line["transaction"]
    positions = [told[0]["position"], line["position"], told[1]["position"], told[2]["position"]]
    assert sorted(set(positions)) == positions
    assert all(row["committed_at"].year >= 2024 for row in told)


def test_what_is_rolled_back_never_was(log: ps.Log, server: MariaDB, db: Any) -> None:
    caught_up(log, "shop", source(server))
    run(
        db, "BEGIN", "INSERT INTO users VALUES (1, 'no', 1)", "ROLLBACK",
        "BEGIN", "INSERT INTO users VALUES (2, 'yes', 1)", "SAVEPOINT s",
        "INSERT INTO users VALUES (3, 'no', 1)", "ROLLBACK TO s", "COMMIT",
    )  # fmt: skip
    caught_up(log, "shop", source(server))
    same(log, db, "users")
    assert ops(log, "shop.users") == ["c"]


def test_a_large_transaction_and_small_steps(log: ps.Log, server: MariaDB, db: Any) -> None:
    run(db, "INSERT INTO users SELECT seq, concat('old ', seq), seq / 7 FROM seq_1_to_2500")
    caught_up(log, "shop", source(server, step_rows=1_000))
    same(log, db, "users")
    run(db, "BEGIN", "INSERT INTO users SELECT seq, concat('n', seq), seq / 3 FROM seq_3001_to_53000",
        "DELETE FROM users WHERE id <= 2500", "COMMIT")  # fmt: skip
    caught_up(log, "shop", source(server, step_rows=1_000))
    same(log, db, "users")
    told = list(log.topic("shop.users.changes").rows())[2_500:]
    assert [row["transaction_order"] for row in told] == list(range(1, 52_501))
    assert len({row["transaction"] for row in told}) == 1


# ---- types ------------------------------------------------------------------------------------

WIDE = """CREATE TABLE wide (
    id BIGINT UNSIGNED PRIMARY KEY,
    t1 TINYINT, t1u TINYINT UNSIGNED, flag TINYINT(1), s2 SMALLINT, s2u SMALLINT UNSIGNED,
    m3 MEDIUMINT, m3u MEDIUMINT UNSIGNED, i4 INT, i4u INT UNSIGNED, b8 BIGINT, b8u BIGINT UNSIGNED,
    d1 DECIMAL(5, 2), d2 DECIMAL(38, 10), d3 DECIMAL(18, 0), d4 DECIMAL(9, 9), d5 DECIMAL(20, 9) UNSIGNED,
    f FLOAT, f2 FLOAT(7, 2), g DOUBLE, g2 DOUBLE(10, 3), bit1 BIT(1), bit12 BIT(12), bit64 BIT(64),
    c CHAR(5), v VARCHAR(30), v2 VARCHAR(300), tt TINYTEXT, tx TEXT, mt MEDIUMTEXT, lt LONGTEXT,
    l VARCHAR(40) CHARACTER SET latin1, u2 VARCHAR(40) CHARACTER SET ucs2, c2 CHAR(9) CHARACTER SET utf16,
    u4 TEXT CHARACTER SET utf32, cy VARCHAR(40) CHARACTER SET cp1251, e ENUM('one', 'zwei', 'drüe'),
    st SET('x', 'y', 'zé'), bi BINARY(6), bi300 BINARY(255), vb VARBINARY(20), bl BLOB, j JSON,
    u UUID, a6 INET6, a4 INET4, da DATE, dt DATETIME, dt3 DATETIME(3), dt6 DATETIME(6),
    ts TIMESTAMP NULL, ts1 TIMESTAMP(1) NULL, ts6 TIMESTAMP(6) NULL,
    ti TIME, ti2 TIME(2), ti3 TIME(3), ti6 TIME(6), y YEAR,
    hidden INT INVISIBLE DEFAULT 7, twice INT AS (i4 * 2) VIRTUAL, thrice INT AS (s2 * 3) STORED
) CHARSET utf8mb4"""
_ALL_LATIN1 = "CONVERT(x'" + bytes(range(0x80, 0xA0)).hex() + "' USING latin1)"
_ALL_CYRILLIC = "CONVERT(x'" + bytes(set(range(0x80, 0x100)) - {0x98})[:40].hex() + "' USING cp1251)"
WIDE_ROWS = (
    f"""(18446744073709551615, -128, 255, 2, -32768, 65535, -8388608, 16777215, -2147483648, 4294967295,
    -9223372036854775808, 18446744073709551615, -999.99, -1234567890123456789012345678.0123456789,
    -999999999999999999, -0.000000001, 12345678901.123456789, 1.1, 12345.67, 0.1, 1234567.891, b'1',
    b'101010101010', ~0, 'ab  ', 'tråd  ', repeat('ü', 300), 'tiny', repeat('text ', 300), 'medium', 'long',
    {_ALL_LATIN1}, 'жš', '漢字', '𝄞 clef', {_ALL_CYRILLIC}, 'drüe', 'zé,x', x'0102', x'ff00', x'00ff00',
    x'0000', '{{"a": [1, "é"], "b": 1.50}}', '01234567-89ab-4def-8123-456789abcd00', '2001:db8::',
    '10.0.0.0', '9999-12-31', '9999-12-31 23:59:59', '2024-02-29 01:02:03.045',
    '0001-01-01 00:00:00.000001', '2038-01-19 03:14:07', '1970-01-01 00:00:01.9',
    '2024-06-01 12:00:00.123456', '-838:59:59', '-00:00:00.05', '123:04:05.678', '-01:02:03.000001', 2155)""",
    """(2, 127, 0, 1, 32767, 0, 8388607, 0, 1073741823, 0, 9223372036854775807, 0, 0.01, 0.0000000001,
    999999999999999999, 0.999999999, 0, 16777217, -0.01, -1.7976931348623157e308, 0.001, b'0', b'0', b'1', '',
    '', '', '', '', '', '', '', '', '', '', '', 'one', '', x'', x'', x'', x'', '[]',
    '00000000-0000-0000-0000-000000000000', '::ffff:192.0.2.1', '0.0.0.0', '1000-01-01',
    '1000-01-01 00:00:00', '1000-01-01 00:00:00.001', '1969-12-31 23:59:59.999999', '1970-01-01 00:00:01',
    '2000-01-01 00:00:00.1', '2000-01-01 00:00:00', '00:00:00', '838:59:59', '-00:00:01.5', '00:00:00.1',
    0)""",
    "(3" + ", NULL" * 57 + ")",
    "(4" + ", NULL" * 43 + ", '::1.2.3.4'" + ", NULL" * 13 + ")",
    "(5"
    + ", NULL" * 42
    + ", 'ffffffff-ffff-7fff-ffff-ffffffffffff', '::12', '255.255.255.255'"
    + ", NULL" * 12
    + ")",
)


def _insert(db: Any, rows: tuple[str, ...]) -> None:
    db.execute("SET time_zone = '+00:00'")
    for row in rows:
        db.execute(f"INSERT INTO wide VALUES {row.removesuffix(')')}, DEFAULT, DEFAULT)")


def test_every_type_is_the_same_in_a_snapshot_and_in_the_binlog(
    log: ps.Log, server: MariaDB, db: Any
) -> None:
    run(db, WIDE)
    caught_up(log, "shop", source(server))
    _insert(db, WIDE_ROWS)
    run(db, "UPDATE wide SET hidden = 8, i4 = 5 WHERE id = 3", "DELETE FROM wide WHERE id = 4")
    _insert(db, WIDE_ROWS[3:4])
    capture = caught_up(log, "shop", source(server))
    streamed = rows_in_log(log, "shop.wide")
    assert len(streamed) == 5
    capture.request_snapshot(["wide"])
    caught_up(log, "shop", source(server))
    assert rows_in_log(log, "shop.wide") == streamed
    assert ops(log, "shop.wide") == [*"cccccudc", *"rrrrr"]
    told = [row["schema_version"] for row in log.topic("shop.schemas").rows() if row["table"] == "wide"]
    assert told == [1]
    changes = list(log.topic("shop.wide.changes").rows())
    updated, gone = changes[5], changes[6]
    assert updated["before"] == changes[2]["after"]
    assert (updated["before"]["twice"], updated["after"]["twice"]) == (None, 10)
    assert gone["before"] == changes[3]["after"]
    first = changes[0]["after"]
    assert str(first["b8u"]) == "18446744073709551615"
    assert str(first["d2"]) == "-1234567890123456789012345678.0123456789"
    assert (first["bi"], first["c"], first["v"]) == (b"\1\2\0\0\0\0", "ab", "tråd  ")
    assert (first["e"], first["st"], first["ti"], first["ti2"]) == (
        "drüe",
        "x,zé",
        "-838:59:59",
        "-00:00:00.05",
    )
    assert (first["bit1"], first["bit12"], first["y"], first["a4"]) == (True, 0xAAA, 2155, "10.0.0.0")
    assert first["ts1"] == datetime(1970, 1, 1, 0, 0, 1, 900_000, UTC)
    assert first["dt6"] == datetime(1, 1, 1, 0, 0, 0, 1)
    assert first["l"][:2] == "€\x81"


def test_dates_that_are_none_are_refused_or_null(log: ps.Log, server: MariaDB, db: Any) -> None:
    run(db, "CREATE TABLE days (id INT PRIMARY KEY, da DATE, dt DATETIME(3), ts TIMESTAMP NULL)")
    caught_up(log, "shop", source(server))
    run(db, "INSERT INTO days VALUES (1, '0000-00-00', '2024-00-10', '0000-00-00')",
        "INSERT INTO days VALUES (2, '2024-01-02', '2024-01-02 03:04:05.006', NULL)")  # fmt: skip
    with pytest.raises(ps.BadInput, match=r'column "da" of "days" has .0000-00-00.') as refused:
        caught_up(log, "shop", source(server))
    assert "?zero_dates=null" in str(refused.value)
    assert rows_in_log(log, "shop.days") == []
    lenient = MySQLSource(f"{server.url('shop')}?zero_dates=null", name="shop")
    capture = caught_up(log, "shop", lenient)
    told = rows_in_log(log, "shop.days")
    assert told[0] == (1, None, None, None)
    assert told[1][2] == datetime(2024, 1, 2, 3, 4, 5, 6_000)
    capture.request_snapshot(["days"])
    caught_up(log, "shop", lenient)
    assert rows_in_log(log, "shop.days") == told
    with pytest.raises(ps.BadInput, match="which is no date"):
        caught_up(log, "other", source(server))


def test_text_that_its_character_set_has_not(log: ps.Log, server: MariaDB, db: Any) -> None:
    run(db, "CREATE TABLE texts (id INT PRIMARY KEY, cy VARCHAR(9) CHARACTER SET cp1251)")
    caught_up(log, "shop", source(server))
    run(db, "INSERT INTO texts VALUES (1, _cp1251 x'98')")
    with pytest.raises(ps.BadInput, match='"texts" has bytes that its character set has not'):
        caught_up(log, "shop", source(server))


# ---- forms ------------------------------------------------------------------------------------


def test_tables_that_change_their_form(log: ps.Log, server: MariaDB, db: Any) -> None:
    run(db, "INSERT INTO users VALUES (1, 'Ann', 1), (2, 'Bob', 2)")
    with running(log, "shop", source(server)) as capture:
        wait_until(lambda: capture.progress().changes == 2, what="the rows")
        run(db, "ALTER TABLE users ADD COLUMN city VARCHAR(20) DEFAULT 'Bern' AFTER id",
            "INSERT INTO users VALUES (3, 'Rome', 'Cid', 3)")  # fmt: skip
        wait_until(lambda: _column(log, "users", "city") == ["Bern", "Bern", "Rome"], what="the column")
        run(
            db,
            "ALTER TABLE users CHANGE city town VARCHAR(30)",
            "UPDATE users SET town = 'Oslo' WHERE id = 2",
        )
        wait_until(lambda: _column(log, "users", "town") == ["Bern", "Oslo", "Rome"], what="the new name")
        run(db, "CREATE TABLE added (id INT PRIMARY KEY, x INT)", "INSERT INTO added VALUES (5, 6)",
            "CREATE TABLE copied (PRIMARY KEY (id)) AS SELECT id FROM users")  # fmt: skip
        wait_until(lambda: _has(log, "added", 1) and _has(log, "copied", 3), what="the new tables")
        run(db, "TRUNCATE TABLE copied", "INSERT INTO copied VALUES (9)", "DROP TABLE added")
        wait_until(lambda: _has(log, "added", 0) and _has(log, "copied", 1), what="what went")
        before = capture.progress().changes
        run(
            db,
            "ALTER TABLE users ADD INDEX named (name(10), score)",
            "INSERT INTO users VALUES (4, 'Rom', 'D', 4)",
        )
        wait_until(lambda: _has(log, "users", 4), what="one more")
        assert capture.progress().changes == before + 1  # an index is no reason to read all again
    assert ops(log, "shop.copied") == [*"ccc", "t", "c"]
    assert ops(log, "shop.added") == ["c", "t"]
    told = [row["schema_version"] for row in log.topic("shop.schemas").rows() if row["table"] == "users"]
    assert told == [1, 2, 3]


def _column(log: ps.Log, table: str, column: str) -> list[Any]:
    topic = log.topic(f"shop.{table}")
    if column not in topic.schema.arrow.names:
        return []
    at = topic.schema.arrow.names.index(column)
    return [row[at] for row in rows_in_log(log, f"shop.{table}")]


def _has(log: ps.Log, table: str, rows: int) -> bool:
    return f"shop.{table}" in log.topics() and len(rows_in_log(log, f"shop.{table}")) == rows


def test_what_happened_to_tables_while_nobody_looked(log: ps.Log, server: MariaDB, db: Any) -> None:
    run(db, "CREATE TABLE dropped (id INT PRIMARY KEY)", "INSERT INTO dropped VALUES (1), (2)",
        "CREATE TABLE renamed (id INT PRIMARY KEY)", "INSERT INTO renamed VALUES (3)",
        "INSERT INTO users VALUES (1, 'Ann', 1), (2, 'Bob', 2)")  # fmt: skip
    caught_up(log, "shop", source(server))
    run(
        db,
        "INSERT INTO users VALUES (3, 'Cid', 3)",
        "DROP TABLE dropped",
        "ALTER TABLE renamed RENAME TO named",
        "INSERT INTO named VALUES (4)",
        # as online schema changes do it
        "CREATE TABLE _users_new (id INT PRIMARY KEY, name VARCHAR(50), score DOUBLE, extra INT)",
        "INSERT INTO _users_new SELECT id, name, score, 7 FROM users WHERE id <> 2",
        "/* swap */ RENAME TABLE shop.users TO _users_old, `shop`.`_users_new` TO `users`",
        "DELETE FROM users WHERE id = 3",
        "INSERT INTO users VALUES (5, 'Eve', 5, 8)",
    )
    caught_up(log, "shop", source(server))
    for table in ("users", "_users_old", "named"):
        same(log, db, table)
    for table in ("dropped", "renamed", "_users_new"):
        assert rows_in_log(log, f"shop.{table}") == []
    assert "t" not in ops(log, "shop.users")


def test_another_key_is_refused(log: ps.Log, server: MariaDB, db: Any) -> None:
    run(db, "INSERT INTO users VALUES (1, 'Ann', 1)")
    caught_up(log, "shop", source(server))
    run(db, "ALTER TABLE users DROP PRIMARY KEY, ADD PRIMARY KEY (id, name)")
    with pytest.raises(ps.BadOption, match='"users" has another key than what is stored'):
        caught_up(log, "shop", source(server))


# ---- snapshots --------------------------------------------------------------------------------


def test_a_snapshot_that_was_asked_for(log: ps.Log, server: MariaDB, db: Any) -> None:
    run(
        db,
        "INSERT INTO users VALUES (1, 'Ann', 1), (2, 'Bob', 2)",
        "INSERT INTO `lines` VALUES (1, 1, 'tea')",
    )
    capture = caught_up(log, "shop", source(server))
    capture.request_snapshot(["users"])
    run(db, "SET sql_log_bin = 0", "DELETE FROM users WHERE id = 1", "SET sql_log_bin = 1",
        "INSERT INTO users VALUES (3, 'Cid', 3)")  # fmt: skip
    caught_up(log, "shop", source(server))
    same(log, db, "users")
    assert ops(log, "shop.users") == ["r", "r", "c", "r", "r", "d"]
    assert ops(log, "shop.lines") == ["r"]


def test_an_interrupted_snapshot_begins_again(log: ps.Log, server: MariaDB, db: Any) -> None:
    run(db, "INSERT INTO users SELECT seq, concat('u', seq), seq FROM seq_1_to_1000")
    interrupted = source(server, step_rows=100)
    producer = Capture(log, "shop", interrupted)
    stop = StopAfter(4)
    producer.run(stop)  # type: ignore[arg-type]
    assert 0 < len(rows_in_log(log, "shop.users")) < 1_000
    assert producer.status()["phase"] == "snapshot"
    run(db, "DELETE FROM users WHERE id <= 500", "UPDATE users SET name = 'new' WHERE id = 900",
        "INSERT INTO users VALUES (2000, 'Zoe', 0)")  # fmt: skip
    caught_up(log, "shop", source(server, step_rows=100))
    same(log, db, "users")
    assert producer.status()["phase"] == "following"


class StopAfter:
    """An event that is set once it was asked so often."""

    def __init__(self, asked: int) -> None:
        self._left = asked

    def is_set(self) -> bool:
        self._left -= 1
        return self._left < 0


def test_snapshots_under_writers_are_the_same(log: ps.Log, server: MariaDB, db: Any) -> None:
    run(db, "INSERT INTO users SELECT seq, concat('u', seq), seq FROM seq_1_to_3000")
    enough = threading.Event()
    writers = [threading.Thread(target=write, args=(server, seed, enough)) for seed in (1, 2, 3)]
    for writer in writers:
        writer.start()
    try:
        with running(log, "shop", source(server, step_rows=500)) as capture:
            wait_until(lambda: _read_so_far(log) > 0, what="the first snapshot")
            for _ in range(4):
                before = _read_so_far(log)
                capture.request_snapshot(["users"])
                wait_until(lambda: _read_so_far(log) > before + 500, what="a snapshot")  # noqa: B023
    finally:
        enough.set()
        for writer in writers:
            writer.join()
    caught_up(log, "shop", source(server))
    same(log, db, "users")
    told = [row["position"] for row in log.topic("shop.users.changes").rows() if row["op"] in "cud"]
    streamed = [position for position in told if "/" in position]
    assert len(streamed) == len(set(streamed)) > 100
    assert streamed == sorted(streamed)


def _read_so_far(log: ps.Log) -> int:
    return ops(log, "shop.users").count("r") if "shop.users.changes" in log.topics() else 0


def write(server: MariaDB, seed: int, enough: threading.Event) -> None:
    """Transactions at random, some of them rolled back."""
    dice = random.Random(seed)
    with closing(server.connect("shop")) as db, db.cursor() as cursor:
        while not enough.is_set():
            cursor.execute("BEGIN")
            for key in sorted(dice.sample(range(1, 3_000), dice.randint(1, 8))):
                with contextlib.suppress(pymysql.err.OperationalError):  # a deadlock
                    cursor.execute(_statement(dice, key, seed))
            cursor.execute("ROLLBACK" if dice.random() < 0.2 else "COMMIT")


def _statement(dice: random.Random, key: int, seed: int) -> str:
    if dice.random() < 0.3:
        return f"DELETE FROM users WHERE id = {key}"
    if dice.random() < 0.3:
        return f"UPDATE users SET name = '{seed}:{dice.random()}' WHERE id = {key}"
    return f"REPLACE INTO users VALUES ({key}, '{seed}-{dice.random()}', {dice.randrange(9)})"


# ---- what goes wrong --------------------------------------------------------------------------


def test_a_binlog_that_is_gone_stops_it_and_a_snapshot_goes_on(log: ps.Log, server: MariaDB, db: Any) -> None:
    run(db, "CREATE TABLE dropped (id INT PRIMARY KEY)", "INSERT INTO dropped VALUES (1)",
        "INSERT INTO users VALUES (1, 'Ann', 1), (2, 'Bob', 2)")  # fmt: skip
    capture = caught_up(log, "shop", source(server))
    run(db, "DELETE FROM users WHERE id = 1", "DROP TABLE dropped", "FLUSH BINARY LOGS")
    wait_until(lambda: _purged(db), what="the server to let go of what it has just sent")
    found = source(server).status(capture.progress().source)
    assert found["binlog_is_there"] is False
    with pytest.raises(ps.BadInput, match="Changes are missing") as refused:
        caught_up(log, "shop", source(server))
    assert "penstock capture resnapshot" in str(refused.value)
    capture.request_snapshot(["users"])
    with pytest.raises(ps.BadInput, match="Changes are missing"):
        caught_up(log, "shop", source(server))  # the other tables have lost changes too
    capture.request_snapshot(["*"])
    caught_up(log, "shop", source(server))
    same(log, db, "users")
    assert rows_in_log(log, "shop.dropped") == []
    assert source(server).status(capture.progress().source)["binlog_is_there"] is True


def _purged(db: Any) -> bool:
    """Files that a connection still reads stay."""
    last = rows_in(db, "SHOW BINARY LOGS")[-1][0]
    db.execute(f"PURGE BINARY LOGS TO '{last}'")
    return len(rows_in(db, "SHOW BINARY LOGS")) == 1


def test_another_history_of_the_server_is_noticed(log: ps.Log, server: MariaDB, db: Any) -> None:
    capture = caught_up(log, "shop", source(server))
    at = capture.progress().position
    assert at is not None
    assert next(iter(source(server).steps(at))) is None
    for wrong in ({"gtid": "0-1-999999"}, {"pos": 99_999_999}):
        with pytest.raises(ps.BadInput, match="Changes are missing"):
            next(iter(source(server).steps({**at, **wrong})))


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        (("SET binlog_format = 'STATEMENT'", "UPDATE users SET name = 'x'"),
         'a statement instead of rows for "users"'),
        (("SET binlog_row_image = 'MINIMAL'", "UPDATE users SET name = 'x'"),
         'only parts of rows of "users"'),
        (("XA START 'a'", "UPDATE users SET name = 'x'", "XA END 'a'", "XA PREPARE 'a'", "XA ROLLBACK 'a'"),
         'XA PREPARE'),
        (("ALTER TABLE users DROP PRIMARY KEY", "UPDATE users SET name = 'x'"), "has no primary key"),
        (("ALTER TABLE users ADD place POINT", "UPDATE users SET name = 'x'"), "a type that the log has not"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_stops_it(
    log: ps.Log, server: MariaDB, db: Any, statements: tuple[str, ...], message: str
) -> None:
    run(db, "INSERT INTO users VALUES (1, 'Ann', 1)")
    capture = caught_up(log, "shop", source(server, tables=["users"]))
    at = capture.progress().position
    assert at is not None
    run(db, *statements)
    run(db, "SET binlog_format = 'ROW'", "SET binlog_row_image = 'FULL'")
    with pytest.raises(ps.BadInput, match=message):
        list(source(server, tables=["users"]).steps(at))
    assert rows_in_log(log, "shop.users") == [(1, "Ann", 1.0)]
    if "binlog" in statements[0] or "XA" in statements[0]:
        run(db, "INSERT INTO users VALUES (2, 'Bob', 2)")
        capture.request_snapshot(["*"])  # as the hint says
        caught_up(log, "shop", source(server, tables=["users"]))
        same(log, db, "users")
        assert len(rows_in_log(log, "shop.users")) == 2


def test_statements_for_other_tables_are_nothing_to_us(log: ps.Log, server: MariaDB, db: Any) -> None:
    run(db, "CREATE DATABASE IF NOT EXISTS other", "CREATE OR REPLACE TABLE other.users (id INT PRIMARY KEY)")
    caught_up(log, "shop", source(server))
    run(db, "SET binlog_format = 'STATEMENT'", "INSERT INTO notes VALUES ('a')", "USE other",
        "INSERT INTO users VALUES (1)", "USE shop", "SET binlog_format = 'ROW'", "TRUNCATE other.users",
        "INSERT INTO users VALUES (1, 'Ann', 1)")  # fmt: skip
    caught_up(log, "shop", source(server))
    same(log, db, "users")
    assert ops(log, "shop.users") == ["c"]


def test_bad_input(log: ps.Log, server: MariaDB, db: Any) -> None:
    run(db, "CREATE TABLE places (id INT PRIMARY KEY, at POINT, big DECIMAL(65, 2))",
        "CREATE TABLE pets (id INT PRIMARY KEY, owner INT, FOREIGN KEY (owner) REFERENCES users (id) "
        "ON DELETE CASCADE)", "CREATE TABLE weights (kg FLOAT PRIMARY KEY)")  # fmt: skip
    with pytest.raises(ps.BadOption) as refused:
        source(server, tables=["user", "notes", "places", "pets", "weights"]).tables()
    for said in (
        'there is no table "user"', 'did you mean "users"?', '"notes" has no primary key',
        "ALTER TABLE `notes` ADD PRIMARY KEY", "column at point", "column big decimal(65,2)",
        'table "pets" has a foreign key with CASCADE', 'the key of "weights" is a FLOAT',
    ):  # fmt: skip
        assert said in str(refused.value)
    with pytest.raises(ps.BadOption, match='has no database "shopp"'):
        MySQLSource(server.url("shopp"), name="shop").tables()
    for address in ("mysql://127.0.0.1/shop", "mysql://me@host", "mysql://me@host:x/shop", "mysql://"):
        with pytest.raises(ps.BadOption, match="address"):
            MySQLSource(address, name="shop")
    with pytest.raises(ps.BadOption, match='did you mean "zero_dates"'):
        MySQLSource(f"{server.url('shop')}?zero_date=null", name="shop")
    with pytest.raises(ps.BadOption, match="nothing can be captured") as unknown:
        ps.capture.source_at("oracle://x/y")
    assert "mysql://" in str(unknown.value)
    assert ps.capture.source_at("mariadb://me@host/shop").place == "shop"


VERSIONED = "CREATE TABLE prices (id INT PRIMARY KEY, price INT) WITH SYSTEM VERSIONING"
CASCADING = (
    "CREATE TABLE pets (id INT PRIMARY KEY, owner INT, FOREIGN KEY (owner) REFERENCES users (id) "
    "ON DELETE SET NULL)"
)


def test_a_table_with_system_versioning_is_refused(server: MariaDB, db: Any) -> None:
    run(db, VERSIONED, "CREATE TABLE plain (id INT PRIMARY KEY) COMMENT 'WITH SYSTEM VERSIONING'")
    with pytest.raises(ps.BadOption, match='table "prices" has system versioning'):
        source(server).tables()
    assert [table.name for table in source(server, tables=["users", "plain"]).tables()] == ["plain", "users"]


# Words that the driver takes for UTF-8, and text that we would.
WORDS = "CREATE TABLE words (id INT PRIMARY KEY, owner INT, word ENUM('é') CHARSET latin1)"
CHINESE = "CREATE TABLE chinese (id INT PRIMARY KEY, owner INT, name VARCHAR(9) CHARSET gbk)"


@pytest.mark.parametrize(
    ("made", "name"),
    [(VERSIONED, "prices"), (CASCADING, "pets"), (WORDS, "words"), (CHINESE, "chinese")],
)
def test_a_table_made_meanwhile_whose_changes_would_be_told_wrongly_stops_the_capture(
    log: ps.Log, server: MariaDB, db: Any, made: str, name: str
) -> None:
    with (
        pytest.raises(ps.BadOption, match=f'"{name}" has'),
        running(log, "shop", source(server)) as capture,
    ):
        wait_until(lambda: capture.status()["phase"] == "following")
        run(db, "INSERT INTO users VALUES (1, 'Ann', 1)")
        wait_until(lambda: capture.status()["changes"] == 1)  # so it is told as it comes
        run(db, made, f"INSERT INTO {name} (id, {'owner' if 'owner' in made else 'price'}) VALUES (1, 1)")
        wait_until(lambda: capture.last_error is not None)
    assert f"shop.{name}" not in log.topics()
    caught_up(log, "shop", source(server, tables=["users", "lines"]))  # the way on that it names
    same(log, db, "users")


def test_a_table_made_meanwhile_has_the_types_of_a_snapshot(log: ps.Log, server: MariaDB, db: Any) -> None:
    values = "'123e4567-e89b-12d3-a456-426655440000', '::1'"
    with running(log, "shop", source(server)) as capture:
        wait_until(lambda: capture.status()["phase"] == "following")
        run(db, "INSERT INTO users VALUES (1, 'Ann', 1)")
        wait_until(lambda: capture.status()["changes"] == 1)
        run(db, "CREATE TABLE seen (id UUID PRIMARY KEY, host INET6)", f"INSERT INTO seen VALUES ({values})")
        wait_until(lambda: capture.status()["changes"] == 2)
    caught_up(log, "shop", source(server))
    same(log, db, "seen")


def test_settings_of_the_server_are_told_all_at_once(server: MariaDB, db: Any) -> None:
    wrong = {"binlog_format": "MIXED", "binlog_row_image": "MINIMAL", "binlog_row_metadata": "MINIMAL"}
    right = {"binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_metadata": "FULL"}
    try:
        for name, value in wrong.items():
            db.execute(f"SET GLOBAL {name} = '{value}'")
        with pytest.raises(ps.BadOption) as refused:
            source(server).tables()
    finally:
        for name, value in right.items():
            db.execute(f"SET GLOBAL {name} = '{value}'")
    for name, value in right.items():
        assert f"{name} is {wrong[name]}, not {value}" in str(refused.value)
        assert f"SET GLOBAL {name} = '{value}'" in str(refused.value)
    assert len(source(server).tables()) == 2


@pytest.mark.parametrize(
    ("option", "message"),
    [("--skip-log-bin", "log_bin is OFF, not ON"),
     ("--binlog-ignore-db=shop", "the database is not in the binlog"),
     ("--binlog-do-db=other", "the database is not in the binlog")],
)  # fmt: skip
def test_a_server_without_the_binlog_of_the_database(option: str, message: str) -> None:
    with throwaway(option) as server, closing(server.connect()) as made, made.cursor() as cursor:
        grant(server)
        run(cursor, "CREATE DATABASE shop", "CREATE TABLE shop.users (id INT PRIMARY KEY)")
        with pytest.raises(ps.BadOption, match=message):
            source(server).tables()


def test_rights_and_passwords(server: MariaDB, db: Any) -> None:
    run(
        db,
        "CREATE OR REPLACE USER few@'%' IDENTIFIED BY 'pw-of-few'",
        "GRANT SELECT ON shop.users TO few@'%'",
    )
    few = server.url("shop", user="few", password="pw-of-few")
    with pytest.raises(ps.NotAllowed, match="few lacks REPLICATION SLAVE, BINLOG MONITOR") as refused:
        MySQLSource(few, name="shop").tables()
    assert "GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO few" in str(refused.value)
    run(db, "GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO few@'%'")
    assert [table.name for table in MySQLSource(few, name="shop").tables()] == ["users"]
    with pytest.raises(ps.NotAllowed) as wrong:
        MySQLSource(server.url("shop", password="wr0ng"), name="shop").tables()
    away = MySQLSource(f"mysql://me:s3same@127.0.0.1:{free_port()}/shop", name="shop")
    with pytest.raises(ps.Unreachable) as unreachable:
        away.tables()
    said = f"{refused.value}{wrong.value}{unreachable.value}{away.address}{away._at!r}"
    for password in ("pw-of-few", "wr0ng", "s3same"):
        assert password not in said


def test_a_server_that_is_silent_is_noticed_and_waited_for(
    log: ps.Log, server: MariaDB, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_binlog, "_SILENCE_S", 1.0)
    with running(log, "shop", source(server)) as capture:
        wait_until(lambda: capture.status()["phase"] == "following", what="the snapshot")
        run(db, "INSERT INTO users VALUES (1, 'Ann', 1)")
        wait_until(lambda: _has(log, "users", 1), what="a change, so that it waits for the next one")
        assert server.process is not None
        server.process.send_signal(signal.SIGSTOP)
        try:
            wait_until(lambda: capture.last_error, what="the silence to be noticed")
            assert "the connection was lost" in str(capture.last_error)
        finally:
            server.process.send_signal(signal.SIGCONT)
        run(db, "INSERT INTO users VALUES (2, 'Bob', 2)")
        wait_until(lambda: _has(log, "users", 2), what="what was written then")
        assert capture.last_error is None


def test_how_far_behind_it_is(log: ps.Log, server: MariaDB, db: Any) -> None:
    capture = caught_up(log, "shop", source(server))
    at = capture.progress().position
    assert source(server).status(at)["behind_bytes"] == 0
    run(db, "FLUSH BINARY LOGS", "INSERT INTO users VALUES (1, 'Ann', 1)")
    behind = source(server).status(at)
    assert behind["behind_bytes"] > 300
    assert behind["binlog_is_there"] is True
    assert source(server).status(None)["kept_bytes"] > 0
    assert source(server).status(None)["left_out"] == ["notes"]


def test_a_quiet_table_does_not_need_an_old_binlog(log: ps.Log, server: MariaDB, db: Any) -> None:
    run(db, "CREATE DATABASE IF NOT EXISTS other", "CREATE OR REPLACE TABLE other.users (id INT PRIMARY KEY)")
    with running(log, "shop", source(server)) as capture:
        wait_until(lambda: capture.status()["phase"] == "following", what="the snapshot")
        run(db, "INSERT INTO other.users VALUES (1)", "FLUSH BINARY LOGS")
        db.execute("SHOW MASTER STATUS")
        file = db.fetchall()[0][0]
        wait_until(lambda: (capture.progress().source or {})["file"] == file, what="the next file")
        assert capture.progress().changes == 0
