"""Event sourcing: decisions recorded for ever, and the state that follows from them.

aggregate.py       what a program writes: state, commands, and what events do to the state
kinds.py           the kinds of events of an aggregate, by name and version
data.py            a dataclass as JSON and back
entry.py           an event as it is recorded; what a command gives back
sealing.py         personal fields, which only the key of their subject opens
mapper.py          the one place where an event becomes stored bytes, and back
store.py           the port of stores: the recorders of the `eventsourcing` library, waking, lists
sqlite_store.py, postgres_store.py   the stores
failures.py        what databases say, as errors of ours
book.py            loading, deciding, recording: the aggregates of one kind in one store
published.py       events as records of a topic; where a receipt is in it
publisher.py       store to log: events and the position they lead to, in one append
"""

from penstock.erasure.marks import Personal, personal
from penstock.sourcing.aggregate import Aggregate, applies, command
from penstock.sourcing.entry import Entry, Receipt
from penstock.sourcing.kinds import event

__all__ = ["Aggregate", "Entry", "Personal", "Receipt", "applies", "command", "event", "personal"]
