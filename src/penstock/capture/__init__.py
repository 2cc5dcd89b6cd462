"""Capture: the changes of a database as topics of the log.

source.py       the port of sources: tables, steps, positions
envelope.py     the change envelope, one for all, and what it does to a table of the log
engine.py       source to log: position and data in one append
progress.py     how far a capture is, as it is stored with every append
topics.py       the topics of a capture, with room for the columns as they are now
alive.py        which keys a table of the log has
unchanged.py    values that a source does not repeat, from the log
declared.py     a source as a program declares it, by an address or with options
sqlite.py, sqlite_tables.py, sqlite_triggers.py   SQLite, by generated triggers
debezium_source.py, debezium_steps.py             whatever Debezium supports
debezium_engine.py, debezium_child.py             its engine, in a process of its own
debezium_topics_source.py                         topics that a Debezium server fills
debezium_json.py, debezium_types.py               its messages, in and out
debezium_postgres.py                              what it leaves behind in PostgreSQL
"""

from penstock.capture.declared import Database, debezium, debezium_topics, postgres, source_at, sqlite
from penstock.capture.engine import Capture

__all__ = ["Capture", "Database", "debezium", "debezium_topics", "postgres", "source_at", "sqlite"]
