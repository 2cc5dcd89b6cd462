"""Appending and reading records over HTTP."""

from __future__ import annotations

import io
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from tests.gateway.served import Served, serving

import penstock as ps

AT = "2026-01-31T12:00:00Z"
NDJSON = {"Content-Type": "application/x-ndjson"}
ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}


def _stream(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, **options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_one_record_is_appended_and_read_back(served: Served) -> None:
    answer = served.post("/topics/page_views/records", json={"user_id": 7, "page": "/", "at": AT})
    assert answer.status_code == 200, answer.text
    ((partition, place),) = answer.json()["partitions"].items()
    assert place == {"first": 0, "end": 1}
    page = served.get("/topics/page_views/records").json()
    (record,) = page["records"]
    assert record["value"] == {"user_id": 7, "page": "/", "at": AT}
    assert (record["partition"], record["offset"], page["at_end"]) == (int(partition), 0, True)


def test_a_list_json_lines_and_an_arrow_stream_are_appended(served: Served) -> None:
    rows = [{"text": "a"}, {"text": "b"}]
    lines = b'{"text": "c"}\n\n{"text": "d"}'
    stream = _stream(pa.table({"text": ["e", "f"]}))
    assert served.post("/topics/notes/records", json=rows).json()["records"] == 2
    assert served.post("/topics/notes/records", content=lines, headers=NDJSON).json()["records"] == 2
    assert served.post("/topics/notes/records", content=stream, headers=ARROW).json()["records"] == 2
    found = served.get("/topics/notes/records").json()["records"]
    assert [record["value"]["text"] for record in found] == list("abcdef")


@pytest.mark.parametrize(
    "body",
    [b"", b"nothing", b"[1]", b'{"text": 1}', b'{"txt": "a"}', b'[{"text": "a"}, null]', b"{" * 5_000],
)
def test_what_is_no_record_is_refused_and_nothing_is_stored(served: Served, body: bytes) -> None:
    answer = served.post("/topics/notes/records", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "BadRecord")
    assert served.get("/topics/notes/records").json()["records"] == []


def test_arrow_that_could_grow_in_memory_is_refused(served: Served) -> None:
    words = pa.table({"text": ["a" * 1_000] * 100})
    compressed = _stream(words, options=pa.ipc.IpcWriteOptions(compression="zstd"))
    dictionary = _stream(words.set_column(0, "text", words["text"].dictionary_encode()))
    for stream in (compressed, dictionary, b"\xff" * 100, _stream(words)[:200]):
        answer = served.post("/topics/notes/records", content=stream, headers=ARROW)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "BadRecord"), answer.text


def test_a_repeated_key_is_dropped_also_after_a_restart(app: ps.App) -> None:
    sent = {"json": [{"text": "a"}, {"text": "b"}], "headers": {"Idempotency-Key": "order-7"}}
    with serving(app) as served:
        first = served.post("/topics/notes/records", **sent).json()
        again = served.post("/topics/notes/records", **sent).json()
        assert (first["duplicate"], again["duplicate"]) == (False, True)
        assert again["partitions"] == first["partitions"]
    app.close()
    with serving(app) as served:
        assert served.post("/topics/notes/records", **sent).json()["duplicate"]
        assert len(served.get("/topics/notes/records").json()["records"]) == 2


def test_a_key_is_not_for_another_body(served: Served) -> None:
    headers = {"Idempotency-Key": "order-7"}
    served.post("/topics/notes/records", json={"text": "a"}, headers=headers)
    answer = served.post("/topics/notes/records", json={"text": "b"}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["type"]) == (409, "KeyReused")


def test_two_gateways_on_one_log_store_a_key_once(app: ps.App) -> None:
    other = ps.App("shop", home=app.home)
    with serving(app) as one, serving(other) as two:
        for number in range(6):
            headers = {"Idempotency-Key": f"order-{number}"}
            for gateway in (one, two):
                answer = gateway.post("/topics/notes/records", json={"text": str(number)}, headers=headers)
                assert answer.json()["duplicate"] == (gateway is two)
        assert len(one.get("/topics/notes/records").json()["records"]) == 6
    other.close()


def test_two_gateways_at_the_same_time_store_a_key_once(app: ps.App) -> None:
    other = ps.App("shop", home=app.home)
    with serving(app) as one, serving(other) as two, ThreadPoolExecutor(8) as pool:

        def append(number: int) -> bool:
            """By both, until it is acknowledged; whether the second heard that it was there."""
            sent = {"json": {"text": str(number)}, "headers": {"Idempotency-Key": f"order-{number}"}}
            told = []
            for gateway in (one, two) if number % 2 else (two, one):
                while (answer := gateway.post("/topics/notes/records", **sent)).status_code == 429:
                    time.sleep(0.01)
                assert answer.status_code == 200, answer.text
                told.append(answer.json()["duplicate"])
            return told == [False, True]

        assert all(pool.map(append, range(80)))
    texts = [event.value["text"] for event in app.log.topic("notes").events()]
    assert sorted(texts, key=int) == [str(number) for number in range(80)]
    other.close()


def test_pages_lead_through_a_topic(served: Served) -> None:
    rows = [{"user_id": number, "page": "/", "at": AT} for number in range(25)]
    served.post("/topics/page_views/records", json=rows)
    found, start = [], "earliest"
    while True:
        page = served.get("/topics/page_views/records", params={"from": start, "limit": 10}).json()
        found += [record["value"]["user_id"] for record in page["records"]]
        start = page["next"]
        if page["at_end"]:
            break
    assert sorted(found) == list(range(25))


def test_a_filter_chooses_records(served: Served) -> None:
    rows = [{"user_id": number, "page": "/cart" if number % 5 else "/", "at": AT} for number in range(20)]
    served.post("/topics/page_views/records", json=rows)
    where = "page = '/' and user_id >= 5 and at <= '2026-02-01T00:00:00Z' or user_id in (1, 2)"
    page = served.get("/topics/page_views/records", params={"where": where}).json()
    assert sorted(record["value"]["user_id"] for record in page["records"]) == [1, 2, 5, 10, 15]


def test_the_newest_records_are_read_as_lines(served: Served) -> None:
    served.post("/topics/notes/records", json=[{"text": str(number)} for number in range(10)])
    answer = served.get(
        "/topics/notes/records", params={"last": 3}, headers={"Accept": "application/x-ndjson"}
    )
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["value"]["text"] for line in lines] == ["7", "8", "9"]
    assert answer.headers["Penstock-Next"] == "0:10"


@pytest.mark.parametrize(("last", "found"), [(1, [7]), (2, [7, 7]), (5, [7, 7, 7])])
def test_the_newest_that_are_wanted_are_found_however_far_back(
    served: Served, last: int, found: list[int]
) -> None:
    rows = [{"user_id": number, "page": "/"} for number in range(1_000, 1_100)]
    for at in (3, 40, 90):
        rows[at]["user_id"] = 7
    served.post("/topics/page_views/records", json=rows)
    wanted = {"last": last, "where": "user_id = 7"}
    page = served.get("/topics/page_views/records", params=wanted).json()
    assert [record["value"]["user_id"] for record in page["records"]] == found
    newest = served.get("/topics/page_views/records", params={"last": 3}).json()["records"]
    assert page["at_end"]
    assert len(newest) == 3


def test_the_newest_that_are_wanted_are_the_newest_of_all_partitions(served: Served) -> None:
    topic = served.app.topics["page_views"]
    topic.append([{"user_id": 7, "page": "old"}], partition=0)
    topic.append([{"user_id": 7, "page": "new"}], partition=1)
    topic.append([{"user_id": 1, "page": "/"}] * 50, partition=1)
    wanted = {"last": 1, "where": "user_id = 7"}
    (record,) = served.get("/topics/page_views/records", params=wanted).json()["records"]
    assert record["value"]["page"] == "new"


def test_a_reader_waits_for_what_comes(served: Served) -> None:
    import threading

    def later() -> None:
        served.app.topics["notes"].append({"text": "now"})

    timer = threading.Timer(0.5, later)
    timer.start()
    page = served.get("/topics/notes/records", params={"from": "latest", "wait": 30}).json()
    timer.join()
    assert [record["value"]["text"] for record in page["records"]] == ["now"]


def test_what_penstock_writes_itself_cannot_be_written(served: Served) -> None:
    served.post("/topics/notes/records", json={"text": "a"}, headers={"Idempotency-Key": "k"})
    answer = served.post("/topics/_gateway.keys/records", json={"key": "a", "body": "b"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "NotSupported")
