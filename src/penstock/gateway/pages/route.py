"""An endpoint of the pages: what fails is told as a page, or as the piece of one that was asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from penstock.errors import PenstockError
from penstock.gateway.pages.site import Site
from penstock.gateway.problems import status_of
from penstock.gateway.refusals import NotKnown
from penstock.gateway.routing import Guarded


def site_of(request: Request) -> Site:
    found: Site = request.app.state.site
    return found


def address_of(request: Request) -> str:
    """The path and query that were asked for."""
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


class PageRoute(Guarded):
    """Guarded as every endpoint is; who has not shown a token is asked for one."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        handle = super().get_route_handler()

        async def told(request: Request) -> Response:
            try:
                return await handle(request)
            except NotKnown:
                if request.method == "GET" and "hx-request" not in request.headers:
                    return RedirectResponse(f"/login?to={quote(address_of(request), safe='')}", 303)
                return failed(request, NotKnown())
            except PenstockError as error:
                return failed(request, error)

        return told


def failed(request: Request, error: PenstockError) -> HTMLResponse:
    """The error as a page, or as a piece where a piece was asked for."""
    site, status = site_of(request), status_of(error)
    if "hx-request" in request.headers:
        return HTMLResponse(site.fragment("failed.html", error=error), status)
    theme = request.cookies.get("theme", "")
    title = HTTPStatus(status).phrase.capitalize()
    return HTMLResponse(site.fragment("error.html", title=title, error=error, theme=theme), status)
