"""Consumer groups: who reads which partition, and how far they are. One SQLite file.

A member holds a lease that each poll renews, and a lock on a file of its own: when its
process dies the lock is free, so the others know at once; when it only stops polling,
the lease runs out. Partitions move without overlap: the old owner first commits and
releases, unless it is dead.

A commit counts only for the owner, in the term it was given: one row or an error.
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from penstock.clock import Clock
from penstock.errors import BadOption, Contended, DiskFull, LockTimeout, NotOwner, StorageError
from penstock.fork import Connected
from penstock.log.balance import balanced
from penstock.log.disk import RealLock
from penstock.log.port import Assignment, MemberInfo, Owned
from penstock.log.settings import TopicSettings

_BUSY_S = 10.0
_TABLES = """
CREATE TABLE IF NOT EXISTS commits (
    grp TEXT, topic TEXT, part INTEGER, offset INTEGER NOT NULL, at_us INTEGER NOT NULL,
    PRIMARY KEY (grp, topic, part)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS members (
    grp TEXT, topic TEXT, member TEXT, boot TEXT NOT NULL, lease_until REAL NOT NULL, joined INTEGER NOT NULL,
    PRIMARY KEY (grp, topic, member)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS owners (
    grp TEXT, topic TEXT, part INTEGER, owner TEXT, wanted TEXT, term INTEGER NOT NULL,
    PRIMARY KEY (grp, topic, part)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS holds (
    name TEXT, topic TEXT, part INTEGER, offset INTEGER NOT NULL, reason TEXT NOT NULL,
    PRIMARY KEY (name, topic, part)) WITHOUT ROWID;
"""


class GroupStore(Connected):
    """Thread-safe; one object per process."""

    def __init__(self, path: Path, clock: Clock, boot_id: str) -> None:
        super().__init__()
        self._path, self._clock, self._boot = path, clock, boot_id

    # ---- commits ---------------------------------------------------------------------------

    def committed(self, group: str, topic: str) -> dict[int, int]:
        with self._reading() as db:
            return dict(
                db.execute("SELECT part, offset FROM commits WHERE grp=? AND topic=?", (group, topic))
            )

    def commit(
        self, group: str, topic: str, member: str, terms: Mapping[int, int], offsets: Mapping[int, int]
    ) -> None:
        with self._writing(durable=True) as db:
            lost = [
                part for part in offsets if not self._owns(db, group, topic, member, part, terms.get(part))
            ]
            if lost:
                raise NotOwner(group, topic, lost)
            self._store(db, group, topic, offsets)

    def _owns(
        self, db: sqlite3.Connection, group: str, topic: str, member: str, part: int, term: int | None
    ) -> bool:
        found = db.execute(
            "SELECT 1 FROM owners WHERE grp=? AND topic=? AND part=? AND owner=? AND term=?",
            (group, topic, part, member, term),
        ).fetchone()
        return found is not None

    def _store(self, db: sqlite3.Connection, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        now_us = self._clock.now_us()
        db.executemany(
            "INSERT INTO commits VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET offset = excluded.offset, at_us = excluded.at_us",
            [(group, topic, part, offset, now_us) for part, offset in offsets.items()],
        )

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        with self._writing(durable=True) as db:
            self._drop_dead(db, group, topic)
            members = self._members(db, group, topic)
            if members:
                running = "1 running member" if len(members) == 1 else f"{len(members)} running members"
                raise Contended(
                    f'group "{group}" has {running} on "{topic}".',
                    hint="stop every member first; a running one would go on from where it is",
                )
            self._store(db, group, topic, offsets)

    # ---- members -----------------------------------------------------------------------------

    def join(
        self, group: str, topic: str, *, lease_s: float, settings: Callable[[], TopicSettings]
    ) -> GroupMember:
        return GroupMember(self, group, topic, lease_s, settings)

    def lock_of(self, member: str) -> RealLock:
        folder = self._path.with_name("members")
        folder.mkdir(exist_ok=True)
        return RealLock(folder / member, f"member {member}")

    def poll(
        self, group: str, topic: str, member: str, lease_s: float, settings: TopicSettings
    ) -> Assignment:
        with self._writing(durable=False) as db:
            self._renew(db, group, topic, member, lease_s)
            self._drop_dead(db, group, topic, but=member)
            self._rebalance(db, group, topic, settings)
            return self._assignment(db, group, topic, member)

    def _renew(self, db: sqlite3.Connection, group: str, topic: str, member: str, lease_s: float) -> None:
        until = self._clock.monotonic() + lease_s
        db.execute(
            "INSERT INTO members VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET lease_until = excluded.lease_until, boot = excluded.boot",
            (group, topic, member, self._boot, until, self._clock.now_us()),
        )

    def _drop_dead(self, db: sqlite3.Connection, group: str, topic: str, *, but: str = "") -> None:
        rows = db.execute(
            "SELECT member, boot, lease_until FROM members WHERE grp=? AND topic=? AND member<>?",
            (group, topic, but),
        ).fetchall()
        for member, boot, until in rows:
            if boot != self._boot or until < self._clock.monotonic() or self._died(member):
                self._drop(db, group, topic, member)

    def _died(self, member: str) -> bool:
        lock = self.lock_of(member)
        free = lock.try_acquire()
        if free:
            lock.release()
        lock.close()
        return free

    def _drop(self, db: sqlite3.Connection, group: str, topic: str, member: str) -> None:
        db.execute("DELETE FROM members WHERE grp=? AND topic=? AND member=?", (group, topic, member))
        db.execute("UPDATE owners SET owner=NULL WHERE grp=? AND topic=? AND owner=?", (group, topic, member))
        if self._died(member):
            self._path.with_name("members").joinpath(member).unlink(missing_ok=True)

    def _members(self, db: sqlite3.Connection, group: str, topic: str) -> list[str]:
        rows = db.execute(
            "SELECT member FROM members WHERE grp=? AND topic=? ORDER BY joined, member", (group, topic)
        )
        return [row[0] for row in rows]

    # ---- assignment ---------------------------------------------------------------------------

    def _rebalance(self, db: sqlite3.Connection, group: str, topic: str, settings: TopicSettings) -> None:
        rows = db.execute(
            "SELECT part, owner, wanted FROM owners WHERE grp=? AND topic=?", (group, topic)
        ).fetchall()
        members = self._members(db, group, topic)
        # Who is no member has nothing: a partition may have been handed to one that left meanwhile.
        owners = {part: owner if owner in members else None for part, owner, _ in rows}
        wanted_before = {part: wanted for part, _, wanted in rows}
        wanted = balanced(self._readable(db, group, topic, settings), members, wanted_before)
        for part, member in wanted.items():
            owner = owners.get(part)
            if owner is None and member is not None:
                self._give(db, group, topic, part, member)
            elif member != wanted_before.get(part):
                db.execute(
                    "UPDATE owners SET wanted=? WHERE grp=? AND topic=? AND part=?",
                    (member, group, topic, part),
                )

    def _give(self, db: sqlite3.Connection, group: str, topic: str, part: int, member: str) -> None:
        db.execute(
            "INSERT INTO owners VALUES (?, ?, ?, ?, ?, 1) "
            "ON CONFLICT DO UPDATE SET owner = excluded.owner, wanted = excluded.wanted, term = term + 1",
            (group, topic, part, member, member),
        )

    def _readable(self, db: sqlite3.Connection, group: str, topic: str, settings: TopicSettings) -> list[int]:
        """Partitions the group may read now.

        When a topic grew to a multiple of its partitions, the keys of a new partition all
        come from one old one: it waits until the group has read that one up to the change,
        so that order per key holds.
        """
        done = dict(db.execute("SELECT part, offset FROM commits WHERE grp=? AND topic=?", (group, topic)))
        waiting = {
            part
            for added in settings.grown
            if added.after % added.before == 0
            for part in range(added.before, added.after)
            if done.get(part % added.before, 0) < added.ends[part % added.before]
        }
        return [part for part in range(settings.partitions) if part not in waiting]

    def _assignment(self, db: sqlite3.Connection, group: str, topic: str, member: str) -> Assignment:
        rows = db.execute(
            "SELECT o.part, o.term, o.wanted, c.offset FROM owners o "
            "LEFT JOIN commits c ON c.grp=o.grp AND c.topic=o.topic AND c.part=o.part "
            "WHERE o.grp=? AND o.topic=? AND o.owner=?",
            (group, topic, member),
        ).fetchall()
        owned = {part: Owned(term, offset, revoked=wanted != member) for part, term, wanted, offset in rows}
        expecting = db.execute(
            "SELECT 1 FROM owners WHERE grp=? AND topic=? AND wanted=?", (group, topic, member)
        ).fetchone()
        return Assignment(owned, waiting=expecting is None)

    def release(self, group: str, topic: str, member: str, partitions: Iterable[int]) -> None:
        with self._writing(durable=False) as db:
            for part in partitions:
                db.execute(
                    "UPDATE owners SET owner=wanted, term=term+1 "
                    "WHERE grp=? AND topic=? AND part=? AND owner=? AND wanted IS NOT owner",
                    (group, topic, part, member),
                )

    def leave(self, group: str, topic: str, member: str) -> None:
        with self._writing(durable=False) as db:
            self._drop(db, group, topic, member)

    # ---- what commands show --------------------------------------------------------------------

    def groups(self) -> list[tuple[str, str]]:
        with self._reading() as db:
            return db.execute(
                "SELECT grp, topic FROM commits UNION SELECT grp, topic FROM members ORDER BY 1, 2"
            ).fetchall()

    def members(self, group: str, topic: str) -> list[MemberInfo]:
        with self._writing(durable=False) as db:
            self._drop_dead(db, group, topic)
            rows = db.execute(
                "SELECT owner, part FROM owners WHERE grp=? AND topic=? AND owner IS NOT NULL ORDER BY part",
                (group, topic),
            ).fetchall()
            found = []
            for member in self._members(db, group, topic):
                parts = tuple(part for owner, part in rows if owner == member)
                found.append(MemberInfo(member, parts, waiting=not parts))
            return found

    def forget_topic(self, topic: str) -> None:
        with self._writing(durable=True) as db:
            db.execute("DELETE FROM commits WHERE topic=?", (topic,))
            db.execute("DELETE FROM members WHERE topic=?", (topic,))
            db.execute("DELETE FROM owners WHERE topic=?", (topic,))
            db.execute("DELETE FROM holds WHERE topic=?", (topic,))

    # ---- holds: what retention must not take -----------------------------------------------------

    def hold(self, name: str, topic: str, offsets: Mapping[int, int], *, reason: str) -> None:
        """Records from these offsets on stay until the hold moves or is let go."""
        with self._writing(durable=True) as db:
            db.executemany(
                "INSERT INTO holds VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET offset = excluded.offset, reason = excluded.reason",
                [(name, topic, part, offset, reason) for part, offset in offsets.items()],
            )

    def let_go(self, name: str) -> None:
        with self._writing(durable=True) as db:
            db.execute("DELETE FROM holds WHERE name=?", (name,))

    def holds(self, topic: str, part: int) -> list[tuple[str, int, str]]:
        """(name, offset, reason), the most demanding first."""
        with self._reading() as db:
            return db.execute(
                "SELECT name, offset, reason FROM holds WHERE topic=? AND part=? ORDER BY offset",
                (topic, part),
            ).fetchall()

    # ---- the database -------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._mutex, self._storage_errors():
            yield self._open()

    @contextmanager
    def _writing(self, *, durable: bool) -> Iterator[sqlite3.Connection]:
        with self._mutex, self._storage_errors():
            db = self._open()
            # A lost lease costs nothing after a restart, so only commits wait for the disk.
            db.execute("PRAGMA synchronous=FULL" if durable else "PRAGMA synchronous=NORMAL")
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:  # SQLite may have rolled back by itself
                    db.execute("ROLLBACK")
                raise

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            if "locked" in str(error):
                raise LockTimeout("the table of consumer groups", waited_s=_BUSY_S) from error
            if "full" in str(error):
                raise DiskFull(self._path) from error
            raise StorageError(f"{self._path}: {error}.", hint="check the disk, or restore it") from error

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            db = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            try:
                db.execute("PRAGMA journal_mode=WAL")
                db.executescript(_TABLES)
            except sqlite3.Error:
                db.close()
                raise
            self._db = db
        return self._db


class GroupMember:
    """The Member port on the group store."""

    def __init__(
        self, store: GroupStore, group: str, topic: str, lease_s: float, settings: Callable[[], TopicSettings]
    ) -> None:
        self._pid = os.getpid()
        self.member = f"{self._pid}-{uuid.uuid4().hex[:8]}"
        self._store, self._group, self._topic = store, group, topic
        self._lease_s, self._settings = lease_s, settings
        self._terms: dict[int, int] = {}
        self._alive = store.lock_of(self.member)
        self._alive.acquire(1.0)

    def poll(self) -> Assignment:
        self._check_process()
        assignment = self._store.poll(self._group, self._topic, self.member, self._lease_s, self._settings())
        self._terms = {part: owned.term for part, owned in assignment.partitions.items()}
        return assignment

    def commit(self, offsets: Mapping[int, int]) -> None:
        self._check_process()
        self._store.commit(self._group, self._topic, self.member, self._terms, offsets)

    def release(self, partitions: Iterable[int]) -> None:
        self._store.release(self._group, self._topic, self.member, partitions)

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise BadOption(
                "this consumer belongs to the process that this one was forked from.",
                hint="join the group after the fork",
            )

    def leave(self) -> None:
        if self._pid != os.getpid():
            return
        self._store.leave(self._group, self._topic, self.member)
        self._alive.release()
        self._alive.close()
        self._store.lock_of(self.member)._path.unlink(missing_ok=True)
