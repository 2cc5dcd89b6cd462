"""Where a subscriber is, as a short text that it keeps and hands back.

It holds how far each partition was read, the time by which all that came before was seen, and two
fingerprints: of the topic, since another one may have taken its name, and of what was subscribed to.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import xxhash

from penstock.errors import BadOption

_HEAD = struct.Struct(">B8s4sq")
_FORM = 1


@dataclass(frozen=True, slots=True)
class FeedPosition:
    topic: bytes  # fingerprint of its id
    wanted: bytes  # fingerprint of the condition and the columns
    seen_us: int  # what was appended before, save in the last moments, has been read
    ends: tuple[int, ...]  # by partition

    @classmethod
    def of(cls, topic_id: str, wanted: str, seen_us: int, ends: Iterable[int]) -> FeedPosition:
        topic = xxhash.xxh3_64_digest(topic_id.encode())
        return cls(topic, xxhash.xxh32_digest(wanted.encode()), seen_us, tuple(ends))

    @property
    def ends_by_partition(self) -> dict[int, int]:
        return dict(enumerate(self.ends))

    def encode(self) -> str:
        head = _HEAD.pack(_FORM, self.topic, self.wanted, self.seen_us)
        ends = b"".join(map(_number, self.ends))
        return base64.urlsafe_b64encode(head + ends).decode().rstrip("=")

    @classmethod
    def decode(cls, text: object) -> FeedPosition:
        """Raises BadOption for what is none."""
        try:
            if not isinstance(text, str):
                raise TypeError("it is no text")
            data = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
            form, topic, wanted, seen_us = _HEAD.unpack_from(data)
            if form != _FORM:
                raise ValueError("it is of another form")
            return cls(topic, wanted, seen_us, tuple(_numbers(data[_HEAD.size :])))
        except (TypeError, ValueError, struct.error) as error:
            raise BadOption(
                f"after={text!r} is no position of a feed.", hint="give change.position or feed.position"
            ) from error


def _number(value: int) -> bytes:
    """Seven bits in a byte, the lowest first; the eighth says that more follow."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _numbers(data: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value = shift = 0
    if shift:
        raise ValueError("it is cut short")
