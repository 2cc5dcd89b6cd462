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
running.py      several captures at once
sqlite_source.py, sqlite_tables.py, sqlite_triggers.py   SQLite, by generated triggers
"""

from penstock.capture.declared import Database, postgres, source_at, sqlite
from penstock.capture.engine import Capture

__all__ = ["Capture", "Database", "postgres", "source_at", "sqlite"]
