"""`penstock token`: who may use the gateway."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import output, words
from penstock.cli.session import AsJson, Home, Session
from penstock.clock import duration_ms

if TYPE_CHECKING:
    from penstock.gateway.tokens import Token, Tokens

app = typer.Typer(help="Make and revoke tokens for the gateway.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="What it is called, as who or what has it.")]


class Role(StrEnum):
    read = "read"
    write = "write"
    admin = "admin"


@app.command()
def create(
    ctx: typer.Context,
    name: Name,
    role: Annotated[
        Role, typer.Option("--role", help="read; write: also append; admin: also move groups and the like.")
    ] = Role.read,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="TIME", help='After so long: "90 days".', show_default="never"),
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it, once: only its hash is kept.

    From the first one on, a gateway of this home answers nobody without a token.
    """
    session = Session.of(ctx, home, as_json)
    lasts_us = None if expires is None else duration_ms(expires) * 1_000
    token = _tokens(session).create(name, role.value, lasts_us=lasts_us)
    if session.json:
        output.emit({"name": name, "role": role.value, "token": token})
    else:
        print(token)
        output.note("keep it: it is not shown again")


@app.command("list")
def list_(ctx: typer.Context, home: Home = None, as_json: AsJson = False) -> None:
    """List tokens: their names and roles, never what they are."""
    session = Session.of(ctx, home, as_json)
    tokens = _tokens(session)
    found = tokens.all()
    if session.json:
        output.emit({"tokens": [_as_object(token) for token in found]})
        return
    if not found and tokens.exist():
        output.note("no tokens are left: until one is made, the gateway answers nobody")
        return
    if not found:
        output.note("no tokens: on this machine the gateway needs none")
        return
    columns = ("token", "role", "made", "expires")
    output.show(output.table(columns, [_row(token) for token in found]))


@app.command()
def revoke(ctx: typer.Context, name: Name, home: Home = None, as_json: AsJson = False) -> None:
    """Refuse a token from now on, also by a gateway that runs."""
    session = Session.of(ctx, home, as_json)
    found = _tokens(session).revoke(name)
    if session.json:
        output.emit({"revoked": found.name})
    else:
        output.show(f'[green]revoked[/] "{output.escape(found.name)}"')


def _tokens(session: Session) -> Tokens:
    from penstock.gateway.tokens import Tokens

    return Tokens(session.kept, now_us=_now_us)


def _now_us() -> int:
    return time.time_ns() // 1_000


def _as_object(token: Token) -> dict[str, Any]:
    return {
        "name": token.name,
        "role": token.role,
        "created": words.iso(token.created_us),
        "expires": words.iso(token.expires_us),
        "expired": token.is_expired(_now_us()),
    }


def _row(token: Token) -> tuple[str, ...]:
    expires = words.NONE if token.expires_us is None else words.time_of(token.expires_us)
    if token.is_expired(_now_us()):
        expires = f"[red]{expires}[/]"
    return output.escape(token.name), token.role, words.ago(token.created_us), expires
