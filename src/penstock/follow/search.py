"""Rows in a search index on disk, one index in `<path>/<name>` for each view, stream or table.

A document is a row: its key, its JSON, and its columns of text and numbers to be found by. One more document
says which changelog the rows are of, and how far they are; it is replaced in the same commit as the rows.
(tantivy's own note on a commit cannot be reached from Python.) An index that cannot be read is made again.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import tantivy
import xxhash

from penstock.errors import BadOption, PenstockError, StorageError
from penstock.flow.search_index import Compiler, add_fields, indexed
from penstock.flow.search_query import parse
from penstock.flow.search_tree import Field
from penstock.follow.changes import DELETE, Changed, changed
from penstock.follow.documents import key_texts, row_texts
from penstock.follow.store import CHUNK_RECORDS, Held, Progress, Watch, checked, unwatched
from penstock.follow.table import TableSpec
from penstock.log.disk import Lock, RealDisk
from penstock.schema import did_you_mean

_HEAP_BYTES = 64 << 20
_LOCK_S = 1.0
_KEY, _ROW, _ABOUT = "key", "row", "about"
_PROGRESS = "progress"


@dataclass(slots=True)
class _Open:
    """An index that this process writes."""

    index: tantivy.Index
    writer: tantivy.IndexWriter
    schema: tantivy.Schema
    fields: tuple[Field, ...]
    changelog_id: str


class SearchSink:
    """One follower at a time writes an index; a lock sees to that. Anybody may search it meanwhile."""

    keyed, chunk_records = True, CHUNK_RECORDS

    def __init__(
        self, path: Path, *, text: Sequence[str] = (), gather_s: float = 0.0, watch: Watch = unwatched
    ) -> None:
        self._path, self._text, self.gather_s, self._watch = path, tuple(text), gather_s, watch
        self._mutex = threading.Lock()
        self._open: dict[str, _Open] = {}
        self._locks: dict[str, Lock] = {}

    def __repr__(self) -> str:
        return f"<SearchSink {self._path}>"

    def prepare(self, spec: TableSpec, changelog_id: str) -> Progress:
        fields = fields_of(spec, self._text)
        with self._mutex, _errors(self._folder(spec.name)):
            self._let_go(spec.name)
            self._take(spec.name)
            found = _read(self._folder(spec.name))
            if found is None or not found.held.is_of(spec, changelog_id) or found.fields != fields:
                found = self._begin(spec, changelog_id, fields)
            schema = _schema(fields)
            index = tantivy.Index.open(str(self._folder(spec.name)))
            writer = index.writer(_HEAP_BYTES, 1)
            # What one that was killed had written of its next commit has the names that ours would get.
            writer.garbage_collect_files()
            self._open[spec.name] = _Open(index, writer, schema, fields, changelog_id)
            return found.held.progress

    def apply(
        self, spec: TableSpec, changes: pa.Table, *, from_offset: int, next_offset: int, partition: int = 0
    ) -> None:
        todo = changed(spec, changes)
        with self._mutex, _errors(self._folder(spec.name)):
            opened = self._open.get(spec.name)
            found = _read(self._folder(spec.name))
            held = found.held if found else None
            known = opened.changelog_id if opened else None
            before = checked(spec, held, known, from_offset, partition)
            assert opened is not None
            assert held is not None
            self._watch("begun")
            try:
                _write(opened, spec, todo)
                after = before.after(todo, next_offset, partition=partition)
                _note(opened.writer, Held(held.changelog_id, held.columns, held.key, after), opened.fields)
                self._watch("written")
                opened.writer.commit()
            except BaseException:
                opened.writer.rollback()
                raise
        self._watch("committed")

    def progress(self, view: str) -> Progress | None:
        with _errors(self._folder(view)):
            found = _read(self._folder(view))
        return found.held.progress if found else None

    def drop(self, view: str) -> None:
        with self._mutex, _errors(self._folder(view)):
            self._let_go(view)
            self._take(view)
            shutil.rmtree(self._folder(view), ignore_errors=True)

    def close(self) -> None:
        with self._mutex:
            for name in list(self._open):
                self._let_go(name)
            for lock in self._locks.values():
                lock.release()
                lock.close()
            self._locks.clear()

    def _begin(self, spec: TableSpec, changelog_id: str, fields: tuple[Field, ...]) -> _Found:
        folder = self._folder(spec.name)
        if folder.exists() and not (folder / "meta.json").exists() and any(folder.iterdir()):
            raise BadOption(
                f"{folder} holds something that is no search index.", hint="choose another folder"
            )
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        writer = tantivy.Index(_schema(fields), path=str(folder)).writer(_HEAP_BYTES, 1)
        held = Held(changelog_id, spec.ddl, spec.key, Progress(0))
        _note(writer, held, fields)
        writer.commit()
        writer.wait_merging_threads()
        return _Found(held, fields)

    def _take(self, name: str) -> None:
        if name in self._locks:
            return
        self._path.mkdir(parents=True, exist_ok=True)
        lock = RealDisk().lock(self._path / f".{name}.lock", f"the search index {self._folder(name)}")
        try:
            lock.acquire(_LOCK_S)
        except PenstockError:
            lock.close()
            raise
        self._locks[name] = lock

    def _let_go(self, name: str) -> None:
        opened = self._open.pop(name, None)
        if opened is not None:
            with suppress(ValueError):  # its folder may be gone
                opened.writer.wait_merging_threads()

    def _folder(self, name: str) -> Path:
        return self._path / name


# ---- searching ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hit:
    score: float
    row: dict[str, Any]


def search(path: Path, name: str, query: str, *, limit: int) -> tuple[list[Hit], Progress]:
    """The rows that match best, and how far the index is. Raises BadQuery, or BadOption without an index."""
    folder = path / name
    with _errors(folder):
        found = _read(folder)
        if found is None:
            raise BadOption(
                f'there is no search index of "{name}" in {path}.', hint="is its app running, with to=?"
            )
        compiled = Compiler(found.fields, _schema(found.fields)).query(parse(query, found.fields))
        searcher = tantivy.Index.open(str(folder)).searcher()
        rows = tantivy.Query.exists_query(_KEY)
        asked = tantivy.Query.boolean_query(
            [(tantivy.Occur.Must, compiled), (tantivy.Occur.Must, tantivy.Query.const_score_query(rows, 0.0))]
        )
        hits = [
            Hit(score, json.loads(_first(searcher.doc(address), _ROW)))
            for score, address in searcher.search(asked, limit).hits
        ]
    return hits, found.held.progress


def fields_of(spec: TableSpec, text: Sequence[str]) -> tuple[Field, ...]:
    """Where queries look: the text columns asked for, or all of them, and all columns of numbers."""
    for name in text:
        if name not in spec.columns.names or not pa.types.is_string(spec.columns.field(name).type):
            texts = [column.name for column in spec.columns if pa.types.is_string(column.type)]
            raise BadOption(
                f'"{spec.name}" has no text column "{name}".',
                hint=did_you_mean(name, texts) or f"it has {', '.join(texts) or 'none'}",
            )
    kinds = ((column.name, _kind(column.type)) for column in spec.columns)
    found = [Field(n, kind) for n, kind in kinds if kind and (kind != "text" or not text or n in text)]
    if not found:
        raise BadOption(f'"{spec.name}" has no column of text or numbers.', hint="there is nothing to search")
    return tuple(found)


def _kind(dtype: Any) -> Any:
    if pa.types.is_string(dtype):
        return "text"
    if pa.types.is_integer(dtype):
        return "whole"
    return "real" if pa.types.is_floating(dtype) else None


# ---- documents ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Found:
    """What an index says about itself."""

    held: Held
    fields: tuple[Field, ...]


def _schema(fields: tuple[Field, ...]) -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    builder.add_text_field(_KEY, tokenizer_name="raw", index_option="basic", fast=True)
    builder.add_text_field(_ABOUT, tokenizer_name="raw", index_option="basic")
    builder.add_bytes_field(_ROW, stored=True, indexed=False)
    add_fields(builder, fields)
    return builder.build()


def _write(opened: _Open, spec: TableSpec, todo: Changed) -> None:
    gone = todo.removals.filter(pc.equal(todo.removals["_op"], DELETE))
    for key in key_texts(gone, spec.key):
        opened.writer.delete_documents_by_term(_KEY, _digest(key))
    parts = (key_texts(todo.upserts, spec.key), row_texts(todo.upserts), indexed(todo.upserts, opened.fields))
    for key, row, found_by in zip(*parts, strict=True):
        opened.writer.delete_documents_by_term(_KEY, _digest(key))
        opened.writer.add_document(tantivy.Document(key=_digest(key), row=row.encode(), **found_by))


def _digest(key: str) -> str:
    """An index takes no term of any length."""
    return xxhash.xxh3_128_hexdigest(key.encode())


def _note(writer: tantivy.IndexWriter, held: Held, fields: tuple[Field, ...]) -> None:
    about = {
        "changelog": held.changelog_id,
        "columns": held.columns,
        "key": held.key,
        "progress": held.progress.text,
        "fields": [asdict(field) for field in fields],
    }
    writer.delete_documents_by_term(_ABOUT, _PROGRESS)
    writer.add_document(tantivy.Document(about=_PROGRESS, row=json.dumps(about).encode()))


def _read(folder: Path) -> _Found | None:
    """None where there is no index, or none of ours, or none that can be read."""
    if not (folder / "meta.json").exists():
        return None
    try:
        index = tantivy.Index.open(str(folder))
        searcher = index.searcher()
        hits = searcher.search(tantivy.Query.term_query(index.schema, _ABOUT, _PROGRESS), 1).hits
        about = json.loads(_first(searcher.doc(hits[0][1]), _ROW))
        fields = tuple(Field(**field) for field in about["fields"])
        progress = Progress.read(about["progress"])
        return _Found(Held(about["changelog"], about["columns"], tuple(about["key"]), progress), fields)
    except (ValueError, IndexError, KeyError):
        return None


def _first(document: tantivy.Document, field: str) -> bytes:
    return bytes(document.get_first(field))  # type: ignore[arg-type]


@contextmanager
def _errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise StorageError(
            f"{folder}: {said}.",
            hint="check the address and the disk; an index may be deleted: it is filled again",
        ) from error
