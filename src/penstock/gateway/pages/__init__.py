"""The pages, for people with a browser. `routes` is included by `application.create`."""

from penstock.gateway.pages.routes import routes as routes
