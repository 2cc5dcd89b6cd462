"""What stands in the way of a capture is said at once, with the SQL that mends it; never with a password."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.capture.folding import Fold, follow, followed
from tests.capture.postgres_database import PostgresDatabase
from tests.servers import Postgres, Unavailable, start_postgres
from tests.waiting import wait_until

from penstock.capture.postgres_source import PostgresSource
from penstock.errors import BadOption, ChangesLost, Contended, NotAllowed, NotSupported, Unreachable
from penstock.follow.postgres import PostgresStore
from penstock.follow.table import TableSpec
from penstock.schema import RecordSchema

TABLE = "CREATE TABLE orders (id int PRIMARY KEY, n int)"


def refused(source: PostgresSource) -> NotSupported:
    with pytest.raises(NotSupported) as raised:
        source.tables()
    source.close()
    return raised.value


def test_wal_level_replica_names_the_setting(postgres: Postgres) -> None:
    with psycopg.connect(postgres.dsn, autocommit=True) as db:
        db.execute("CREATE TABLE IF NOT EXISTS capture_check (id int PRIMARY KEY)")
    error = refused(PostgresSource(postgres.dsn, name="x", tables=["capture_check"]))
    assert "wal_level is replica" in error.message
    assert "ALTER SYSTEM SET wal_level = logical" in error.hint


def test_all_problems_of_tables_are_said_at_once(database: PostgresDatabase) -> None:
    database.run(
        TABLE,
        "CREATE TABLE heap (a int, b int)",
        "CREATE TABLE nearly (a int, code text NOT NULL UNIQUE)",
        "CREATE TABLE nothing (id int PRIMARY KEY)",
        "ALTER TABLE nothing REPLICA IDENTITY NOTHING",
        "CREATE UNLOGGED TABLE fleeting (id int PRIMARY KEY)",
        "CREATE VIEW shown AS SELECT * FROM orders",
        "CREATE TABLE taken (id int PRIMARY KEY, _offset int)",
        "CREATE TABLE measured (id int, at double precision, PRIMARY KEY (id, at))",
    )
    names = ["order", "heap", "nearly", "nothing", "fleeting", "shown", "taken", "measured"]
    error = refused(database.source(tables=names))
    assert error.message.count("\n- ") == len(names)
    for remedy in (
        'did you mean "orders"?',
        'ALTER TABLE "public"."heap" ADD PRIMARY KEY ("a")',
        'ALTER TABLE "public"."nearly" REPLICA IDENTITY USING INDEX "nearly_code_key"',
        'ALTER TABLE "public"."nothing" REPLICA IDENTITY DEFAULT',
        'ALTER TABLE "public"."fleeting" SET LOGGED',
        "only tables can be captured",
        "taken: rename the column",
        'as_text=["measured.at"]',
    ):
        assert remedy in error.hint
    assert 'table "measured": column "at" is DOUBLE and cannot be part of a key.' in error.message


def test_text_for_a_column_that_there_is_not_is_refused_before_anything_is_made(
    database: PostgresDatabase,
) -> None:
    database.run(TABLE)
    with pytest.raises(BadOption, match=r'as_text names "order\.n"') as raised:
        follow(database.source(as_text=["order.n"]), Fold(), lambda: True)
    assert raised.value.hint == 'did you mean "orders.n"?'
    assert database.rows("pg_publication") == {}


@pytest.mark.parametrize("tables", [None, ["sales.orders"], ["public.sales.orders"]])
def test_tables_that_would_be_called_the_same_are_refused(
    database: PostgresDatabase, tables: list[str] | None
) -> None:
    """Otherwise rows of both would be in one topic, and each would be read again and again for the other."""
    database.run(
        "CREATE SCHEMA sales",
        "CREATE TABLE sales.orders (id int PRIMARY KEY)",
        'CREATE TABLE "sales.orders" (id int PRIMARY KEY, n int)',
    )
    error = refused(database.source(tables=tables))
    assert '"public"."sales.orders" and "sales"."orders" would both be called' in error.message
    assert error.hint == "sales.orders: rename one of them"


def test_what_followers_note_in_a_database_is_not_captured(database: PostgresDatabase) -> None:
    database.run(TABLE)
    store = PostgresStore(database.dsn)
    store.prepare(TableSpec("copy", RecordSchema.of("id BIGINT").arrow, ("id",)), "topic-1")
    store.close()
    assert [table.name for table in database.source().tables()] == ["orders"]
    assert database.source().status(None)["left_out"] == ["copy__rows"]


@pytest.mark.parametrize("remedy", [0, 1, 2])
def test_what_is_said_mends_it(database: PostgresDatabase, remedy: int) -> None:
    made = ["CREATE TABLE t (a int)", "CREATE TABLE t (a int, b int NOT NULL UNIQUE)",
            "CREATE TABLE t (a int PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY NOTHING"][remedy]  # fmt: skip
    database.run(made)
    error = refused(database.source(tables=["t"]))
    database.run(error.hint)
    assert [table.name for table in database.source(tables=["t"]).tables()] == ["t"]


def test_missing_rights_name_the_grants(database: PostgresDatabase, logical_postgres: Postgres) -> None:
    role = f"limited_{database.name}"
    database.run(TABLE, f"CREATE ROLE {role} LOGIN")
    dsn = make_conninfo(database.dsn, user=role)
    error = refused(PostgresSource(dsn, name=database.name, tables=["orders"]))
    assert error.hint.splitlines() == [
        f'ALTER ROLE "{role}" REPLICATION',
        f'GRANT SELECT ON "public"."orders" TO "{role}"',
    ]
    database.run(*error.hint.splitlines())
    error = refused(PostgresSource(dsn, name=database.name, tables=["orders"]))
    statement = error.hint.removeprefix("as the owner of the tables: ")
    assert statement.startswith(
        f'CREATE PUBLICATION "penstock_{database.name}" FOR TABLE ONLY "public"."orders"'
    )
    database.run(statement, "INSERT INTO orders VALUES (1, 1)")
    fold, end = Fold(), database.end()
    source = PostgresSource(dsn, name=database.name, tables=["orders"], heartbeat_s=0.05)
    follow(source, fold, lambda: fold.lsn >= end)
    assert fold.rows("orders") == database.rows("orders")


def test_a_schema_that_may_not_be_used_names_its_grant_once(database: PostgresDatabase) -> None:
    role = f"outside_{database.name}"
    database.run(
        "CREATE SCHEMA sales",
        *(f"CREATE TABLE sales.{name} (id int PRIMARY KEY)" for name in ("orders", "items")),
        f"CREATE ROLE {role} LOGIN REPLICATION",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA sales TO {role}",
        "CREATE PUBLICATION theirs FOR TABLE sales.orders, sales.items",
    )
    source = PostgresSource(make_conninfo(database.dsn, user=role), name=database.name, publication="theirs")
    error = refused(source)
    assert error.hint == f'GRANT USAGE ON SCHEMA "sales" TO "{role}"'
    database.run(error.hint)
    assert [table.name for table in source.tables()] == ["sales.items", "sales.orders"]
    source.close()


@pytest.mark.parametrize(
    "setting",
    [
        "default_transaction_read_only = on",
        "idle_session_timeout = '300ms'",
        "idle_in_transaction_session_timeout = '300ms'",
        "statement_timeout = '300ms'",
        "default_transaction_isolation = 'serializable'",
    ],
)
def test_what_is_set_for_a_role_is_for_its_application(database: PostgresDatabase, setting: str) -> None:
    role = f"limited_{database.name}"
    database.run(TABLE, f"CREATE ROLE {role} SUPERUSER LOGIN", f"ALTER ROLE {role} SET {setting}")
    source = PostgresSource(make_conninfo(database.dsn, user=role), name=database.name, heartbeat_s=1)
    fold, waited = Fold(), 0
    for step in followed(source, fold):
        if step is not None:
            continue
        waited += 1  # 200 ms each
        if waited == 6:
            database.run("INSERT INTO orders VALUES (1, 1)")
            end = database.end()
        if waited > 6 and fold.lsn >= end:
            break
    assert fold.rows("orders") == database.rows("orders")


def test_no_free_slot_and_a_server_that_does_not_answer(
    database: PostgresDatabase, logical_postgres: Postgres
) -> None:
    database.run(TABLE)
    for number in range(20):
        database.run(f"SELECT pg_create_physical_replication_slot('{database.name}_{number}')")
    try:
        error = refused(database.source())
        assert "max_replication_slots" in error.message
    finally:
        database.run(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            "WHERE slot_type = 'physical'"
        )
    with pytest.raises(Unreachable, match="does not answer"):
        PostgresSource("postgresql://u:secret@127.0.0.1:1/db", name="x").tables()


def test_when_all_senders_are_busy_it_says_so_but_our_own_does_not_count() -> None:
    few = ["wal_level=logical", "max_replication_slots=2", "max_wal_senders=2"]
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        try:
            server = start_postgres(Path(folder), options=few)
        except Unavailable as reason:
            pytest.skip(str(reason))
        database = PostgresDatabase.create(server.dsn)
        try:
            fold = captured(database)
            for _ in followed(database.source(), fold):
                with psycopg.connect(server.dsn, replication="database", autocommit=True):
                    error = refused(database.source(name="another"))
                    assert database.source().problems() == []
                break
            assert "all 2 WAL senders are busy" in error.message
            assert "ALTER SYSTEM SET max_wal_senders" in error.hint
        finally:
            database.let_go()
            server.stop()


def test_a_wrong_password_is_refused_and_never_shown(
    database: PostgresDatabase, logical_postgres: Postgres
) -> None:
    database.run(TABLE, "CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 'right'")
    rules = logical_postgres.folder / "data" / "pg_hba.conf"
    rules.write_text("host all guarded 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
    database.run("SELECT pg_reload_conf()")
    url = f"postgresql://guarded:{{}}@127.0.0.1:{logical_postgres.port}/{database.name}"

    def is_refused() -> bool:
        """A new rule is not in force at once."""
        try:
            PostgresSource(url.format("wrong-secret"), name="x").tables()
        except NotAllowed as error:
            assert "wrong-secret" not in f"{error} {error!r}"
            return True
        return False

    wait_until(is_refused)
    right = PostgresSource(url.format("right"), name=database.name)
    assert [table.name for table in right.tables()] == ["orders"]
    right.close()
    assert "right" not in f"{right.address} {right!r}"
    assert right.address == f"postgresql://guarded@127.0.0.1:{logical_postgres.port}/{database.name}"


@pytest.mark.parametrize(("user", "dbname"), [("postgres", "nix"), ("nix", "postgres")])
def test_a_role_or_database_that_is_not_there_is_not_waited_for(
    logical_postgres: Postgres, user: str, dbname: str
) -> None:
    url = f"postgresql://{user}@127.0.0.1:{logical_postgres.port}/{dbname}"
    with pytest.raises(NotAllowed, match='"nix" does not exist'):
        PostgresSource(url, name="x").tables()


@pytest.mark.parametrize("url", ["postgresql://u:se%cret@host/db", "host=x password=secret broken"])
def test_an_address_that_cannot_be_read_is_not_repeated(url: str) -> None:
    with pytest.raises(BadOption) as raised:
        PostgresSource(url, name="x")
    assert "cret" not in str(raised.value)


@pytest.mark.parametrize("name", ["Upper", "with-dash", "x" * 64, 'a"b'])
def test_names_that_postgres_does_not_take(name: str) -> None:
    with pytest.raises(BadOption, match="takes no slot named"):
        PostgresSource("postgresql://host/db", name="x", slot=name)


def test_a_capture_may_have_a_name_that_no_slot_can_have(database: PostgresDatabase) -> None:
    """As a database may: that is what a capture is called on the command line."""
    database.run(TABLE)
    source = database.source(name="My-Shop")
    followed(source, Fold())
    assert source.status(None)["slot"] == "penstock_my_shop"
    source.drop()


def test_tables_that_nobody_named_and_cannot_be_captured_are_told(database: PostgresDatabase) -> None:
    database.run(
        TABLE,
        "CREATE TABLE keyless (n int)",
        "CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY)",
        "CREATE TABLE parts (n int) PARTITION BY LIST (n)",
        "CREATE TABLE part PARTITION OF parts DEFAULT",
        "CREATE VIEW shown AS SELECT 1 AS id",
        "CREATE TABLE made (n int, id int GENERATED ALWAYS AS (n + 1) STORED PRIMARY KEY)",
    )
    assert database.source().status(None)["left_out"] == ["keyless", "made", "parts", "unlogged"]
    assert [table.name for table in database.source().tables()] == ["orders"]
    message = refused(database.source(tables=["made"])).message
    assert 'the key of table "made" has a generated column' in message
    assert "left_out" not in database.source(tables=["orders"]).status(None)


@pytest.mark.parametrize(
    ("columns", "table", "partition"),
    [
        ("id int PRIMARY KEY, k int NOT NULL", "DEFAULT", "NOTHING"),
        ("id int PRIMARY KEY, k int NOT NULL", "DEFAULT", "USING INDEX by_k"),
        ("id int UNIQUE NOT NULL, k int NOT NULL", "USING INDEX parts_id_key", "DEFAULT"),
        ("id int UNIQUE NOT NULL, k int NOT NULL", "FULL", "NOTHING"),
    ],
)
def test_a_partition_that_names_its_rows_otherwise_is_told_and_what_is_said_mends_it(
    database: PostgresDatabase, columns: str, table: str, partition: str
) -> None:
    database.run(
        f"CREATE TABLE parts ({columns}, n int) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (10)",
        "CREATE UNIQUE INDEX by_k ON low (k)",
        f"ALTER TABLE parts REPLICA IDENTITY {table}",
        f"ALTER TABLE low REPLICA IDENTITY {partition}",
        "INSERT INTO parts VALUES (1, 1, 1), (2, 2, 2), (3, 3, 3)",
    )
    found = refused(database.source())
    assert 'partition "low" does not name its rows by the key of "parts"' in found.message
    database.run(str(found.hint))
    fold, end = Fold(), database.end()
    follow(database.source(), fold, lambda: fold.lsn >= end)
    database.run(
        "UPDATE parts SET n = 9 WHERE id = 1",
        "DELETE FROM parts WHERE id = 2",
        "UPDATE parts SET id = 4 WHERE id = 3",
    )
    end = database.end()
    follow(database.source(), fold, lambda: fold.lsn >= end)
    assert fold.rows("parts") == database.rows("parts")


def captured(database: PostgresDatabase) -> Fold:
    database.run(TABLE, "INSERT INTO orders VALUES (1, 1)")
    fold, end = Fold(), database.end()
    follow(database.source(), fold, lambda: fold.lsn >= end)
    return fold


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("SELECT pg_drop_replication_slot('{slot}')", "is gone"),
        ("SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())", "the log only at"),
        ("DROP PUBLICATION {slot}", "its publication"),
    ],
)
def test_lost_changes_stop_it_and_a_new_snapshot_of_all_goes_on(
    database: PostgresDatabase, statement: str, reason: str
) -> None:
    fold = captured(database)
    database.run("INSERT INTO orders VALUES (2, 2)", statement.format(slot=f"penstock_{database.name}"))
    with pytest.raises(ChangesLost) as raised:
        next(iter(database.source().steps(fold.position)))
    assert reason in raised.value.message
    assert raised.value.hint.endswith(f"penstock capture resnapshot SOURCE --name {database.name}")
    database.run("DELETE FROM orders WHERE id = 1")
    end = database.end()
    follow(database.source(), fold, lambda: fold.lsn >= end, again=["*"])
    assert fold.rows("orders") == database.rows("orders") == {2: (2, 2)}


def test_wal_that_was_removed_is_lost(database: PostgresDatabase) -> None:
    fold = captured(database)
    database.run("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    try:
        lost = (
            "SELECT FROM pg_replication_slots WHERE wal_status = 'lost' "
            f"AND slot_name = 'penstock_{database.name}'"
        )

        def is_lost() -> bool:
            database.run(
                "SELECT pg_switch_wal()", "INSERT INTO orders SELECT max(id) + 1, 0 FROM orders", "CHECKPOINT"
            )
            return bool(database.query(lost))

        wait_until(is_lost, timeout_s=30)
        assert database.source().status(fold.position)["wal_status"] == "lost"
        with pytest.raises(ChangesLost, match="removed the WAL"):
            next(iter(database.source().steps(fold.position)))
    finally:
        database.run("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")


def test_an_older_copy_of_the_server_is_noticed() -> None:
    """Its slot is older too, and all that is written until it has caught up would be taken for stored."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        try:
            server = start_postgres(Path(folder), options=["wal_level=logical"])
        except Unavailable as reason:
            pytest.skip(str(reason))
        database = PostgresDatabase.create(server.dsn)
        try:
            fold, data = captured(database), Path(folder, "data")
            server.stop()
            subprocess.run(["cp", "-a", data, Path(folder, "copy")], check=True)
            server = server.started_again()
            database.run("INSERT INTO orders SELECT i, i FROM generate_series(10, 500) i")
            end = database.end()
            follow(database.source(), fold, lambda: fold.lsn >= end)
            server.stop()
            shutil.rmtree(data)
            Path(folder, "copy").rename(data)
            server = server.started_again()
            database.run("INSERT INTO orders VALUES (2, 2)")
            with pytest.raises(ChangesLost, match="an older copy: its WAL ends at"):
                next(iter(database.source().steps(fold.position)))
            end = database.end()
            follow(database.source(), fold, lambda: fold.lsn >= end, again=["*"])
            assert fold.rows("orders") == database.rows("orders") == {1: (1, 1), 2: (2, 2)}
        finally:
            database.let_go()
            server.stop()


def test_a_slot_that_another_process_reads_is_contended(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.capture.postgres_source._BUSY_S", 0.1)
    fold = captured(database)
    others = Fold(stored=fold.stored)
    for _ in followed(database.source(), others):
        with pytest.raises(Contended, match="is in use by another process"):
            next(iter(database.source().steps(others.position)))
        with pytest.raises(Contended, match="is in use"):
            database.source().drop()
        break


def test_a_slot_that_we_have_not_made_is_left_alone(database: PostgresDatabase) -> None:
    captured(database)
    with pytest.raises(Contended, match="which this capture has not made"):
        next(iter(database.source().steps(None)))


def test_a_publication_of_somebody_else_is_used_and_left(database: PostgresDatabase) -> None:
    database.run(
        TABLE, "CREATE TABLE more (id int PRIMARY KEY)", "CREATE PUBLICATION theirs FOR TABLE orders"
    )
    fold, end = Fold(), database.end()
    options = {"publication": "theirs", "tables": ["orders"]}
    follow(database.source(**options), fold, lambda: fold.lsn >= end)
    with pytest.raises(NotSupported, match="Penstock has not made it"):
        for _ in database.source(publication="theirs").steps(fold.position):
            pass
    database.source(**options).drop()
    assert database.query("SELECT pubname FROM pg_publication") == [("theirs",)]
    assert database.query("SELECT FROM pg_replication_slots WHERE database = current_database()") == []


def test_drop_leaves_nothing_and_can_be_repeated(database: PostgresDatabase) -> None:
    captured(database)
    database.source().drop()
    database.source().drop()
    assert database.query("SELECT FROM pg_publication") == []
    assert database.query("SELECT FROM pg_replication_slots WHERE database = current_database()") == []
    assert database.source().status(None)["wal_status"] == "no slot"


def test_a_quiet_table_beside_a_busy_one_does_not_hold_wal(
    database: PostgresDatabase, report: Callable[[str], None]
) -> None:
    database.run(TABLE, "CREATE TABLE busy (id int, body text)")
    fold, begun = Fold(), database.end()
    source = database.source(tables=["orders"])
    bursts, retained = 4, 1 << 62
    for _ in followed(source, fold):
        if fold.lsn >= database.end() - 8192 and bursts:
            database.run(
                "INSERT INTO busy SELECT i, repeat('x', 900) FROM generate_series(1, 10000) i", "CHECKPOINT"
            )
            bursts -= 1
        if not bursts:
            retained = source.status(fold.position)["retained_bytes"]
            if retained < 2 << 20:
                break
            database.run("CHECKPOINT")  # where PostgreSQL notes from where it can begin to decode
    written = database.end() - begun
    report(
        f"WAL of others: {written / 1e6:.1f} MB written, "
        f"{retained / 1e6:.2f} MB held by the slot of a quiet table"
    )
    assert written > 30 << 20
    assert fold.changes == []
    status = source.status(fold.position)
    assert status["lag_bytes"] < 1 << 20
    assert "max_slot_wal_keep_size" in status["advice"]
