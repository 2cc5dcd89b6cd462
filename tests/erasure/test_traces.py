"""A search that nobody hides from: what is planted in any kind of file is found, and told where."""

from __future__ import annotations

import base64
import bz2
import contextlib
import ctypes
import functools
import gzip
import hashlib
import io
import json
import lzma
import os
import sqlite3
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
import tantivy

import penstock as ps
from penstock.erasure import sqlite_image
from penstock.erasure.sqlite_keys import SqliteKeys
from penstock.testing import find_traces

WORD = "Ann-Sophie Müller-Lüdenscheid"
TABLE = pa.table({"n": [1, 2, 3], "name": ["Bob", WORD, "Eve"]})
DICTIONARY = TABLE.set_column(1, "name", TABLE["name"].dictionary_encode())
OPTIONS = [pa.ipc.IpcWriteOptions(compression=codec) for codec in (None, "lz4", "zstd")]


def arrow_stream(options: pa.ipc.IpcWriteOptions, *, table: pa.Table = TABLE) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def in_base64(before: int) -> bytes:
    return base64.b64encode(b"x" * before + WORD.encode() + b"yz")


def arrow_file() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, TABLE.schema, options=OPTIONS[2]) as writer:
        writer.write_table(TABLE)
    return bytes(sink.getvalue())


def parquet() -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(TABLE, sink, compression="zstd")
    return sink.getvalue()


def zipped() -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inner/part.arrow", arrow_stream(OPTIONS[2]))
    return sink.getvalue()


def lz4_java() -> bytes:
    body = b"\0" * 500 + WORD.encode() + b"\0" * 500
    packed = bytes(pa.Codec("lz4_raw").compress(body, asbytes=True))
    head = struct.pack("<8sBiii", b"LZ4Block", 0x26, len(packed), len(body), 0)
    return head + packed + struct.pack("<8sBiii", b"LZ4Block", 0x16, 0, 0, 0)


def compressed(codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(b"\0" * 5_000 + WORD.encode())
    return bytes(sink.getvalue())


def tarred() -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        member = tarfile.TarInfo("inner/part.xz")
        packed = lzma.compress(b"x" * 500 + WORD.encode())
        member.size = len(packed)
        archive.addfile(member, io.BytesIO(packed))
    return sink.getvalue()


PLANTED: dict[str, tuple[Callable[[], bytes], str]] = {
    "plain": (f"x{WORD}y".encode, "bytes"),
    "utf-16": (lambda: f"x{WORD}y".encode("utf-16-le"), "bytes"),
    "json": (lambda: json.dumps({"name": WORD}).encode(), "bytes"),
    "hex": (lambda: b"ab" + WORD.encode().hex().encode() + b"ff", "bytes"),
    **{f"base64 {before}": (functools.partial(in_base64, before), "bytes") for before in range(4)},
    "arrow": (lambda: arrow_stream(OPTIONS[0]), "arrow"),
    "arrow lz4": (lambda: arrow_stream(OPTIONS[1]), "arrow"),
    "arrow zstd": (lambda: arrow_stream(OPTIONS[2]), "arrow"),
    "arrow dictionary": (lambda: arrow_stream(OPTIONS[2], table=DICTIONARY), "arrow"),
    "arrow without an end": (lambda: arrow_stream(OPTIONS[2])[:-8] + bytes(4_096), "arrow"),
    "arrow file": (arrow_file, "arrow"),
    "parquet": (parquet, "parquet"),
    "zip of arrow": (zipped, "zip:inner/part.arrow/arrow"),
    "gzip": (lambda: gzip.compress(b"x" * 500 + WORD.encode()), "gzip"),
    "bzip2": (lambda: bz2.compress(b"x" * 500 + WORD.encode()), "bzip2"),
    "tar of xz": (tarred, "tar:inner/part.xz/xz"),
    "zstd": (lambda: compressed("zstd"), "zstd"),
    "lz4": (lambda: compressed("lz4"), "lz4"),
    "lz4-java": (lz4_java, "lz4-java"),
}  # fmt: skip


@pytest.mark.parametrize("kind", PLANTED)
def test_what_is_planted_is_found_in_every_kind_of_file(tmp_path: Path, kind: str) -> None:
    make, inside = PLANTED[kind]
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_bytes(make())
    found = find_traces(tmp_path, WORD, "not there at all")
    assert inside in {trace.inside for trace in found.clear}, found
    assert {trace.text for trace in found.found} == {0}
    assert (found.files, found.unread) == (1, ())


def test_what_was_deleted_from_sqlite_is_found_in_free_pages_and_in_the_write_ahead_log(
    tmp_path: Path,
) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "free.db")) as db:
        db.execute("PRAGMA secure_delete=OFF")  # some builds of SQLite overwrite what is deleted
        db.execute("CREATE TABLE t (name TEXT, long TEXT, blob BLOB)")
        db.execute("INSERT INTO t VALUES ('x', ?, ?)", ("y" * 10_000 + WORD, gzip.compress(WORD.encode())))
        db.commit()
        insides = {trace.inside for trace in find_traces(tmp_path, WORD).clear}
        assert {"sqlite:t", "sqlite:t/gzip"} <= insides  # across pages, and inside a value
        db.execute("UPDATE t SET long = '', blob = NULL, name = ?", (WORD,))
        db.execute("DELETE FROM t")
        db.commit()
        assert {trace.inside for trace in find_traces(tmp_path, WORD).clear} == {"bytes"}
        db.execute("VACUUM")
        assert find_traces(tmp_path, WORD).found == ()
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("INSERT INTO t VALUES (?, '', NULL)", (WORD,))
        db.commit()
        db.execute("DELETE FROM t")
        db.commit()
        assert find_traces(tmp_path, WORD).paths() == {Path("free.db-wal")}
        db.execute("INSERT INTO t VALUES ('x', ?, NULL)", ("y" * 15_000,))
        db.commit()
        across = find_traces(tmp_path, "y" * 14_000).clear  # no page is so long
        assert {trace.inside for trace in across} == {"sqlite:t"}


def test_what_is_sealed_is_found_while_there_is_a_key_for_it(tmp_path: Path) -> None:
    store = SqliteKeys(tmp_path / "keys.db")
    keys = store.make(["ann", "bob"])
    inner = keys["ann"].seal(WORD.encode(), "t", "name")
    sealed = [
        inner,
        keys["bob"].seal(b"Robert-Alexander", "t", "name"),
        keys["bob"].seal(inner.encode(), "t", "x"),
    ]
    (tmp_path / "file").write_bytes(arrow_stream(OPTIONS[2], table=pa.table({"name": sealed})))
    found = find_traces(tmp_path, WORD, "Robert-Alexander")
    assert found.clear == ()
    assert {(trace.text, trace.inside) for trace in found.found} == {(0, "arrow"), (1, "arrow")}
    store.destroy("ann")
    assert {trace.text for trace in find_traces(tmp_path, WORD, "Robert-Alexander").found} == {1}
    assert find_traces(tmp_path, WORD, "Robert-Alexander", keys=[]).found == ()


@pytest.mark.parametrize(
    "magic", [b"PAR1", b"PK\x03\x04", b"SQLite format 3\0", b"\x28\xb5\x2f\xfd", b"LZ4Block"]
)
def test_a_file_that_cannot_be_looked_into_is_told(tmp_path: Path, magic: bytes) -> None:
    (tmp_path / "file").write_bytes(magic + b"\x01" * 100)
    ((path, reason),) = find_traces(tmp_path, WORD).unread
    assert path == Path("file")
    assert reason


def raw_deflate() -> bytes:
    """No sign at its beginning says what it is."""
    packer = zlib.compressobj(wbits=-15)
    lines = b"".join(b"%d %s\n" % (number, hashlib.sha256(b"%d" % number).digest()) for number in range(100))
    return packer.compress(lines + WORD.encode()) + packer.flush()


@pytest.mark.parametrize("make", [raw_deflate, lambda: os.urandom(5_000)], ids=["packed", "encrypted"])
def test_a_file_that_is_packed_in_a_way_of_its_own_is_told(tmp_path: Path, make: Callable[[], bytes]) -> None:
    (tmp_path / "file").write_bytes(make())
    (tmp_path / "text").write_text("\n".join(f"{number} is a line of text" for number in range(1_000)))
    found = find_traces(tmp_path, WORD)
    assert [path for path, _ in found.unread] == [Path("file")]
    assert "packed or encrypted" in found.unread[0][1]


def test_arrow_that_goes_on_with_something_else_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(arrow_stream(OPTIONS[2]) + b"something else")
    (unread,) = find_traces(tmp_path, WORD).unread
    assert "something follows" in unread[1]


def test_linked_folders_are_looked_into_and_a_ring_of_them_ends(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text(WORD)
    (tmp_path / "elsewhere" / "ring").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "topics").symlink_to(tmp_path / "elsewhere")
    assert find_traces(tmp_path / "home", WORD).paths() == {Path("topics/file")}


def without_privileges() -> None:
    """Root may read everything, unless what it starts may not have these two capabilities."""
    drop, override_rights, read_everything = 24, 1, 2
    for capability in (override_rights, read_everything):
        ctypes.CDLL(None).prctl(drop, capability, 0, 0, 0)


def test_what_may_not_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("file", "open"):
        (tmp_path / name).write_text(WORD)
    for name in ("folder", "file"):
        (tmp_path / name).chmod(0)
    program = (
        "import sys; from pathlib import Path; from penstock.testing import find_traces\n"
        "found = find_traces(Path(sys.argv[1]), sys.argv[2])\n"
        "print(sorted(str(path) for path, _ in found.unread), [str(path) for path in found.paths()])"
    )
    told = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), WORD],
        check=False, capture_output=True, text=True, preexec_fn=without_privileges,
    )  # fmt: skip
    (tmp_path / "folder").chmod(0o700)
    assert told.stdout.strip() == "['file', 'folder'] ['open']", told.stderr


BEGINS = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN IMMEDIATE')"


def is_locked_for_others(path: Path) -> bool:
    begun = subprocess.run(
        [sys.executable, "-c", BEGINS, str(path)], check=False, capture_output=True, text=True
    )
    return "database is locked" in begun.stderr


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_search_leaves_the_locks_of_its_own_process_alone(tmp_path: Path, journal: str) -> None:
    """Else two writers at once lose each other's commits."""
    path = tmp_path / "busy.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"PRAGMA journal_mode={journal}")
        db.execute("CREATE TABLE t (v TEXT)")
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO t VALUES (?)", (WORD,))
        find_traces(tmp_path, WORD)
        assert is_locked_for_others(path)
        db.execute("COMMIT")
    assert not is_locked_for_others(path)
    assert find_traces(tmp_path, WORD).paths() == {Path("busy.db")}


def search_index(folder: Path, rows: int, *, format: int = 7) -> None:
    schema = tantivy.SchemaBuilder().add_text_field("row", stored=True).build()
    writer = tantivy.Index(schema, path=str(folder)).writer(64 << 20, 1)
    for number in range(rows):
        writer.add_document(
            tantivy.Document(row=f"{number} of {rows} {hash(number) % 9_973} {WORD} {number}")
        )
    writer.commit()
    writer.wait_merging_threads()
    if format != 7:
        for path in folder.glob("*.store"):
            path.write_bytes(path.read_bytes().replace(b'version":7', b'version":%d' % format))


@pytest.mark.parametrize("rows", [1, 20_000], ids=["one block", "several layers of blocks"])
def test_documents_of_a_search_index_are_read_whole(tmp_path: Path, rows: int) -> None:
    search_index(tmp_path, rows)
    wanted = [f"{WORD} {number}" for number in range(0, rows, 1_000)]
    found = find_traces(tmp_path, *wanted)
    assert {trace.text for trace in found.found if trace.inside == "search"} == set(range(len(wanted)))
    assert found.unread == ()


def test_a_search_index_of_another_format_is_told(tmp_path: Path) -> None:
    search_index(tmp_path, 1, format=8)
    ((path, reason),) = find_traces(tmp_path, WORD).unread
    assert (path.suffix, reason) == (".store", "search: an index of format 8")


def test_a_whole_log_is_looked_into(tmp_path: Path) -> None:
    with ps.open_log(tmp_path) as log:
        plain = log.create_topic("plain", "id BIGINT, name STRING")
        plain.append({"id": 1, "name": WORD})
        sealed = log.create_topic("sealed", "id BIGINT, name STRING", personal={"name": "id"})
        sealed.append({"id": 1, "name": WORD})
    found = find_traces(tmp_path, WORD)
    assert {path.parts[1] for path in found.paths(sealed=False)} == {"plain"}
    assert {path.parts[1] for path in found.paths(sealed=True)} == {"sealed"}
    assert found.unread == ()


def test_a_database_with_a_log_is_read_as_sqlite_reads_it(tmp_path: Path) -> None:
    """Whole transactions alone, those of the log's last turn, and the size that the last one left."""
    path = tmp_path / "t.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA page_size=512")
        db.execute("PRAGMA auto_vacuum=FULL")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, v TEXT)")
        for turn in range(6):
            db.execute("DELETE FROM t WHERE n % 3 = ?", (turn % 3,))
            db.executemany("INSERT INTO t (v) VALUES (?)", [(f"{turn} {WORD}" * 200,) for _ in range(20)])
            if turn in (2, 3):
                db.execute("PRAGMA wal_checkpoint(RESTART)")
        db.execute("PRAGMA cache_size=1")
        db.execute("BEGIN")
        db.executemany("INSERT INTO t (v) VALUES (?)", [("never committed" * 200,) for _ in range(50)])
        with contextlib.closing(sqlite3.connect(path)) as reader:
            expected = reader.execute("SELECT * FROM t").fetchall()
        log = path.with_name("t.db-wal").read_bytes()
        with contextlib.closing(sqlite_image.opened(path.read_bytes(), log)) as found:
            assert b"never committed" in log
            assert found.execute("SELECT * FROM t").fetchall() == expected
            assert found.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        db.execute("ROLLBACK")


def test_nothing_that_is_looked_into_is_copied_to_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys are among it: killed in the middle, a search would leave a copy of them behind."""
    SqliteKeys(tmp_path / "home" / "keys.db").make(["ann"])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))  # which there is not
    assert find_traces(tmp_path / "home", "ann").unread == ()
