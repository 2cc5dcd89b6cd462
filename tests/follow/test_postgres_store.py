"""What is special about PostgreSQL: its encodings, the names it has taken, and what fits into an index."""

from __future__ import annotations

import random
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier
from tests.follow.backends import PostgresBackend, changelog, plain, upsert
from tests.servers import Postgres

import penstock as ps
from penstock.errors import BadOption, BadRecord
from penstock.follow import Follower, TableSpec
from penstock.follow.postgres import PostgresStore
from penstock.schema import RecordSchema


@pytest.fixture
def backend(postgres: Postgres) -> Iterator[PostgresBackend]:
    made = PostgresBackend.create(postgres.dsn)
    yield made
    made.close()


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


def test_names_that_every_table_has_are_refused(backend: PostgresBackend) -> None:
    boxes = TableSpec("boxes", RecordSchema.of("id BIGINT, xmin DOUBLE, xmax DOUBLE").arrow, ("id",))
    with pytest.raises(BadOption, match='"xmin"'):
        backend.open().prepare(boxes, "log-1")


def test_a_key_that_no_index_takes_ends_the_follower_with_a_reason(
    backend: PostgresBackend, log: ps.Log
) -> None:
    topic, spec = changelog(log, "pages", "url STRING", ("url",))
    topic.append([upsert(url=random.Random(1).randbytes(9_000).hex())])
    with pytest.raises(BadRecord, match="2,700 bytes"):
        Follower(topic, backend.open(), spec).step(timeout_s=0)
