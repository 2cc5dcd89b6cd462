"""Copies of rows in Delta Lake tables, one in `<path>/<name>` for each view, stream or table.

A chunk is one commit that merges rows by their key. The same commit holds an application transaction for
each partition: its id says which changelog and columns, its version is the offset. So a chunk is in the table
once or not yet. `penstock:<name>` counts how often the table was begun anew: what was said before is void.

Old versions of the table stay until somebody vacuums it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from penstock.errors import Contended, StorageError
from penstock.follow.changes import DELETE, UPSERT, Changed, changed
from penstock.follow.store import CHUNK_RECORDS, Held, Progress, Watch, checked, unwatched
from penstock.follow.table import TableSpec

_OP = "_op"


class DeltaSink:
    """Each call opens the table as it is now; commits of two followers exclude each other."""

    keyed, chunk_records = True, CHUNK_RECORDS

    def __init__(self, path: Path, *, gather_s: float = 0.0, watch: Watch = unwatched) -> None:
        self._path, self.gather_s, self._watch = path, gather_s, watch
        self._prepared: dict[str, tuple[TableSpec, str]] = {}
        # Offsets without changes need no commit: up to where, since the table said what.
        self._passed: dict[str, tuple[Progress, Progress]] = {}

    def __repr__(self) -> str:
        return f"<DeltaSink {self._path}>"

    def prepare(self, spec: TableSpec, changelog_id: str) -> Progress:
        self._prepared[spec.name] = spec, changelog_id
        progress = self.progress(spec.name)
        if progress is None:
            self._begin(spec, changelog_id)
            progress = Progress(0)
        return progress

    def apply(
        self, spec: TableSpec, changes: pa.Table, *, from_offset: int, next_offset: int, partition: int = 0
    ) -> None:
        todo = changed(spec, changes)
        _, changelog_id = self._prepared.get(spec.name, (spec, None))
        # What is checked and what is merged into is one version: a commit in between is a conflict.
        table = self._table(spec.name)
        stored = self._stored(table, spec.name)
        progress = self._after_passing(spec.name, stored)
        held = Held(changelog_id or "", spec.ddl, spec.key, progress) if progress else None
        after = checked(spec, held, changelog_id, from_offset, partition).moved(partition, next_offset)
        assert table is not None
        assert stored is not None
        self._watch("begun")
        changes_rows = bool(todo.upserts.num_rows or todo.removals.num_rows)
        if not (changes_rows and self._merge(table, spec, todo, after)):
            self._passed[spec.name] = stored, after
        self._watch("committed")

    def progress(self, view: str) -> Progress | None:
        return self._after_passing(view, self._stored(self._table(view), view))

    def _stored(self, table: DeltaTable | None, view: str) -> Progress | None:
        """What a version of the table itself says."""
        if table is None or view not in self._prepared:
            return None
        return _progress(table, _prefix(table, *self._prepared[view]))

    def _after_passing(self, view: str, stored: Progress | None) -> Progress | None:
        said, passed = self._passed.get(view, (None, None))
        return passed if stored is not None and said == stored else stored

    def drop(self, view: str) -> None:
        shutil.rmtree(self._folder(view), ignore_errors=True)
        self._passed.pop(view, None)

    def close(self) -> None:
        """Nothing is held open."""

    def _begin(self, spec: TableSpec, changelog_id: str) -> None:
        """An empty table of these columns, in one commit, whatever was there."""
        table = self._table(spec.name)
        times = _times(table, spec.name) + 1
        prefix = _prefix(table, spec, changelog_id, times=times)
        said = [Transaction(_counter(spec.name), times), *_transactions(prefix, Progress(0))]
        self._passed.pop(spec.name, None)
        with _errors(self._folder(spec.name)):
            self._path.mkdir(parents=True, exist_ok=True)
            write_deltalake(
                table or self._folder(spec.name), spec.values.empty_table(), mode="overwrite",
                schema_mode="overwrite", commit_properties=CommitProperties(app_transactions=said),
            )  # fmt: skip

    def _merge(self, table: DeltaTable, spec: TableSpec, todo: Changed, after: Progress) -> bool:
        """False where it was no commit: keys to remove that are not there are no change to Delta Lake."""
        version = table.version()
        columns = {_quoted(name): f"s.{_quoted(name)}" for name in spec.values.names}
        same = [f"(t.{_quoted(name)} IS NOT DISTINCT FROM s.{_quoted(name)})" for name in spec.key]
        said = _transactions(_prefix(table, *self._prepared[spec.name]), after)
        with _errors(self._folder(spec.name)):
            merger = table.merge(
                _source(spec, todo), " AND ".join(same) or "true", source_alias="s", target_alias="t",
                commit_properties=CommitProperties(app_transactions=said),
            )  # fmt: skip
            merger = merger.when_matched_delete(f"s.{_OP} = '{DELETE}'")
            merger = merger.when_matched_update(columns, f"s.{_OP} = '{UPSERT}'")
            merger = merger.when_not_matched_insert(columns, f"s.{_OP} = '{UPSERT}'")
            self._watch("merging")
            merger.execute()
        return table.version() != version

    def _table(self, name: str) -> DeltaTable | None:
        with _errors(self._folder(name)):
            try:
                return DeltaTable(self._folder(name))
            except TableNotFoundError:
                return None

    def _folder(self, name: str) -> Path:
        return self._path / name


def _source(spec: TableSpec, todo: Changed) -> pa.Table:
    """Rows to write and keys to remove, in one table."""
    gone = todo.removals.filter(pc.equal(todo.removals[_OP], DELETE))
    schema = pa.schema([*spec.values, pa.field(_OP, pa.string())])
    filled = [gone[name] if name in spec.key else pa.nulls(len(gone), spec.values.field(name).type)
              for name in spec.values.names]  # fmt: skip
    removed = pa.table([*filled, pa.repeat(pa.scalar(DELETE), len(gone))], schema=schema)
    upserts = todo.upserts.append_column(_OP, pa.repeat(pa.scalar(UPSERT), len(todo.upserts)))
    return pa.concat_tables([removed, upserts.cast(schema)])


# ---- application transactions ---------------------------------------------------------------------


def _counter(name: str) -> str:
    return f"penstock:{name}"


def _times(table: DeltaTable | None, name: str) -> int:
    """How often it was begun."""
    return (table.transaction_version(_counter(name)) or 0) if table else 0


def _prefix(table: DeltaTable | None, spec: TableSpec, changelog_id: str, times: int | None = None) -> str:
    columns = xxhash.xxh3_64_hexdigest(json.dumps([spec.ddl, spec.key]).encode())
    count = _times(table, spec.name) if times is None else times
    return f"{_counter(spec.name)}:{count}:{changelog_id}:{columns}"


def _transactions(prefix: str, progress: Progress) -> list[Transaction]:
    return [Transaction(f"{prefix}:{number}", offset) for number, offset in enumerate(progress.offsets)]


def _progress(table: DeltaTable, prefix: str) -> Progress | None:
    offsets: list[int] = []
    while (offset := table.transaction_version(f"{prefix}:{len(offsets)}")) is not None:
        offsets.append(offset)
    return Progress(offsets[0], others=tuple(offsets[1:])) if offsets else None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def _errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except CommitFailedError as error:
        raise Contended(
            f"{folder} was changed by somebody else meanwhile.", hint="stop one of its writers"
        ) from error
    except (DeltaError, OSError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise StorageError(f"{folder}: {said}.", hint="check the disk, and who else writes there") from error
