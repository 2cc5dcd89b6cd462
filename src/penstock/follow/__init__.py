"""Followers: what a view, stream or table has, also elsewhere, each with its own offset.

table.py      what is copied: a name, columns and a key
feed.py       what the records of a view, stream or table mean
changes.py    many changelog records to the last change of each key
store.py      the ports: a sink takes what happens, a store can also be read
follower.py   a topic to a sink, and again after any failure
gaps.py       deletes that compaction has taken
to.py, target.py   what `to=` says; `ps.to`
opening.py    a store by its address
where.py, subset.py, token.py   what a subscriber wants, has, and where it is

Rows by their key:
cells.py      Arrow columns in the forms that SQL stores hold, and back
documents.py  rows as JSON, keys as text
sqlite.py, postgres.py, postgres_session.py   the stores
redis.py, search.py, delta.py                 the other sinks

Each record:
parquet.py    an archive
deliveries.py, positions.py   at least once, to those who keep no offset; what is refused
webhook.py, mail.py           the senders

Rows and their offset change in one transaction of the store. So after a crash at any point it holds
exactly the changes before its offset.
"""

from penstock.follow import to
from penstock.follow.changes import fold
from penstock.follow.follower import Follower
from penstock.follow.opening import open_store
from penstock.follow.store import Progress, Sink, Store
from penstock.follow.table import TableSpec, spec_of

__all__ = ["Follower", "Progress", "Sink", "Store", "TableSpec", "fold", "open_store", "spec_of", "to"]
