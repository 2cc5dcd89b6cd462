"""Late rows over HTTP: how many there are, and the newest of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
from tests.gateway.counting import Counting
from tests.gateway.served import serving
from tests.gateway.stage import declare

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_all_are_counted_and_the_newest_are_told(home: Path) -> None:
    app = declare(home)
    views = app.log.topic("page_views")
    view = Counting(app, "per_5s", "page_views", "page", timedelta(seconds=5))
    views.append([{"user_id": 1, "page": "/", "at": NOW}])
    view.step()
    for page in ("/a", "/b", "/c"):
        views.append([{"user_id": 1, "page": page, "at": NOW - timedelta(minutes=1)}])
        view.step()
    with serving(app) as served:
        for limit, pages in ((2, ["/b", "/c"]), (10, ["/a", "/b", "/c"])):
            found = httpx.get(f"{served.url}/api/v1/views/per_5s/late", params={"limit": limit}).json()
            assert found["late"] == 3
            assert [pair["row"]["page"] for pair in found["pairs"]] == pages
    app.close()
