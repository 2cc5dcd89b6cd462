"""Numbers for Prometheus."""

from __future__ import annotations

from starlette.responses import PlainTextResponse, Response

from penstock.gateway import metrics
from penstock.gateway.routing import Routes, Served, needs

routes = Routes("health", prefix="")

_TEXT = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus's format."}
}


@routes.get(
    "/metrics",
    summary="Metrics.",
    response_class=PlainTextResponse,
    **{**needs("read"), "responses": {**needs("read")["responses"], **_TEXT}},
)
async def show_metrics(gateway: Served) -> Response:
    """Topics, groups, queries, and what the server counts about itself, in the text format of Prometheus."""
    of_the_log = await gateway.read(metrics.of_the_log, gateway.app)
    return Response(of_the_log + metrics.of_the_server(gateway), media_type=metrics.CONTENT_TYPE)
