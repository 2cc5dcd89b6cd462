"""Capture: the changes of a database as topics of the log.

source.py       the port of sources: tables, steps, positions
envelope.py     the change envelope, one for all, and what it does to a table of the log
engine.py       source to log: position and data in one append
progress.py     how far a capture is, as it is stored with every append
topics.py       the topics of a capture, with room for the columns as they are now
alive.py        which keys a table of the log has
unchanged.py    values that a source does not repeat, from the log
declared.py     a source as a program declares it, by an address or with options
outbox.py       events in the application's own transactions
pieces.py       rows of a cursor, so many at a time
running.py      several captures at once
sqlite_source.py, sqlite_tables.py, sqlite_triggers.py   SQLite, by generated triggers

postgres_source.py         PostgreSQL as a source: the first snapshot, then the stream
postgres_connection.py     the connection that asks, and the one over which changes come
postgres_catalog.py        what its catalogue says about tables; the form in which they are captured
postgres_checks.py         what has to be right before, and the SQL that mends it
postgres_slot.py           the slot and the publication of a capture
postgres_snapshot.py       rows by COPY; the snapshot at the moment a slot begins
postgres_again.py          a new snapshot of live tables, in chunks
postgres_watch.py          whether the tables are still those that are captured
postgres_unfit.py          changes that do not fit, put aside
postgres_transactions.py   messages collected into the changes of whole transactions
postgres_types.py          its types as the log's; its texts as columns
pgoutput.py                the messages of its logical decoding

mysql_source.py     MySQL and MariaDB, by the binlog: snapshots and following
mysql_server.py     connections, places in the binlog, errors
mysql_checks.py     what is in the way of a capture, and the tables there are
mysql_types.py      columns in the log's types
mysql_binlog.py     events as the server sends them
mysql_rows.py       bytes of the binlog to rows
mysql_statements.py statements of the binlog that alter or empty tables
mysql_transactions.py, mysql_steps.py   events to transactions, transactions to steps

debezium_source.py, debezium_steps.py   whatever Debezium supports
debezium_engine.py, debezium_child.py   its engine, in a process of its own
debezium_topics_source.py               topics that a Debezium server fills
debezium_json.py, debezium_types.py     its messages, in and out
debezium_postgres.py                    what it leaves behind in PostgreSQL
"""

from penstock.capture.declared import (
    Database,
    debezium,
    debezium_topics,
    mysql,
    postgres,
    source_at,
    sqlite,
)
from penstock.capture.engine import Capture

__all__ = [
    "Capture",
    "Database",
    "debezium",
    "debezium_topics",
    "mysql",
    "postgres",
    "source_at",
    "sqlite",
]
