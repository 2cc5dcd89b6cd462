"""The endpoints, one file per noun."""

from __future__ import annotations

from penstock.gateway.routes import (
    groups,
    health,
    jobs,
    members,
    metrics,
    pipeline,
    queues,
    records,
    session,
    tail,
    topics,
    views,
)

ALL = (
    health.routes, topics.routes, records.routes, tail.routes, groups.routes, members.routes,
    views.routes, pipeline.routes, queues.routes, jobs.routes,
    metrics.routes, session.routes,
)  # fmt: skip
