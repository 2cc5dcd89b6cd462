"""Numbers for Prometheus, in its text format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

from penstock.gateway.facts import groups, pipeline, topics
from penstock.gateway.measures import SECONDS

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.gateway.gateway import Gateway

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = Mapping[str, object]
Sample = tuple[Labels, float]


def of_the_log(app: App) -> str:
    """Topics, groups and queries. Reads the log."""
    known = topics.all_of(app)
    lags = groups.all_of(app)
    status = pipeline.status_of(app)
    queries = [({"query": query.name}, query) for query in status.queries]
    by_group = [({"group": each.group, "topic": each.topic}, each) for each in lags]
    return "".join(
        (
            _family("penstock_topic_records", "gauge", "Records that a topic holds.",
                    [({"topic": each.name}, each.records) for each in known]),
            _family("penstock_topic_bytes", "gauge", "Bytes that a topic takes.",
                    [({"topic": each.name}, each.bytes) for each in known if each.bytes is not None]),
            _family("penstock_group_lag_records", "gauge", "Records that a group has not read.",
                    [(labels, each.lag_records) for labels, each in by_group]),
            _family("penstock_group_lag_seconds", "gauge", "Age of the oldest record that it has not read.",
                    [(labels, each.lag_seconds) for labels, each in by_group]),
            _family("penstock_group_members", "gauge", "Members of a group.",
                    [(labels, each.members) for labels, each in by_group]),
            _family("penstock_running", "gauge", "Whether a run of the app goes on.",
                    [({"app": status.app}, int(status.running))]),
            _family("penstock_query_running", "gauge", "Whether a query runs.",
                    [(labels, int(status.running and q.state == "running")) for labels, q in queries]),
            _family("penstock_query_rows_per_second", "gauge", "Records that it reads per second.",
                    [(labels, q.rows_per_s) for labels, q in queries]),
            _family("penstock_query_lag_records", "gauge", "Records that it has not read.",
                    [(labels, q.lag_records) for labels, q in queries]),
            _family("penstock_query_lag_seconds", "gauge", "Age of the oldest record that it has not read.",
                    [(labels, q.lag_s) for labels, q in queries]),
            _family("penstock_query_state_rows", "gauge", "Rows of its state.",
                    [(labels, q.state_rows) for labels, q in queries]),
            _family("penstock_query_late_total", "counter", "Pairs of row and window that came too late.",
                    [(labels, q.late) for labels, q in queries]),
            _family("penstock_query_restarts_total", "counter", "How often it was started again.",
                    [(labels, q.restarts) for labels, q in queries]),
            _family("penstock_query_watermark_seconds", "gauge", "Its watermark, in seconds since 1970.",
                    [(labels, q.watermark_us / 1e6) for labels, q in queries if q.watermark_us is not None]),
            _family("penstock_follower_behind_records", "gauge", "Records that a copy has not applied.",
                    [({"follower": each.view}, each.behind) for each in status.followers]),
        )
    )  # fmt: skip


def of_the_server(gateway: Gateway) -> str:
    """What the gateway counts about itself."""
    measures = gateway.measures
    requests = [
        ({"method": method, "route": route, "status": status}, count)
        for (method, route, status), count in measures.requests.items()
    ]
    return "".join(
        (
            _family("penstock_http_requests_total", "counter", "Requests that were answered.", requests),
            _durations(gateway),
            _family("penstock_http_appended_records_total", "counter", "Records appended over HTTP.",
                    [({}, measures.appended)]),
            _family("penstock_http_duplicate_appends_total", "counter", "Appends whose key had been there.",
                    [({}, measures.duplicates)]),
            _family("penstock_http_subscribers", "gauge", "Clients of streams.",
                    [({}, gateway.channels.subscribers)]),
            _family("penstock_http_streams", "gauge", "Topics, views and tables that are followed for them.",
                    [({}, len(gateway.channels))]),
            _family("penstock_http_events_total", "counter", "Events sent to them.", [({}, measures.sent)]),
            _family("penstock_http_dropped_subscribers_total", "counter", "Clients that were too slow.",
                    [({}, measures.dropped)]),
            _family("penstock_http_members", "gauge", "Group members that are held for clients.",
                    [({}, len(gateway.members))]),
        )
    )  # fmt: skip


def _durations(gateway: Gateway) -> str:
    name = "penstock_http_request_seconds"
    lines = [f"# HELP {name} How long requests took.\n# TYPE {name} histogram\n"]
    for (method, route), found in gateway.measures.durations.items():
        labels = {"method": method, "route": route}
        for bound, count in zip((*SECONDS, "+Inf"), accumulate(found.counts), strict=True):
            lines.append(_line(f"{name}_bucket", {**labels, "le": bound}, count))
        lines += [
            _line(f"{name}_sum", labels, found.sum_s), _line(f"{name}_count", labels, sum(found.counts))
        ]  # fmt: skip
    return "".join(lines)


def _family(name: str, kind: str, about: str, samples: Iterable[Sample]) -> str:
    return "".join([f"# HELP {name} {about}\n# TYPE {name} {kind}\n", *_lines(name, samples)])


def _lines(name: str, samples: Iterable[Sample]) -> Iterator[str]:
    for labels, value in samples:
        yield _line(name, labels, value)


def _line(name: str, labels: Labels, value: float) -> str:
    told = ",".join(f'{label}="{_escaped(str(text))}"' for label, text in labels.items())
    return f"{name}{{{told}}} {value}\n" if told else f"{name} {value}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
