"""What is special about PostgreSQL: its encodings."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier
from tests.follow.backends import changelog, plain, upsert
from tests.servers import Postgres

import penstock as ps
from penstock.follow import Follower
from penstock.follow.postgres import PostgresStore


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_text_is_the_same_in_a_database_of_another_encoding(
    postgres: Postgres, log: ps.Log, encoding: str
) -> None:
    name = f"follow_{encoding.lower()}"
    with psycopg.connect(postgres.dsn, autocommit=True) as db:
        made = SQL("CREATE DATABASE {} ENCODING {} TEMPLATE template0 LOCALE 'C'")
        db.execute(made.format(Identifier(name), encoding))
    address = make_conninfo(postgres.dsn, dbname=name)
    topic, spec = changelog(log, "named", "id BIGINT, `größe` STRING", ("id",))
    topic.append([upsert(id=1, größe="é")])
    store = PostgresStore(address)
    Follower(topic, store, spec).step(timeout_s=0)
    assert plain(store, spec) == [{"id": 1, "größe": "é"}]
    store.close()
    with psycopg.connect(address, client_encoding="utf8") as db:
        assert db.execute("SELECT * FROM named").fetchall() == [(1, "é", 0)]
