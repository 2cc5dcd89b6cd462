"""The gateway as an ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute
from starlette.staticfiles import StaticFiles

import penstock
from penstock.gateway import pages, problems
from penstock.gateway.doorway import Doorway
from penstock.gateway.gateway import Gateway
from penstock.gateway.pages.route import failed
from penstock.gateway.pages.site import Site
from penstock.gateway.routes import ALL

STATIC = Path(__file__).parent / "static"
_ABOUT = """Event streams over HTTP. Every error is `{"error": {"type", "message", "hint", …}}`: what
happened, and what to do; besides these it holds the facts of that error. What comes too fast is answered with
429 and `Retry-After`. Where tokens were made, send one as `Authorization: Bearer TOKEN`; each endpoint says
by `x-role` which role it needs."""


def create(gateway: Gateway) -> FastAPI:
    """Everything that is served: the API, the pages and their static files."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        app.state.site.watcher.start()
        yield
        app.state.site.close()
        await gateway.close()

    # FastAPI's own pages of the documentation load scripts from elsewhere.
    app = FastAPI(title="Penstock", version=penstock.__version__, description=_ABOUT, lifespan=lifespan,
                  docs_url=None, redoc_url=None, openapi_url=None)  # fmt: skip
    app.state.gateway = gateway
    app.state.site = Site(gateway)
    problems.install(app, as_page=failed)
    for routes in (*ALL, pages.routes):
        app.router.routes.extend(_flat(routes))
    if STATIC.is_dir():
        app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    app.add_middleware(Doorway, names=gateway.settings.names, measures=gateway.measures)
    return app


def _flat(routes: APIRouter) -> Iterator[BaseRoute]:
    """Also of routers within it: who looks at the app's table is to see every endpoint."""
    for route in routes.routes:
        inner = getattr(route, "original_router", None)
        if inner is None:
            yield route
        else:
            yield from _flat(inner)


def _tell_problems(responses: dict[str, Any]) -> None:
    """An error is JSON, whatever an endpoint answers otherwise."""
    for status, response in responses.items():
        if int(status) >= 400 and "content" in response:
            (schema,) = response["content"].values()
            response["content"] = {"application/json": schema}


def _document(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        found = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        for operations in found["paths"].values():
            for operation in operations.values():
                _tell_problems(operation["responses"])
        found.setdefault("components", {})["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer", "description": "Made with `penstock token create`."}
        }
        app.openapi_schema = found
    return app.openapi_schema
