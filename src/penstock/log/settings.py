"""What is fixed about a topic: `topic.json`, replaced atomically, numbered by version."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa
import xxhash

from penstock.erasure import columns
from penstock.erasure.columns import Columns, OnForgotten, PersonalColumn
from penstock.errors import BadName, BadOption, BadSchema, StorageError
from penstock.log import disk as disks
from penstock.log import keys
from penstock.log.disk import Disk
from penstock.schema import RecordSchema

NAME = "topic.json"
_VALID_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_PARTITIONS_MAX = 10_000
_NUMBERS = (
    "partitions",
    "retention_ms",
    "retention_bytes",
    "tombstone_ms",
    "history_ms",
    "segment_bytes",
    "segment_ms",
    "record_bytes_max",
    "lateness_ms",
    "idle_after_ms",
    "ahead_ms",
    "offline_ms",
)

Cleanup = Literal["delete", "compact"]
Durability = Literal["fsync", "os"]
Format = Literal["json", "avro"]


@dataclass(frozen=True, slots=True)
class PartitionsAdded:
    """The moment a topic got more partitions: keys may live elsewhere from these offsets on."""

    before: int
    after: int
    ends: tuple[int, ...]  # end of each old partition at that moment
    at_us: int


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Everything a topic is declared with. Times in milliseconds, sizes in bytes, None for no limit."""

    name: str
    schema: RecordSchema
    partitions: int = 1
    key: tuple[str, ...] = ()
    event_time: str | None = None
    sent_time: str | None = None  # with this, event_time is by the same clock and corrected by it
    received_time: str | None = None  # None: the append time
    offline_ms: int = 30 * 86_400_000  # sent longer than this after it occurred: an absurd clock
    lateness_ms: int = 5_000  # how far out of order events may come and still be in time
    idle_after_ms: int = 30_000  # without appends for so long, event time goes on with wall time
    ahead_ms: int = 3_600_000  # an event time further than this ahead of its append is no event time
    cleanup: Cleanup = "delete"
    retention_ms: int | None = None
    retention_bytes: int | None = None
    tombstone_ms: int = 86_400_000
    history_ms: int | None = None  # of a table: compaction leaves a version so long after it was replaced
    segment_bytes: int = 64 << 20
    segment_ms: int = 7 * 86_400_000
    record_bytes_max: int = 1 << 20
    durability: Durability = "fsync"
    archive: bool = False
    personal: Columns = ()  # stored sealed, each under the key of its record's subject
    on_forgotten: OnForgotten = "refuse"  # what becomes of a record whose subject was forgotten
    format: Format | None = None  # of messages on Kafka; None: what is usual in the cluster
    version: int = 1
    id: str = ""  # given when it is created: another topic of the same name has another one
    grown: tuple[PartitionsAdded, ...] = ()

    def __post_init__(self) -> None:
        check_name("topic", self.name)
        keys.check_key(self.schema, self.key)
        self._check_numbers()
        if not 1 <= self.partitions <= _PARTITIONS_MAX:
            raise BadOption(f"{self.partitions} partitions.", hint=f"choose 1 to {_PARTITIONS_MAX:,}")
        if self.cleanup not in get_args(Cleanup):
            raise BadOption(f"cleanup={self.cleanup!r}.", hint='choose "delete" or "compact"')
        if self.durability not in get_args(Durability):
            raise BadOption(f"durability={self.durability!r}.", hint='choose "fsync" or "os"')
        if self.format not in (None, *get_args(Format)):
            raise BadOption(f"format={self.format!r}.", hint='choose "json" or "avro"')
        if self.on_forgotten not in get_args(OnForgotten):
            raise BadOption(f"on_forgotten={self.on_forgotten!r}.", hint='choose "refuse" or "blank"')
        columns.check(self.personal, self.schema, self.key)
        if self.compacted and not self.key:
            raise BadOption("a compacted topic needs a key.", hint='declare it with key="column"')
        self._check_event_time()

    def _check_event_time(self) -> None:
        for column in (self.event_time, self.sent_time, self.received_time):
            if column and not pa.types.is_timestamp(self.schema.field(column).type):
                raise BadSchema(f'event time "{column}" is no timestamp.', hint="declare it as TIMESTAMP")

    def _check_numbers(self) -> None:
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is None and name.startswith(("retention", "history")):
                continue
            if not isinstance(value, int) or value < 0:
                raise BadOption(f"{name}={value!r}.", hint="give a whole number that is not negative")

    @property
    def compacted(self) -> bool:
        return self.cleanup == "compact"

    @property
    def segment_age_us_max(self) -> int:
        """When a segment is sealed however small it is: retention can only remove whole segments."""
        retained_ms = self.segment_ms * 4 if self.retention_ms is None else self.retention_ms
        age_ms = min(self.segment_ms, retained_ms // 4)
        return age_ms * 1_000

    @property
    def stored(self) -> pa.Schema:
        """The columns on disk: the user's, and where records can be deleted, a mark for that.

        A delete fills nothing but the key, so there the other columns may be null.
        """
        if not self.compacted:
            return self.schema.arrow
        fields = [f if f.name in self.key else f.with_nullable(True) for f in self.schema.arrow]
        return pa.schema([*fields, pa.field("_deleted", pa.bool_(), nullable=False)])

    @property
    def read_schema(self) -> pa.Schema:
        """The columns readers get."""
        return pa.schema([*SYSTEM_FIELDS, *self.stored])

    def to_json(self) -> dict[str, object]:
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            **plain,
            "schema": self.schema.ddl,
            "key": list(self.key),
            "personal": [asdict(each) for each in self.personal],
            "grown": [asdict(added) for added in self.grown],
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> TopicSettings:
        grown = tuple(PartitionsAdded(**{**g, "ends": tuple(g["ends"])}) for g in stored["grown"])
        schema, key = RecordSchema.of(stored["schema"]), tuple(stored["key"])
        personal = tuple(PersonalColumn(**each) for each in stored.get("personal", ()))
        return cls(**{**stored, "schema": schema, "key": key, "grown": grown, "personal": personal})


def altered(
    current: TopicSettings, wanted: TopicSettings, *, ends: tuple[int, ...], now_us: int
) -> TopicSettings:
    """What a topic becomes, or why it cannot. `ends`: of its partitions, now."""
    schema = current.schema.evolve_to(wanted.schema)
    if wanted.key != current.key or not keys_stay(current.schema, schema, current.key):
        raise BadOption("a topic's key cannot change.", hint="create a new topic and copy the records")
    columns.check_unchanged(current.personal, wanted.personal, current.schema)
    if current.format not in (None, wanted.format):
        raise BadOption(
            f"a topic of {current.format} stays one: its records are stored so.",
            hint="create a new topic and copy the records",
        )
    if current.compacted and not wanted.compacted:
        raise BadOption(
            "a compacted topic stays compacted: its deletes would come back as records.",
            hint="create a new topic",
        )
    if wanted.partitions < current.partitions:
        raise BadOption(
            f"{current.partitions} partitions cannot become {wanted.partitions}.",
            hint="partitions can only be added; create a new topic for fewer",
        )
    grown = current.grown
    if wanted.partitions > current.partitions:
        if current.compacted or wanted.compacted:
            raise BadOption(
                "a compacted topic cannot get more partitions: moved keys would stay in their old one.",
                hint="create a new topic with more partitions and copy the records",
            )
        grown = (*grown, PartitionsAdded(current.partitions, wanted.partitions, ends, now_us))
    return replace(wanted, id=current.id, schema=schema, grown=grown, version=current.version + 1)


def keys_stay(older: RecordSchema, newer: RecordSchema, key: tuple[str, ...]) -> bool:
    """Whether every key keeps its bytes, and so its partition: an integer's do when it is widened."""
    types = [(older.field(column).type, newer.field(column).type) for column in key]
    return all(a == b or (pa.types.is_integer(a) and pa.types.is_integer(b)) for a, b in types)


SYSTEM_FIELDS = (
    pa.field("_partition", pa.int32(), nullable=False),
    pa.field("_offset", pa.int64(), nullable=False),
    pa.field("_timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
)


def check_name(kind: str, name: object) -> None:
    """Names become folder names, so nothing but the plainest characters."""
    if not isinstance(name, str) or not _VALID_NAME.fullmatch(name) or name in {".", ".."}:
        raise BadName(kind, str(name))


def store(disk: Disk, folder: Path, settings: TopicSettings) -> None:
    stored = settings.to_json()
    disks.replace(disk, folder / NAME, json.dumps({**stored, "sum": _sum(stored)}, indent=1).encode())


def _sum(stored: dict[str, object]) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(stored, sort_keys=True).encode())


def load(disk: Disk, folder: Path) -> TopicSettings | None:
    """None when there is no such topic."""
    try:
        stored = json.loads(disk.read(folder / NAME))
        if stored.pop("sum") != _sum(stored):
            raise ValueError("its checksum does not match")
        return TopicSettings.from_json(stored)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(
            f"{folder / NAME} cannot be read ({error}).",
            hint="restore that file from a backup; the records are intact",
        ) from error
