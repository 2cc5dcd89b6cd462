"""One message as a receiver of webhooks got it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import BadRecord


@dataclass(frozen=True, slots=True)
class Received:
    """`headers` have lower-case names and no `authorization`."""

    path: str
    body: bytes
    key: str | None = None  # the sender's Idempotency-Key
    headers: Mapping[str, str] = field(default_factory=dict)

    def json(self) -> Any:
        """Raises BadRecord where the body is none."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise BadRecord(
                f"the body is no JSON: {error}.", hint="look at its bytes: message.body"
            ) from error
