"""A topic as one process has it open: its settings, partitions, readers, and the bell that wakes waiters."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.clock import Clock
from penstock.errors import BadOption, StorageError, UnknownTopic
from penstock.log import settings, signal
from penstock.log.disk import Disk
from penstock.log.ledger import Ledger
from penstock.log.partition import Committed, Partition
from penstock.log.reader import PartitionReader
from penstock.log.settings import TopicSettings

_READERS_KEPT = 64


class OpenTopic:
    """Thread-safe."""

    def __init__(self, disk: Disk, clock: Clock, ledger: Ledger, folder: Path, found: TopicSettings) -> None:
        self.name, self.id = found.name, found.id
        self.folder = folder
        self._disk, self._clock, self._ledger = disk, clock, ledger
        self._settings = found
        self._durable_version = 0
        self._partitions: dict[int, Partition] = {}
        self._readers: dict[int, list[PartitionReader]] = {}
        # The garbage collector may close a reader that nobody reads any more while this thread holds it.
        self._mutex = threading.RLock()
        self._shared = disk.shared(self.folder / "signal", 4096)
        self._words = self._shared.view.cast("I")

    def is_deleted(self) -> bool:
        try:
            return self.partition(0).is_deleted()
        except StorageError:
            if settings.load(self._disk, self.folder) is None:
                return True
            raise

    def settings(self) -> TopicSettings:
        """As of the last time a partition showed that they changed; refreshed here from its head."""
        if self.partition(0).head().settings not in {self._settings.version, 0}:
            self.reload()
        return self._settings

    def reload(self) -> TopicSettings:
        found = settings.load(self._disk, self.folder)
        if found is None:
            raise UnknownTopic(self.name)
        self._settings = found
        return found

    def make_durable(self) -> None:
        """Before writing under these settings: whoever stored them may have died before syncing them."""
        version = self._settings.version
        if version != self._durable_version:
            self._disk.sync_folder(self.folder)
            self._durable_version = version

    def at_version(self, version: int) -> TopicSettings:
        return self._settings if version in {self._settings.version, 0} else self.reload()

    def partition(self, number: int) -> Partition:
        with self._mutex:
            if number not in self._partitions:
                if number >= self._settings.partitions:
                    self.reload()
                if not 0 <= number < self._settings.partitions:
                    raise BadOption(
                        f'topic "{self.name}" has no partition {number}.',
                        hint=f"choose 0 to {self._settings.partitions - 1}",
                    )
                self._partitions[number] = Partition(
                    self._disk, self._clock, self.folder / str(number), topic=self.name, number=number,
                    settings=self.reload, transactions=_PartitionLedger(self._ledger, self.name, number),
                )  # fmt: skip
            return self._partitions[number]

    def partitions(self) -> list[Partition]:
        return [self.partition(number) for number in range(self.settings().partitions)]

    @contextlib.contextmanager
    def reading(self, number: int) -> Iterator[PartitionReader]:
        """A reader of this partition that nobody else uses meanwhile."""
        partition_ = self.partition(number)
        with self._mutex:
            idle = self._readers.setdefault(number, [])
            reader = idle.pop() if idle else PartitionReader(partition_, self.at_version)
        try:
            yield reader
        finally:
            with self._mutex:
                if len(idle) < _READERS_KEPT:
                    idle.append(reader)

    def signal(self) -> None:
        self._words[0] = signal.stamp()
        self._shared.wake(0)

    def wait(self, ends: Mapping[int, int], timeout_s: float) -> bool:
        monotonic = self._clock.monotonic
        deadline = monotonic() + timeout_s
        while True:
            seen = self._words[0]
            if any(self.partition(number).head().visible_offset > end for number, end in ends.items()):
                return True
            left = deadline - monotonic()
            if left <= 0:
                return False
            self._shared.wait(0, seen, min(left, 1.0))

    def close(self) -> None:
        for readers in self._readers.values():
            for reader in readers:
                reader.close()
        for partition_ in self._partitions.values():
            partition_.close()
        self._words.release()
        self._shared.close()


@dataclass(frozen=True, slots=True)
class _PartitionLedger:
    ledger: Ledger
    topic: str
    partition: int

    def outcome(self, transaction: str) -> Committed | None:
        return self.ledger.outcome(transaction, self.topic, self.partition)

    def was_committed(self, transaction: str) -> bool:
        return self.ledger.was_committed(transaction)
