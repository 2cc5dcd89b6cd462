"""The pages of one server: templates, and what is seen of the app behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from penstock.gateway.pages import health, words
from penstock.gateway.pages.alarms import Alarms, senders_of
from penstock.gateway.pages.health import url
from penstock.gateway.pages.look import Look
from penstock.gateway.pages.page import PAGES, Page
from penstock.gateway.pages.sparkline import sparkline
from penstock.gateway.pages.watcher import Watcher
from penstock.opening import is_kafka

if TYPE_CHECKING:
    from penstock.gateway.gateway import Gateway
    from penstock.gateway.jobs import Job

_TEMPLATES = Path(__file__).parents[1] / "templates"
_PARTS = "part_"
LIVE_MAX = 64  # pages that are kept up to date at the same time


@dataclass(frozen=True, slots=True)
class NavItem:
    label: str
    href: str
    mark: str = ""
    bad: bool = False
    on: bool = False


class Site:
    """Templates are rendered in threads; everything here is safe for that."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway, self.app = gateway, gateway.app
        self.watcher = Watcher(gateway.app, on_look=self._on_look)
        self.alarms = Alarms(gateway.app.name, senders_of(gateway.settings.alerts))
        self.looking = 0  # readers whose pages are kept up to date
        self._templates = Environment(
            loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined,
            trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        named = (
            "count",
            "rate",
            "span",
            "roughly",
            "size",
            "clock",
            "clock_ms",
            "date",
            "iso",
            "ago",
            "cell",
        )
        self._templates.filters.update({name: getattr(words, name) for name in named})
        self._templates.filters["sparkline"] = sparkline
        self._templates.globals["url"] = url
        self._templates.globals["ui"] = self._templates.get_template("ui.html").module

    def close(self) -> None:
        self.watcher.close()
        self.alarms.close()

    def _on_look(self, look: Look) -> None:
        self.alarms.look(health.needs(look), look.at_us)

    def verification(self, name: str) -> Job | None:
        """The newest one of a view that was asked for here."""
        return next((job for job in self.gateway.jobs.all() if name in job.views), None)

    def page(self, address: str, role: str) -> tuple[Page, Look]:
        """Build the page at an address. Blocks; raises BadRequest where there is none."""
        build, asked = PAGES.found(address, role)
        look = self.watcher.look()
        return build(self, look, asked), look

    def render(self, page: Page, look: Look, *, address: str, role: str, theme: str) -> str:
        """All of it."""
        return self._templates.get_template(page.template).render(
            **self._facts(page, look, address, role), theme=theme
        )

    def parts(self, page: Page, look: Look, *, address: str, role: str) -> dict[str, str]:
        """What changes while one looks: the blocks called `part_…`, each by the id of its element."""
        template = self._templates.get_template(page.template)
        context = template.new_context({**self._facts(page, look, address, role), "theme": ""})
        found = {
            name: "".join(block(context))
            for name, block in template.blocks.items()
            if name.startswith(_PARTS)
        }
        return {**found, "part_nav": self._templates.get_template("nav.html").render(nav=nav(look, address))}

    def fragment(self, template: str, **facts: Any) -> str:
        """A piece that an action answers with."""
        return self._templates.get_template(template).render(**facts)

    def _facts(self, page: Page, look: Look, address: str, role: str) -> Mapping[str, Any]:
        return {
            "title": page.title, "look": look, "now_us": look.at_us, "path": address,
            "nav": nav(look, address),
            "app_name": self.app.name, "log_kind": "Kafka" if is_kafka(self.app.address) else "embedded log",
            "app_file": self.gateway.settings.source or "APP", "live": page.live, "past": page.past,
            "can_write": role in ("write", "admin"), "can_admin": role == "admin", **page.facts,
        }  # fmt: skip


def nav(look: Look, address: str) -> list[NavItem]:
    """Where one can go, with what is worth knowing before one goes there."""
    dead = sum(queue.dead for queue in look.queues)
    late = sum(view.late for view in look.views.values())
    needs = health.needs(look)
    waiting = sum(need.blocks for need in needs)
    lagging = sum(need.kind == "lag" for need in needs)
    captures = look.published.status.captures if look.published and look.running else ()
    items = [
        NavItem("Overview", "/"),
        NavItem("Pipeline", "/pipeline"),
        NavItem("Topics", "/topics", str(len(look.shown_topics))),
        NavItem("Views", "/views", str(len(look.views))),
        NavItem("Tables", "/tables", str(len(look.tables))),
        NavItem(
            "Groups", "/groups", f"{lagging} behind" if lagging else str(len(look.groups)), bool(lagging)
        ),
        NavItem("Queues", "/queues", f"{dead} dead" if dead else str(len(look.queues)), bool(dead)),
        NavItem("Late rows", "/late", words.count(late), bad=late > 0),
        NavItem("Batches", "/batches"),
        NavItem("Capture", "/capture", captures[0].phase if captures else ""),
        NavItem("Alerts", "/alerts", str(waiting) if waiting else "", bool(waiting)),
    ]
    path = address.partition("?")[0]
    return [NavItem(item.label, item.href, item.mark, item.bad, _is_on(item.href, path)) for item in items]


def _is_on(href: str, path: str) -> bool:
    return path == href or (href != "/" and path.startswith(f"{href}/"))
