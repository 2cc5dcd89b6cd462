"""What a process that the gateway starts is told, so that it finds the log where the gateway did."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock.opening import address_of

if TYPE_CHECKING:
    from penstock.app.app import App


def surroundings(app: App) -> dict[str, str]:
    """Those of this process; with the app's home, unless they lead to its log already, as on Kafka."""
    found = dict(os.environ)
    if address_of() != app.address:
        found["PENSTOCK_HOME"] = str(app.home)
    return found
