"""The first page: is it healthy, and if nothing comes out, why?"""

from __future__ import annotations

from penstock.gateway.pages import health
from penstock.gateway.pages.graph import graph_of
from penstock.gateway.pages.look import Look
from penstock.gateway.pages.page import PAGES, Asked, Page
from penstock.gateway.pages.site import Site


@PAGES.at("/")
def overview(site: Site, look: Look, asked: Asked) -> Page:
    facts = {
        "sentence": health.overview(look),
        "needs": health.at_a_glance(look),
        "graph": graph_of(look),
    }
    return Page("overview.html", site.app.name, facts)


@PAGES.at("/pipeline")
def pipeline(site: Site, look: Look, asked: Asked) -> Page:
    return Page(
        "pipeline.html", "Pipeline", {"sentence": health.overview(look), "graph": graph_of(look, whole=True)}
    )
