"""What is special about a search index: it is files that can be damaged or deleted, and has one writer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.follow.backends import changelog, upsert

import penstock as ps
from penstock.errors import BadOption, Contended
from penstock.follow import Follower, TableSpec
from penstock.follow.search import SearchSink, search


@pytest.fixture
def titled(log: ps.Log) -> tuple[ps.Topic, TableSpec]:
    topic, spec = changelog(log, "books", "id BIGINT, title STRING, about STRING", ("id",))
    topic.append([upsert(id=1, title="Dune", about="sand"), upsert(id=2, title="Emma", about="manners")])
    return topic, spec


def ids(folder: Path, query: str) -> list[int]:
    return sorted(hit.row["id"] for hit in search(folder, "books", query, limit=10)[0])


def test_only_the_columns_asked_for_are_searched(titled: tuple[ps.Topic, TableSpec], tmp_path: Path) -> None:
    topic, spec = titled
    for text, found in (((), [1]), (("title",), [])):
        sink = SearchSink(tmp_path, text=text)
        assert Follower(topic, sink, spec).step(timeout_s=0) == 2  # other columns: it begins anew
        sink.close()
        assert ids(tmp_path, "sand") == found
    with pytest.raises(BadOption, match='did you mean "title"'):
        SearchSink(tmp_path, text=("titel",)).prepare(spec, "log-1")


def test_an_index_that_is_damaged_or_deleted_is_made_again(
    titled: tuple[ps.Topic, TableSpec], tmp_path: Path
) -> None:
    topic, spec = titled
    sink = SearchSink(tmp_path)
    follower = Follower(topic, sink, spec, look_s=0)
    follower.step(timeout_s=0)
    shutil.rmtree(tmp_path / "books")
    follower.step(timeout_s=0)
    assert follower.step(timeout_s=0) == 2
    assert ids(tmp_path, "emma") == [2]
    sink.close()
    (tmp_path / "books" / "meta.json").write_text("{}")
    again = SearchSink(tmp_path)
    assert Follower(topic, again, spec).step(timeout_s=0) == 2
    assert ids(tmp_path, "emma") == [2]
    again.close()


def test_one_follower_at_a_time_writes_an_index(titled: tuple[ps.Topic, TableSpec], tmp_path: Path) -> None:
    topic, spec = titled
    first, second = SearchSink(tmp_path), SearchSink(tmp_path)
    Follower(topic, first, spec).step(timeout_s=0)
    with pytest.raises(Contended):
        Follower(topic, second, spec).step(timeout_s=0)
    assert ids(tmp_path, "dune") == [1]  # anybody may read
    first.close()
    assert Follower(topic, second, spec).step(timeout_s=0) == 0
    second.close()


def test_a_folder_of_somebody_else_is_left_alone(titled: tuple[ps.Topic, TableSpec], tmp_path: Path) -> None:
    topic, spec = titled
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "notes.txt").write_text("mine")
    sink = SearchSink(tmp_path)
    with pytest.raises(BadOption, match="no search index"):
        Follower(topic, sink, spec).step(timeout_s=0)
    assert (tmp_path / "books" / "notes.txt").read_text() == "mine"
    sink.close()


def test_what_a_commit_that_was_killed_has_left_stops_nobody(log: ps.Log, tmp_path: Path) -> None:
    """Its files have the names that those of the next one get."""
    topic, spec = changelog(log, "books", "id BIGINT, title STRING", ("id",))
    segments = 8
    for first in range(segments):
        topic.append([upsert(id=first * 10 + n, title="Dune") for n in range(10)])
        sink = SearchSink(tmp_path)
        Follower(topic, sink, spec).step(timeout_s=0)
        sink.close()
    before = (tmp_path / "books" / "meta.json").read_bytes()
    topic.append([upsert(id=first * 10, title="Emma") for first in range(segments)])
    for _ in range(2):
        sink = SearchSink(tmp_path)
        assert Follower(topic, sink, spec).step(timeout_s=0) == segments
        sink.close()
        assert ids(tmp_path, "emma") == sorted(first * 10 for first in range(segments))
        (tmp_path / "books" / "meta.json").write_bytes(before)  # the last that is written
