"""SQLite as a source: whatever anybody writes to it, the log has the same rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
from tests.capture.world import caught_up, ops, rows_in_log, rows_in_sqlite, running
from tests.waiting import wait_until

import penstock as ps
from penstock.capture.engine import Capture
from penstock.capture.sqlite_source import SQLiteSource
from penstock.follow.sqlite import SQLiteStore
from penstock.follow.table import TableSpec
from penstock.schema import RecordSchema

SHOP = """
CREATE TABLE users
    (id INTEGER PRIMARY KEY, name TEXT, email TEXT UNIQUE, score REAL, vip BOOLEAN, photo BLOB);
CREATE TABLE lines
    (order_id INTEGER, line INTEGER, item VARCHAR(20), PRIMARY KEY (order_id, line)) WITHOUT ROWID;
CREATE TABLE notes (text TEXT);
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "shop.db"
    with closing(sqlite3.connect(made)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.executescript(SHOP)
    return made


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as opened:
        yield opened


def source(path: Path, **options: object) -> SQLiteSource:
    return SQLiteSource(path, name="shop", **options)  # type: ignore[arg-type]


def same(log: ps.Log, path: Path, table: str) -> None:
    assert rows_in_log(log, f"shop.{table}") == rows_in_sqlite(path, f"SELECT * FROM {table}")


def test_rows_that_are_there_and_every_change_after(log: ps.Log, path: Path, db: sqlite3.Connection) -> None:
    db.execute(
        "INSERT INTO users VALUES (1, 'Ann', 'ann@x', 1.5, 1, x'00ff'), (2, 'Bob', NULL, NULL, 0, NULL)"
    )
    caught_up(log, "shop", source(path))
    same(log, path, "users")
    db.executescript("""
        INSERT INTO users (name, email) VALUES ('Cid', 'cid@x');
        UPDATE users SET name = 'Anna' WHERE id = 1;
        UPDATE users SET id = 20 WHERE id = 2;
        DELETE FROM users WHERE id = 3;
        INSERT INTO lines VALUES (7, 1, 'tea'), (7, 2, 'milk');
        DELETE FROM lines;
        INSERT INTO lines VALUES (7, 1, 'tea');
    """)
    caught_up(log, "shop", source(path))
    for table in ("users", "lines"):
        same(log, path, table)
    assert ops(log, "shop.users") == ["r", "r", "c", "u", "u", "d"]
    assert ops(log, "shop.lines") == ["c", "c", "d", "d", "c"]
    moved = list(log.topic("shop.users.changes").rows())[4]
    assert (moved["before"]["id"], moved["after"]["id"], moved["after"]["name"]) == (2, 20, "Bob")
    assert "shop.notes" not in log.topics()  # it has no key
    assert source(path).status(None)["left_out"] == ["notes"]


def test_what_is_rolled_back_never_was(log: ps.Log, path: Path, db: sqlite3.Connection) -> None:
    caught_up(log, "shop", source(path))
    db.executescript("""
        BEGIN; INSERT INTO users (id, name) VALUES (1, 'no'); ROLLBACK;
        BEGIN; INSERT INTO users (id, name) VALUES (2, 'yes');
        SAVEPOINT s; INSERT INTO users (id, name) VALUES (3, 'no'); ROLLBACK TO s; COMMIT;
    """)
    caught_up(log, "shop", source(path))
    same(log, path, "users")
    assert ops(log, "shop.users") == ["c"]


@pytest.mark.parametrize("recursive", [False, True])
def test_rows_that_are_pushed_out_are_deleted(
    log: ps.Log, path: Path, db: sqlite3.Connection, recursive: bool
) -> None:
    db.execute(f"PRAGMA recursive_triggers = {recursive:d}")
    db.executescript("""
        CREATE UNIQUE INDEX named ON users (name COLLATE NOCASE, score) WHERE name <> 'x';
        INSERT INTO users (id, name, email, score)
            VALUES (1, 'Ann', 'a', 1), (2, 'Bob', 'b', 2), (3, 'Cid', 'c', 3);
    """)
    caught_up(log, "shop", source(path))
    for statement in (
        "INSERT OR REPLACE INTO users (id, name, email) VALUES (4, 'Dan', 'a')",  # pushes out 1
        "INSERT OR REPLACE INTO users (id, name, email, score) VALUES (5, 'BOB', 'c', 2)",  # 2 and 3
        "INSERT OR IGNORE INTO users (id, name, email) VALUES (6, 'Eve', 'a')",  # nothing
        "INSERT INTO users (id, email) VALUES (7, 'a') ON CONFLICT (email) DO UPDATE SET score = 9",
        "INSERT INTO users (id, name, email) VALUES (8, 'Fay', 'f')",
        "UPDATE OR REPLACE users SET email = 'f' WHERE id = 5",  # pushes out 8
        "INSERT OR REPLACE INTO users (email, name) VALUES ('f', 'Gus')",  # 5, by a row that has no id yet
        "INSERT OR REPLACE INTO users (id, name, email) VALUES (4, 'Dan again', 'a')",  # by its own key
        "UPDATE OR REPLACE users SET id = 4 WHERE name = 'Gus'",
        "REPLACE INTO lines VALUES (1, 1, 'a'), (1, 1, 'b')",
    ):
        db.execute(statement)
        caught_up(log, "shop", source(path))
        same(log, path, "users")
    same(log, path, "lines")


@pytest.mark.parametrize("recursive", [False, True])
def test_rows_that_are_pushed_out_by_a_key_in_other_letters(
    log: ps.Log, path: Path, db: sqlite3.Connection, recursive: bool
) -> None:
    db.execute(f"PRAGMA recursive_triggers = {recursive:d}")
    db.executescript("""
        CREATE TABLE tags (name TEXT COLLATE NOCASE PRIMARY KEY, n INTEGER UNIQUE);
        CREATE TABLE codes (code TEXT COLLATE RTRIM, n INTEGER, x TEXT, PRIMARY KEY (code, n)) WITHOUT ROWID;
        INSERT INTO tags VALUES ('tea', 1), ('milk', 2);
        INSERT INTO codes VALUES ('a', 1, 'x');
    """)
    caught_up(log, "shop", source(path))
    for statement in (
        "INSERT OR REPLACE INTO tags VALUES ('TEA', 3)",
        "UPDATE OR REPLACE tags SET name = 'Tea' WHERE name = 'milk'",
        "UPDATE tags SET name = 'TeA' WHERE name = 'tea'",  # pushes out nothing
        "INSERT OR IGNORE INTO tags VALUES ('tea', 9)",
        "INSERT OR REPLACE INTO tags VALUES ('coffee', 2)",  # by the other index
        "INSERT OR REPLACE INTO codes VALUES ('a  ', 1, 'y')",
    ):
        db.execute(statement)
        caught_up(log, "shop", source(path))
        same(log, path, "tags")
    same(log, path, "codes")


def test_a_null_in_a_key_is_named_and_nothing_is_lost(
    log: ps.Log, path: Path, db: sqlite3.Connection
) -> None:
    db.execute("CREATE TABLE tags (name TEXT PRIMARY KEY)")
    caught_up(log, "shop", source(path))
    db.execute("INSERT INTO tags VALUES ('tea'), (NULL)")
    with pytest.raises(ps.BadInput, match=r'column "name" of the key of "tags" holds NULL') as raised:
        caught_up(log, "shop", source(path))
    assert "penstock capture resnapshot" in raised.value.hint
    db.execute("UPDATE tags SET name = 'milk' WHERE name IS NULL")
    Capture(log, "shop", source(path)).request_snapshot(["*"])
    caught_up(log, "shop", source(path))
    same(log, path, "tags")


@pytest.mark.parametrize(
    ("declared", "one", "other", "same_as"),
    [
        ("", "1", "'1'", "that number"),
        ("", "1.5", "'1.5'", "that number"),
        ("BLOB", "x'61'", "'a'", "those bytes"),
    ],
)
def test_two_keys_that_would_be_one_are_named(
    log: ps.Log, path: Path, db: sqlite3.Connection, declared: str, one: str, other: str, same_as: str
) -> None:
    db.execute(f"CREATE TABLE tags (name {declared} PRIMARY KEY, n INTEGER)")
    db.execute(f"INSERT INTO tags VALUES ({one}, 1)")
    caught_up(log, "shop", source(path))
    db.execute(f"INSERT INTO tags VALUES ({other}, 2)")
    with pytest.raises(ps.BadInput, match=f'column "name" of the key of "tags", .* is the same as {same_as}'):
        caught_up(log, "shop", source(path))
    assert [row[1] for row in rows_in_log(log, "shop.tags")] == [1]
    db.execute("DELETE FROM tags WHERE n = 2")
    Capture(log, "shop", source(path)).request_snapshot(["*"])
    caught_up(log, "shop", source(path))
    assert [row[1] for row in rows_in_log(log, "shop.tags")] == [1]


def test_keys_without_a_type_come_as_they_are(log: ps.Log, path: Path, db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE tags (name PRIMARY KEY)")
    db.execute("CREATE TABLE codes (name TEXT PRIMARY KEY)")
    db.execute("INSERT INTO tags VALUES (1), (2.5), ('tea'), ('007'), ('1e5')")
    db.execute("INSERT INTO codes VALUES ('1'), ('2.5'), ('tea')")
    caught_up(log, "shop", source(path))
    assert {row[0] for row in rows_in_log(log, "shop.tags")} == {"1", "2.5", "tea", "007", "1e5"}
    same(log, path, "codes")


def test_what_followers_note_in_a_database_is_not_captured(path: Path) -> None:
    SQLiteStore(path).prepare(TableSpec("copy", RecordSchema.of("id BIGINT").arrow, ("id",)), "topic-1")
    assert [table.name for table in source(path).tables()] == ["lines", "users"]
    assert source(path).status(None)["left_out"] == ["copy__rows", "notes"]


def test_a_type_for_a_column_that_there_is_not_is_refused_before_anything_is_made(
    log: ps.Log, path: Path, db: sqlite3.Connection
) -> None:
    with pytest.raises(ps.BadOption, match=r'types names "users\.nmae"') as raised:
        caught_up(log, "shop", source(path, types={"users.nmae": "BINARY"}))
    assert raised.value.hint == 'did you mean "users.name"?'
    assert not db.execute("SELECT 1 FROM sqlite_schema WHERE name LIKE '%penstock%'").fetchall()


def test_foreign_keys_and_triggers_of_the_application(
    log: ps.Log, path: Path, db: sqlite3.Connection
) -> None:
    db.executescript("""
        PRAGMA foreign_keys = ON;
        CREATE TABLE pets
            (id INTEGER PRIMARY KEY, owner REFERENCES users (id) ON DELETE CASCADE ON UPDATE CASCADE);
        CREATE TRIGGER welcome AFTER INSERT ON users BEGIN INSERT INTO pets (owner) VALUES (new.id); END;
    """)
    caught_up(log, "shop", source(path, types={"pets.owner": "BIGINT"}))
    db.execute("INSERT INTO users (id, name) VALUES (1, 'Ann'), (2, 'Bob')")
    db.execute("UPDATE users SET id = 10 WHERE id = 1")
    db.execute("DELETE FROM users WHERE id = 2")
    caught_up(log, "shop", source(path, types={"pets.owner": "BIGINT"}))
    same(log, path, "users")
    same(log, path, "pets")


def test_tables_that_change_their_form(log: ps.Log, path: Path, db: sqlite3.Connection) -> None:
    db.execute("INSERT INTO users (id, name) VALUES (1, 'Ann'), (2, 'Bob')")
    with running(log, "shop", source(path)) as capture:
        wait_until(lambda: capture.progress().changes == 2, what="the rows")
        db.execute("ALTER TABLE users ADD COLUMN city TEXT DEFAULT 'Bern'")
        db.execute("INSERT INTO users (id, name, city) VALUES (3, 'Cid', 'Rome')")
        wait_until(lambda: _cities(log) == ["Bern", "Bern", "Rome"], what="the new column")
        db.execute("ALTER TABLE users RENAME COLUMN city TO town")
        db.execute("UPDATE users SET town = 'Oslo' WHERE id = 2")
        db.executescript("""
            BEGIN;
            CREATE TABLE built
                (order_id INTEGER, line INTEGER, item TEXT, price REAL, PRIMARY KEY (order_id, line));
            INSERT INTO built VALUES (9, 9, 'x', 1.0);
            DROP TABLE lines;
            ALTER TABLE built RENAME TO lines;
            COMMIT;
            INSERT INTO lines VALUES (9, 10, 'y', 2.0);
            CREATE TABLE added (id INTEGER PRIMARY KEY);
            INSERT INTO added VALUES (5);
            DROP TABLE IF EXISTS gone;
        """)
        wait_until(lambda: _has(log, "shop.added") and _has(log, "shop.lines", 2), what="the tables")
        wait_until(lambda: _towns(log) == ["Bern", "Oslo", "Rome"], what="the renamed column")
        db.execute("DROP TABLE added")
        wait_until(lambda: rows_in_log(log, "shop.added") == [], what="the table that is gone")
    assert rows_in_log(log, "shop.lines") == rows_in_sqlite(path, "SELECT * FROM lines")
    told = [(row["table"], row["schema_version"]) for row in log.topic("shop.schemas").rows()]
    assert told.count(("users", 3)) == 1
    assert told.count(("lines", 2)) == 1


def _cities(log: ps.Log) -> list[str]:
    return [row[-1] for row in rows_in_log(log, "shop.users")]


def _towns(log: ps.Log) -> list[str]:
    return [row[-1] for row in rows_in_log(log, "shop.users")]


def _has(log: ps.Log, topic: str, rows: int = 1) -> bool:
    return topic in log.topics() and len(rows_in_log(log, topic)) == rows


@pytest.mark.parametrize("looks", [True, False], ids=["while it is followed", "while nobody looks"])
def test_the_application_can_drop_a_column(
    log: ps.Log, path: Path, db: sqlite3.Connection, looks: bool
) -> None:
    """Although triggers name it; and it writes on at once, whether or not we have noticed."""
    db.execute("INSERT INTO users (name, email, score) VALUES ('Ann', 'ann@x', 1.5)")
    caught_up(log, "shop", source(path))

    def change() -> None:
        db.execute("ALTER TABLE users DROP COLUMN score")
        db.execute("INSERT INTO users (name, email) VALUES ('Bob', 'bob@x')")
        db.execute("UPDATE users SET name = 'Anna' WHERE id = 1")

    if looks:
        with running(log, "shop", source(path)):
            change()
    else:
        change()
    caught_up(log, "shop", source(path))
    names = "id, name, email, NULL, vip, photo"
    assert rows_in_log(log, "shop.users") == rows_in_sqlite(path, f"SELECT {names} FROM users")
    told = [(row["op"], (row["after"] or {}).get("name")) for row in log.topic("shop.users.changes").rows()]
    assert ("c", "Bob") in told
    assert ("u", "Anna") in told


def test_what_happened_while_nobody_looked(log: ps.Log, path: Path, db: sqlite3.Connection) -> None:
    """A table that was built anew has lost its triggers: rows that went unseen are deleted all the same."""
    db.execute("INSERT INTO users (id, name) VALUES (1, 'Ann'), (2, 'Bob'), (3, 'Cid')")
    caught_up(log, "shop", source(path))
    db.executescript("""
        UPDATE users SET name = 'Anna' WHERE id = 1;
        CREATE TABLE built
            (id INTEGER PRIMARY KEY, name TEXT, email TEXT UNIQUE, score REAL, vip BOOLEAN, photo BLOB);
        INSERT INTO built SELECT * FROM users WHERE id <> 2;
        DROP TABLE users;
        ALTER TABLE built RENAME TO users;
        DELETE FROM users WHERE id = 3;
        INSERT INTO users (id, name) VALUES (4, 'Dan');
    """)
    caught_up(log, "shop", source(path))
    same(log, path, "users")
    assert [row[0] for row in rows_in_log(log, "shop.users")] == [1, 4]


def test_what_is_in_the_log_is_removed_but_the_last(log: ps.Log, path: Path, db: sqlite3.Connection) -> None:
    with running(log, "shop", source(path)) as capture:
        wait_until(lambda: capture.progress().source is not None, what="the snapshot")
        for number in range(3):
            db.execute("BEGIN")
            db.executemany("INSERT INTO users (id) VALUES (?)", [(number * 6_000 + n,) for n in range(6_000)])
            db.execute("COMMIT")
            wait_until(lambda: capture.progress().changes == (number + 1) * 6_000, what="them")  # noqa: B023
        kept = "SELECT count(*), max(seq) FROM _penstock_shop_changes"
        wait_until(lambda: db.execute(kept).fetchone() == (1, 18_000), what="the rest to go")
    db.execute("DELETE FROM users WHERE id = 7")
    caught_up(log, "shop", source(path))
    same(log, path, "users")


def test_an_older_copy_of_the_database_is_noticed(log: ps.Log, path: Path, tmp_path: Path) -> None:
    older = tmp_path / "older.db"
    caught_up(log, "shop", source(path))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("INSERT INTO users (id) VALUES (1), (2)")
        db.execute(f"VACUUM INTO '{older}'")
        db.execute("INSERT INTO users (id) VALUES (3), (4)")
        caught_up(log, "shop", source(path))
    with pytest.raises(ps.BadInput, match="an older copy of it"):
        caught_up(log, "shop", source(older))
    capture = caught_up(log, "shop", source(path))
    capture.request_snapshot(["*"])
    caught_up(log, "shop", source(older))
    assert [row[0] for row in rows_in_log(log, "shop.users")] == [1, 2]


def test_a_snapshot_that_was_asked_for(log: ps.Log, path: Path, db: sqlite3.Connection) -> None:
    db.execute("INSERT INTO users (id) VALUES (1), (2)")
    capture = caught_up(log, "shop", source(path))
    capture.request_snapshot(["users"])
    caught_up(log, "shop", source(path))
    caught_up(log, "shop", source(path))
    assert ops(log, "shop.users") == ["r", "r", "r", "r"]
    same(log, path, "users")


def test_a_topic_that_somebody_deleted_is_filled_again(
    log: ps.Log, path: Path, db: sqlite3.Connection
) -> None:
    db.execute("INSERT INTO users (id) VALUES (1), (2)")
    caught_up(log, "shop", source(path))
    log.delete_topic("shop.users")
    db.execute("INSERT INTO users (id) VALUES (3)")
    caught_up(log, "shop", source(path))
    same(log, path, "users")


def test_another_key_is_refused_until_what_is_stored_is_gone(
    log: ps.Log, path: Path, db: sqlite3.Connection
) -> None:
    db.execute("INSERT INTO users (id, name) VALUES (1, 'Ann'), (2, 'Bob')")
    caught_up(log, "shop", source(path))
    db.executescript("DROP TABLE users; CREATE TABLE users (id INTEGER, name TEXT PRIMARY KEY, score REAL)")
    db.execute("INSERT INTO users (id, name) VALUES (1, 'Ann'), (1, 'Bob')")
    with pytest.raises(ps.BadOption, match="has another key than what is stored"):
        caught_up(log, "shop", source(path))
    log.delete_topic("shop.users")
    caught_up(log, "shop", source(path))
    assert [(row[0], row[1]) for row in rows_in_log(log, "shop.users")] == [(1, "Ann"), (1, "Bob")]


def test_nothing_is_left_in_the_database(log: ps.Log, path: Path, db: sqlite3.Connection) -> None:
    before = db.execute("SELECT * FROM sqlite_schema").fetchall()
    caught_up(log, "shop", source(path))
    assert db.execute("SELECT count(*) FROM sqlite_schema WHERE type = 'trigger'").fetchone() != (0,)
    source(path).drop()
    assert db.execute("SELECT * FROM sqlite_schema").fetchall() == before


def test_a_capture_that_is_dropped_while_it_runs_says_so(log: ps.Log, path: Path) -> None:
    with (
        pytest.raises(ps.BadInput, match="the capture was dropped there meanwhile"),
        running(log, "shop", source(path)) as capture,
    ):
        wait_until(lambda: capture.status()["phase"] == "following")
        source(path).drop()
        wait_until(lambda: capture.last_error is not None)


def test_bad_input(log: ps.Log, path: Path, db: sqlite3.Connection, tmp_path: Path) -> None:
    with pytest.raises(ps.BadOption, match='no table "user"') as refused:
        source(path, tables=["user"]).tables()
    assert 'did you mean "users"?' in str(refused.value)
    with pytest.raises(ps.BadOption, match='"notes" has no primary key'):
        source(path, tables=["notes"]).tables()
    with pytest.raises(ps.BadOption, match="there is no database"):
        source(tmp_path / "nothing.db").tables()
    (tmp_path / "text.db").write_text("no database " * 100)
    with pytest.raises(ps.BadInput, match="is it a SQLite database"):
        source(tmp_path / "text.db").tables()
    db.execute("CREATE UNIQUE INDEX lowered ON users (lower(name))")
    with pytest.raises(ps.NotSupported, match="a UNIQUE index on an expression"):
        source(path).tables()


def test_a_number_with_a_fraction_is_no_whole_number(log: ps.Log, path: Path, db: sqlite3.Connection) -> None:
    """SQLite keeps it as it is, whatever the column is declared as."""
    db.execute("INSERT INTO lines VALUES (1, 1, 'a')")
    caught_up(log, "shop", source(path))
    db.execute("INSERT INTO lines VALUES (1, 1.5, 'b')")
    with pytest.raises(ps.BadInput, match=r'column "line" of "lines" holds float .1\.5., which is no BIGINT'):
        caught_up(log, "shop", source(path))
    assert rows_in_log(log, "shop.lines") == [(1, 1, "a")]
    db.execute("INSERT INTO users (id, score) VALUES (1, 2.0)")
    caught_up(
        log, "whole", SQLiteSource(path, name="whole", tables=["users"], types={"users.score": "BIGINT"})
    )
    assert [row[3] for row in rows_in_log(log, "whole.users")] == [2]


def test_a_value_that_does_not_fit_is_named_and_nothing_is_lost(
    log: ps.Log, path: Path, db: sqlite3.Connection
) -> None:
    caught_up(log, "shop", source(path))
    db.execute("INSERT INTO users (id, score) VALUES (1, 2.5), (2, 'many')")
    with pytest.raises(ps.BadInput, match=r'column "score" of "users" holds str .many., which is no DOUBLE'):
        caught_up(log, "shop", source(path))
    assert rows_in_log(log, "shop.users") == []
    db.execute("UPDATE users SET score = 3 WHERE id = 2")
    Capture(log, "shop", source(path)).request_snapshot(["*"])
    caught_up(log, "shop", source(path))
    same(log, path, "users")


@pytest.mark.parametrize("was_there", [True, False])
def test_text_that_is_no_text_is_named_and_can_be_had_as_bytes(
    log: ps.Log, path: Path, db: sqlite3.Connection, was_there: bool
) -> None:
    if not was_there:
        caught_up(log, "shop", source(path))
    db.execute("INSERT INTO users (id, name) VALUES (1, CAST(x'ff41' AS TEXT))")
    with pytest.raises(
        ps.BadInput, match=r'column "name" of "users" holds str .\\udcffA., which is no STRING'
    ):
        caught_up(log, "shop", source(path))
    caught_up(log, "bytes", source(path, types={"users.name": "BINARY"}))
    assert rows_in_log(log, "bytes.users")[0][:2] == (1, b"\xffA")


def test_what_fails_again_and_again_ends_a_run_to_the_end(
    log: ps.Log, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_: object) -> object:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(SQLiteSource, "_snapshot", damaged)  # after a step that is stored each time
    monkeypatch.setattr("penstock.capture.engine._PAUSE_S_MAX", 0.01)
    with pytest.raises(ps.StorageError, match="disk I/O error"):
        caught_up(log, "shop", source(path))


def test_what_a_virtual_table_keeps_for_itself_is_not_captured(
    log: ps.Log, path: Path, db: sqlite3.Connection
) -> None:
    db.executescript("""
        CREATE VIRTUAL TABLE found USING fts5(text);
        INSERT INTO found VALUES ('brown shoe');
    """)
    caught_up(log, "shop", source(path))
    assert not [topic for topic in log.topics() if "found" in topic]


def test_rows_that_are_pushed_out_beside_triggers_of_the_application(
    log: ps.Log, path: Path, db: sqlite3.Connection
) -> None:
    """They note changes between what we note before and after."""
    db.executescript("""
        CREATE TABLE audit (id INTEGER PRIMARY KEY, what TEXT);
        CREATE TRIGGER before_us BEFORE INSERT ON users BEGIN
            INSERT INTO audit (what) VALUES ('insert');
            UPDATE users SET score = 1 WHERE id = 3;
        END;
        INSERT INTO users (id, email) VALUES (1, 'a'), (3, 'c');
    """)
    caught_up(log, "shop", source(path))
    db.executescript("""
        CREATE TRIGGER after_us AFTER INSERT ON users BEGIN INSERT INTO audit (what) VALUES ('done'); END;
        CREATE TRIGGER last BEFORE INSERT ON users BEGIN UPDATE users SET score = 2 WHERE id = 3; END;
    """)
    caught_up(log, "shop", source(path))
    for statement in (
        "INSERT OR REPLACE INTO users (id, email) VALUES (2, 'a')",
        "INSERT OR IGNORE INTO users (id, email) VALUES (9, 'a')",
        "DELETE FROM users WHERE id = 2",
        "INSERT INTO users (id, email) VALUES (2, 'b'), (4, 'd')",
        "INSERT OR REPLACE INTO users (id, email) VALUES (5, 'd'), (6, 'b')",
    ):
        db.execute(statement)
        if "OR" in statement:
            caught_up(log, "shop", source(path))
            same(log, path, "users")
    same(log, path, "audit")


def test_triggers_of_the_application_that_are_made_later(
    log: ps.Log, path: Path, db: sqlite3.Connection
) -> None:
    """SQLite runs the newest first: what one of these changes was noted before what it goes by."""
    caught_up(log, "shop", source(path))
    caught_up(log, "other", SQLiteSource(path, name="other"))
    db.executescript("""
        CREATE TRIGGER stamped AFTER UPDATE OF name ON USERS BEGIN
            UPDATE users SET score = 9 WHERE id = new.id;
        END;
        CREATE TRIGGER refused AFTER INSERT ON users BEGIN DELETE FROM users WHERE name = 'x'; END;
        INSERT INTO users (id, name) VALUES (1, 'a'), (2, 'x');
        UPDATE users SET name = 'b' WHERE id = 1;
    """)
    caught_up(log, "shop", source(path))
    same(log, path, "users")
    version = db.execute("PRAGMA schema_version").fetchone()
    db.executescript("INSERT INTO users (id, name) VALUES (3, 'x'); UPDATE users SET name = 'c'")
    caught_up(log, "shop", source(path))
    same(log, path, "users")
    caught_up(log, "other", SQLiteSource(path, name="other"))
    caught_up(log, "shop", source(path))
    assert db.execute("PRAGMA schema_version").fetchone() > version  # of the other capture
    version = db.execute("PRAGMA schema_version").fetchone()
    caught_up(log, "other", SQLiteSource(path, name="other"))
    assert rows_in_log(log, "other.users") == rows_in_log(log, "shop.users")
    assert db.execute("PRAGMA schema_version").fetchone() == version


def test_a_row_that_is_pushed_out_by_one_without_an_id_has_any_id(
    log: ps.Log, path: Path, db: sqlite3.Connection
) -> None:
    """Before it is inserted, such a row seems to have the id -1."""
    db.execute("INSERT INTO users (id, email) VALUES (-1, 'a'), (7, 'b')")
    caught_up(log, "shop", source(path))
    db.execute("INSERT OR REPLACE INTO users (email) VALUES ('a'), ('b')")
    caught_up(log, "shop", source(path))
    same(log, path, "users")


def test_what_a_writer_waits_for_does_not_grow_with_what_was_written_before(
    log: ps.Log, path: Path, db: sqlite3.Connection
) -> None:
    caught_up(log, "shop", source(path))
    emails = [(f"{n}@x",) for n in range(200)]
    upsert = "INSERT INTO users (email) VALUES (?) ON CONFLICT (email) DO UPDATE SET score = 1"
    db.executemany("INSERT INTO users (email) VALUES (?)", emails)
    steps = [0]

    def count() -> int:
        steps[0] += 1
        return 0

    def cost() -> int:
        steps[0] = 0
        for email in emails:
            db.execute(upsert, email)
        return steps[0]

    db.set_progress_handler(count, 10)
    first = cost()
    for _ in range(5):
        last = cost()
    assert last < 1.2 * first
    caught_up(log, "shop", source(path))
    same(log, path, "users")


def test_a_database_in_place_of_another_is_never_mixed_up_with_it(log: ps.Log, tmp_path: Path) -> None:
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    for made, tables in ((first, ("a", "b")), (second, ("b",))):
        with closing(sqlite3.connect(made)) as db, db:
            for table in tables:
                db.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, n INTEGER)")
                db.execute(f"INSERT INTO {table} VALUES (1, 1), (2, 2)")
    caught_up(log, "shop", source(first))
    with closing(sqlite3.connect(first)) as db, db:
        db.execute("INSERT INTO b VALUES (3, 3)")
    caught_up(log, "shop", source(first))
    Capture(log, "shop", source(second)).request_snapshot(["b"])
    with pytest.raises(ps.BadInput, match="is not the database that was captured"):
        caught_up(log, "shop", source(second))
    with closing(sqlite3.connect(second)) as db:
        assert db.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (1,)  # nothing was made there
    Capture(log, "shop", source(second)).request_snapshot(["*"])
    caught_up(log, "shop", source(second))
    assert rows_in_log(log, "shop.a") == []
    assert rows_in_log(log, "shop.b") == [(1, 1), (2, 2)]


def test_a_table_that_loses_its_key_is_told(log: ps.Log, path: Path, db: sqlite3.Connection) -> None:
    db.execute("INSERT INTO users (id) VALUES (1)")
    caught_up(log, "shop", source(path))
    db.executescript("DROP TABLE users; CREATE TABLE users (id INTEGER, name TEXT)")
    with pytest.raises(ps.BadOption, match='"users" has no primary key'):
        caught_up(log, "shop", source(path))


def test_tables_that_would_share_a_topic_are_refused(log: ps.Log, path: Path, db: sqlite3.Connection) -> None:
    db.execute('CREATE TABLE "use rs" (id INTEGER PRIMARY KEY)')
    db.execute("CREATE TABLE use_rs (id INTEGER PRIMARY KEY)")
    with pytest.raises(ps.BadOption, match=r'would both be in topic "shop\.use_rs"'):
        caught_up(log, "shop", source(path))


def test_tables_with_names_in_other_alphabets_have_topics_of_their_own(
    log: ps.Log, path: Path, db: sqlite3.Connection
) -> None:
    for number, name in enumerate(("люди", "слон", "Straße 1")):
        db.execute(f'CREATE TABLE "{name}" (id INTEGER PRIMARY KEY)')
        db.execute(f'INSERT INTO "{name}" VALUES ({number})')
    caught_up(log, "shop", source(path))
    topics = ("shop.xn--d1aih0f", "shop.xn--k1aeck", "shop.xn--Strae_1-3va")
    assert [rows_in_log(log, name) for name in topics] == [[(0,)], [(1,)], [(2,)]]


def test_records_of_a_program_are_not_mixed_with_rows_of_a_table(
    log: ps.Log, path: Path, db: sqlite3.Connection
) -> None:
    theirs = log.create_topic("shop.users", "id BIGINT", partitions=2)
    theirs.append({"id": 7})
    db.execute("INSERT INTO users (id) VALUES (1)")
    with pytest.raises(ps.BadOption, match=r'would be in topic "shop\.users", which has records') as refused:
        caught_up(log, "shop", source(path))
    assert "penstock topic delete shop.users" in str(refused.value.hint)
    assert list(log.topic("shop.users").rows()) == [{"id": 7}]
    caught_up(log, "other", SQLiteSource(path, name="other"))
    assert len(rows_in_log(log, "other.users")) == 1


def test_a_capture_that_another_process_begins_meanwhile_is_no_stranger(
    log: ps.Log, path: Path, db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `penstock run` and `penstock serve` do, when both are started for the first time."""
    db.execute("INSERT INTO users (id) VALUES (1)")
    capture = Capture(log, "shop", source(path))
    known = capture.progress()
    caught_up(log, "shop", source(path))
    told = iter([known])
    monkeypatch.setattr(capture, "progress", lambda: next(told, None) or Capture.progress(capture))
    assert [table.name for table in capture.prepare()] == ["lines", "users"]
    capture.close()


def test_rows_of_two_captures_are_not_mixed(log: ps.Log, tmp_path: Path) -> None:
    """Where a name ends and the next one begins cannot be seen in a topic's."""
    sources = {}
    for name, table in (("shop", "x.y"), ("shop.x", "y")):
        path = tmp_path / f"{name}.db"
        with closing(sqlite3.connect(path)) as db:
            db.execute(f'CREATE TABLE "{table}" (id INTEGER PRIMARY KEY)')
            db.execute(f'INSERT INTO "{table}" VALUES ({len(name)})')
            db.commit()
        sources[name] = SQLiteSource(path, name=name)
    caught_up(log, "shop", sources["shop"])
    with pytest.raises(ps.BadOption, match=r'capture "shop\.x" has not stored'):
        caught_up(log, "shop.x", sources["shop.x"])
    assert rows_in_log(log, "shop.x.y") == [(4,)]


def test_large_rows(log: ps.Log, path: Path, db: sqlite3.Connection) -> None:
    caught_up(log, "shop", source(path))
    db.execute("INSERT INTO users (id, name, photo) VALUES (1, ?, ?)", ("x" * 3_000_000, b"y" * 3_000_000))
    db.execute("UPDATE users SET score = 1")
    caught_up(log, "shop", source(path))
    same(log, path, "users")


def test_many_large_rows_come_a_few_at_a_time(path: Path, db: sqlite3.Connection) -> None:
    snapshot, noted = source(path, tables=["users"]), source(path, tables=["users"])
    steps = snapshot.steps(None)
    position = [step for step in islice(steps, 2) if step][-1].position  # of an empty database
    db.executemany("INSERT INTO users (id, photo) VALUES (?, zeroblob(12000000))", [(n,) for n in range(5)])
    told = [step for step in islice(noted.steps(position), 3) if step and step.changes]
    assert [step.changes[0].rows.num_rows for step in told] == [3, 2]
    again = [step for step in islice(source(path, tables=["users"]).steps(position, ["*"]), 4) if step]
    assert [step.changes[0].rows.num_rows for step in again if step.changes] == [3, 2]


def test_what_is_noted_is_removed_also_while_others_write(
    log: ps.Log, path: Path, db: sqlite3.Connection
) -> None:
    caught_up(log, "shop", source(path))
    db.execute("INSERT INTO users (id) VALUES (1), (2), (3)")
    caught_up(log, "shop", source(path))  # also at the end of a run
    assert db.execute("SELECT count(*) FROM _penstock_shop_changes").fetchone() == (1,)
