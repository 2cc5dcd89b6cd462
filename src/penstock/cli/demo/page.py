"""The shop's page: `penstock serve`, as one of the demo's processes."""

from __future__ import annotations

import threading

from penstock.cli.demo.actors import say
from penstock.cli.demo.command import SHOP
from penstock.cli.demo.shop import app


def run(port: str, stopping: threading.Event) -> None:
    """Tell the address once it answers."""
    from penstock.gateway.gateway import Gateway, Settings
    from penstock.gateway.serving import Address, Server

    gateway = Gateway(app, Settings(source=SHOP))
    server = Server(gateway, Address(port=int(port)), on_ready=lambda url: say(address=url, ready=True))

    def end() -> None:
        stopping.wait()
        server.should_exit = True

    threading.Thread(target=end, daemon=True).start()
    server.run()
    app.close()
