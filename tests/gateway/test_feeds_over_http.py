"""Tables and views as rows, at a past time, and as they change."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.gateway.served import Event, Served
from tests.waiting import wait_until

from penstock.log.embedded import EmbeddedLog

CHANGES = "/tables/users/changes"


def _upsert(served: Served, id: int, name: str, city: str = "Bern") -> None:
    served.app.topics["users"].append({"id": id, "name": name, "city": city})


def _applied(rows: dict[int, Any], events: list[Event]) -> dict[int, Any]:
    for event in events:
        if event.kind == "delete":
            rows.pop(event.data["key"]["id"])
        elif event.kind != "current":
            rows[event.data["key"]["id"]] = event.data["row"]["name"]
    return rows


def _until_current(stream: Any) -> list[Event]:
    found = []
    for event in stream:
        found.append(event)
        if event.kind == "current":
            break
    return found


def test_a_feed_tells_every_row_and_then_every_change(shared: Served) -> None:
    _upsert(shared, 1, "Ann")
    _upsert(shared, 2, "Bob")
    with shared.events(CHANGES) as stream:
        events = _until_current(stream)
        _upsert(shared, 1, "Anna")
        shared.app.topics["users"].delete({"id": 2})
        events += stream.take(2)
    assert [event.kind for event in events[-3:]] == ["current", "update", "delete"]
    assert _applied({}, events)[1] == "Anna"
    assert 2 not in _applied({}, events)


@pytest.mark.parametrize("linger", [True, False], ids=["kept", "read again"])
def test_a_feed_goes_on_where_it_was_cut_off(shared: Served, linger: bool) -> None:
    with shared.events(CHANGES) as stream:
        events = _until_current(stream)
        _upsert(shared, 10, "first")
        events += stream.take(1)
        last = events[-1].id
    if not linger:  # another filter is another channel, so that nothing is kept for it
        with shared.events(CHANGES, params={"where": "id >= 0"}) as stream:
            last = _until_current(stream)[-1].id
    _upsert(shared, 11, "second")
    _upsert(shared, 10, "third")
    params = {} if linger else {"where": "id >= 0"}
    with shared.events(CHANGES, params=params, headers={"Last-Event-ID": last or ""}) as stream:
        told = stream.take(2)
        _upsert(shared, 12, "fourth")
        told += stream.take(1)
    assert [event.data["row"]["name"] for event in told] == ["second", "third", "fourth"]
    for id in (10, 11, 12):
        shared.app.topics["users"].delete({"id": id})


def test_a_feed_of_some_rows(shared: Served) -> None:
    with shared.events(CHANGES, params={"where": "city = 'Genève' and id > 20"}) as stream:
        _until_current(stream)
        _upsert(shared, 20, "no", "Genève")
        _upsert(shared, 21, "yes", "Genève")
        _upsert(shared, 21, "moved", "Bern")
        assert [event.kind for event in stream.take(2)] == ["insert", "delete"]


def test_a_position_of_another_feed_is_refused(shared: Served) -> None:
    with shared.events(CHANGES) as stream:
        last = _until_current(stream)[-1].id or ""
    answer = shared.get(CHANGES, params={"where": "id > 1"}, headers={"Last-Event-ID": last})
    assert answer.status_code == 400
    assert shared.get(CHANGES, headers={"Last-Event-ID": "nonsense"}).status_code == 400


def test_the_rows_of_a_table_by_key_filter_and_page(served: Served) -> None:
    for id in range(10):
        _upsert(served, id, f"name {id}", "Bern" if id % 2 else "Basel")
    rows = "/tables/users/rows"
    assert served.get(rows, params={"key": '{"id": 7}'}).json()["rows"] == [
        {"id": 7, "name": "name 7", "city": "Bern"}
    ]
    page = served.get(rows, params={"where": "city = 'Bern'", "limit": 2}).json()
    assert ([row["id"] for row in page["rows"]], page["more"], page["next"]) == ([1, 3], True, 2)
    page = served.get(rows, params={"where": "city = 'Bern'", "limit": 2, "skip": 4}).json()
    assert ([row["id"] for row in page["rows"]], page["more"]) == ([9], False)


def test_the_rows_of_a_table_at_a_past_time(served: Served) -> None:
    _upsert(served, 1, "Ann")
    between = datetime.now(UTC)
    _upsert(served, 1, "Anna")
    rows = served.get("/tables/users/rows", params={"as_of": between.isoformat()}).json()
    assert ([row["name"] for row in rows["rows"]], rows["as_of"] is not None) == (["Ann"], True)


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_that_is_none_is_refused(served: Served, moment: str) -> None:
    answer = served.get("/tables/users/rows", params={"as_of": moment})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "BadOption")


def test_group_members_poll_commit_and_go_on(served: Served) -> None:
    served.app.topics["notes"].append([{"text": str(number)} for number in range(5)])
    member = served.post("/groups/mailer/topics/notes/members", json={}).json()["member"]
    polled = served.post(f"/members/{member}/poll", json={"limit": 3, "wait_s": 10}).json()
    assert [record["value"]["text"] for record in polled["records"]] == ["0", "1", "2"]
    assert served.post(f"/members/{member}/commit", json={"offsets": {"0": 3}}).status_code == 204
    assert served.get("/groups").json()["groups"][0]["lag_records"] == 2
    reset = {"to": "earliest"}
    assert served.post("/groups/mailer/topics/notes/reset", json=reset).status_code == 409
    assert served.http.delete(f"/api/v1/members/{member}").status_code == 204
    assert served.post(f"/members/{member}/poll", json={}).status_code == 404
    dry = served.post("/groups/mailer/topics/notes/reset", json={**reset, "dry_run": True}).json()
    assert (dry["moved"], dry["partitions"][0]["read_again"]) == (False, 3)
    other = served.post("/groups/mailer/topics/notes/members", json={}).json()["member"]
    polled = served.post(f"/members/{other}/poll", json={"wait_s": 10}).json()
    assert [record["value"]["text"] for record in polled["records"]] == ["3", "4"]


def test_metrics_are_in_the_format_of_prometheus(served: Served) -> None:
    served.post("/topics/notes/records", json={"text": "a"})
    text = served.http.get("/metrics").text
    assert 'penstock_topic_records{topic="notes"} 1' in text
    assert "penstock_http_appended_records_total 1" in text
    for line in text.splitlines():
        assert line.startswith("# ") or len(line.rsplit(" ", 1)) == 2


def _joined(served: Served, topic: str) -> str:
    member: str = served.post(f"/groups/mailer/topics/{topic}/members").json()["member"]
    return f"/members/{member}/poll"


def test_a_member_hears_again_what_was_lost_on_the_way(served: Served) -> None:
    served.app.topics["notes"].append([{"text": str(number)} for number in range(4)])
    poll = _joined(served, "notes")
    first = served.post(poll, json={"limit": 2, "wait_s": 10}).json()
    for _ in range(2):  # the first of these answers did not come
        again = served.post(poll, json={"from": first["partitions"]}).json()
        assert [record["value"]["text"] for record in again["records"]] == ["2", "3"]
    assert served.post(poll, json={"from": {"0": 5}}).status_code == 416


def test_what_retention_took_of_one_partition_skips_nothing_of_another(served: Served) -> None:
    log, topic = served.app.log, served.app.topics["page_views"]
    poll = _joined(served, "page_views")
    wait_until(lambda: len(served.post(poll).json()["partitions"]) == 2, what="both partitions")
    log.alter_topic("page_views", segment_bytes=1, retention_bytes=0)
    for page in ("gone", "there"):
        topic.append({"user_id": 1, "page": page}, partition=1)
    assert isinstance(log.port, EmbeddedLog)
    log.port.maintain("page_views", 1)
    topic.append({"user_id": 1, "page": "kept"}, partition=0)
    lost = served.post(poll)
    assert (lost.status_code, lost.json()["error"]["type"]) == (410, "RecordsLost")
    found = [record["value"]["page"] for record in served.post(poll).json()["records"]]
    assert found == ["kept", "there"]
