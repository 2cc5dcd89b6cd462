"""Followers: copies of a view's changelog in other stores, each with its own offset.

table.py      what is copied: a view's name, columns and key
changes.py    many changelog records to the last change of each key
store.py      the port that every store keeps
cells.py      Arrow columns in the forms that SQL stores hold, and back
sqlite.py, postgres.py, postgres_session.py   the stores
opening.py    a store by its address
follower.py   changelog to store, and again after any failure

A store's rows and its offset change in one transaction of that store. So after a crash at any
point it holds exactly the changes before its offset.
"""

from penstock.follow.changes import fold
from penstock.follow.follower import Follower
from penstock.follow.opening import open_store
from penstock.follow.store import Progress, Sink, Store
from penstock.follow.table import TableSpec, spec_of

__all__ = ["Follower", "Progress", "Sink", "Store", "TableSpec", "fold", "open_store", "spec_of"]
