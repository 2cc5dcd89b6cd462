"""Where a file that many processes append to ends: shared memory, next to the file.

Two slots, each with a counter and a checksum; a writer fills the older slot, so a
process killed in the middle leaves the other one whole. Only the holder of the
file's lock writes; anybody reads.

The head is exact as long as the machine runs. After a restart it is only a hint:
what it calls synced was on the disk, what it calls written may not be.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import Any

from penstock.log.disk import Disk

_SLOT = struct.Struct("<QQqQQQQQQqQQQQ16s")
_SLOT_BYTES = 256
_SIZE_BYTES = 4096
_CRC = struct.Struct("<I")
_COUNT_BYTES = 8  # the first of a slot

FAILED = 1  # a sync failed: what lies past `synced_bytes` must be cut before the next append
DELETED = 2  # the topic is gone


@dataclass(frozen=True, slots=True)
class Head:
    """The end of an append-only file."""

    base: int = 0  # first offset of the active file
    generation: int = 0  # which rewriting of that file
    written_bytes: int = 0  # bytes of whole frames
    next_offset: int = 0  # offset of the next record
    visible_offset: int = 0  # readers stop here
    visible_bytes: int = 0
    synced_bytes: int = 0  # proven to be on stable storage
    frames: int = 0  # whole frames in the file, and entries in its index
    last_time_us: int = 0  # append times never go back
    settings: int = 0  # grows with every change of the topic's settings
    files: int = 0  # grows with every change of the list of segments
    cuts: int = 0  # grows whenever recorded bytes were given up
    flags: int = 0
    transaction: bytes = b""  # the atomic append under way, if any

    def has(self, flag: int) -> bool:
        return bool(self.flags & flag)


# In the order of the class, which is the order in a slot; the last three fields are packed into two.
_NUMBERS = attrgetter(*(field.name for field in fields(Head)[:-3]))


_Slot = tuple[Any, ...]  # write count, boot, the numbers, cuts and flags, transaction


class SharedHead:
    """The head as all processes see it."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._shared = disk.shared(path, _SIZE_BYTES)
        self._boot = zlib.crc32(disk.boot_id().encode())

    def read(self) -> Head | None:
        """The head of this boot, or None when there is none to trust."""
        found = self._newest()
        return _head_of(found) if found and found[1] == self._boot else None

    def has(self, flag: int) -> bool:
        """Whether the newest head has it, without reading the rest."""
        newest = self._newest()
        return newest is not None and bool(newest[-2] & flag)

    def before_restart(self) -> Head | None:
        """What an earlier boot left behind: a lower bound for what was synced, nothing more."""
        found = self._newest()
        return _head_of(found) if found else None

    def write(self, head: Head) -> None:
        """Only while holding the lock."""
        newest = self._newest()
        count = newest[0] + 1 if newest else 1
        body = _SLOT.pack(count, self._boot, *_NUMBERS(head), head.cuts << 8 | head.flags, head.transaction)
        at = count % 2 * _SLOT_BYTES
        self._shared.view[at : at + _SLOT.size + _CRC.size] = body + _CRC.pack(zlib.crc32(body))

    def _newest(self) -> _Slot | None:
        # A writer may be filling one slot while we read; two writes within one read are tried again.
        for _ in range(100):
            newer = int(self._count(1) > self._count(0))
            # An append reads heads a dozen times: the older slot only where the newer one is not whole.
            if slot := self._slot(newer) or self._slot(1 - newer):
                return slot
            if not any(self._shared.view[: 2 * _SLOT_BYTES]):
                return None
        return None

    def _count(self, number: int) -> int:
        at = number * _SLOT_BYTES
        return int.from_bytes(self._shared.view[at : at + _COUNT_BYTES], "little")

    def _slot(self, number: int) -> _Slot | None:
        at = number * _SLOT_BYTES
        raw = bytes(self._shared.view[at : at + _SLOT.size + _CRC.size])
        body = raw[: _SLOT.size]
        # An empty slot fails too: the checksum of zeros is not zero.
        if _CRC.unpack_from(raw, _SLOT.size)[0] != zlib.crc32(body):
            return None
        return _SLOT.unpack(body)

    def close(self) -> None:
        self._shared.close()


def _head_of(slot: _Slot) -> Head:
    _, _, *numbers, cuts_and_flags, transaction = slot
    cuts, flags = divmod(cuts_and_flags, 256)
    return Head(*(*numbers, cuts, flags, transaction.rstrip(b"\0")))
