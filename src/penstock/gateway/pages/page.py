"""A page: a path, a template and what it shows. Built for a reader, and again while that one looks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from starlette.routing import compile_path

from penstock.gateway.refusals import BadRequest

if TYPE_CHECKING:
    from penstock.gateway.pages.look import Look
    from penstock.gateway.pages.site import Site


@dataclass(frozen=True, slots=True)
class Asked:
    """What a reader asks for: the names in the path and the query, all of it text."""

    names: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    role: str = "read"

    def get(self, name: str, otherwise: str = "") -> str:
        return self.query.get(name, otherwise).strip()

    def number(self, name: str, otherwise: int, *, least: int, most: int) -> int:
        """A number of the query, within bounds."""
        text = self.get(name)
        return min(max(int(text), least), most) if re.fullmatch(r"\d{1,18}", text) else otherwise


@dataclass(frozen=True, slots=True)
class Page:
    """What a template is given. `live`: it is kept current; `past`: it shows a past moment."""

    template: str
    title: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    live: bool = True
    past: bool = False


Build = Callable[["Site", "Look", Asked], Page]


class Pages:
    """Every page by its path. A builder blocks: it is called in a thread."""

    def __init__(self) -> None:
        self._known: list[tuple[str, re.Pattern[str], Build]] = []

    def at(self, path: str) -> Callable[[Build], Build]:
        """Decorate the builder of the page at a path like "/topics/{name}"."""

        def declare(build: Build) -> Build:
            self._known.append((path, compile_path(path)[0], build))
            return build

        return declare

    def paths(self) -> list[str]:
        return [path for path, _, _ in self._known]

    def found(self, address: str, role: str) -> tuple[Build, Asked]:
        """The builder for an address with its query. Raises BadRequest where there is no such page."""
        place = urlsplit(address)
        for _, pattern, build in self._known:
            if match := pattern.fullmatch(unquote(place.path)):
                query = dict(parse_qsl(place.query, max_num_fields=32))
                return build, Asked(match.groupdict(), query, role)
        raise BadRequest(404, "there is no such page.", hint="go back to the overview")


PAGES = Pages()
