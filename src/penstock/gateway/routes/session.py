"""Signing in: the pages of a browser carry a token in a cookie that no script can read."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from penstock.gateway import cookie
from penstock.gateway.json import Json
from penstock.gateway.routing import Routes, Served, needs

routes = Routes("session")


class SigningIn(BaseModel):
    model_config = ConfigDict(extra="forbid")

    token: str = Field(max_length=200)


class Caller(BaseModel):
    """Who asks. `token`: its name, none where none is needed."""

    token: str | None
    role: str


@routes.post("/session", summary="Sign in.", response_model=Caller, **needs("public", body=True))
async def sign_in(request: Request, gateway: Served, signing: SigningIn) -> Response:
    """Set the cookie that the pages use. 401 for a token that is not good."""
    answer = Json(gateway.guard.known(signing.token))
    cookie.keep(signing.token, request, answer)
    return answer


@routes.get("/session", summary="Who am I?", response_model=Caller, **needs("read"))
async def who(request: Request) -> Caller:
    """The name of the token and its role."""
    return Caller(token=request.state.caller.token, role=request.state.caller.role)


@routes.delete("/session", summary="Sign out.", status_code=204, **needs("public"))
async def sign_out() -> Response:
    """Take the cookie away."""
    answer = Response(status_code=204)
    cookie.drop(answer)
    return answer
