"""JSON answers, written by orjson: what `to_json` gives, and dataclasses."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import orjson
from starlette.responses import Response

_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z


class Json(Response):
    """One JSON value."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return dumps(content)


def dumps(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=_OPTIONS)
    except TypeError:  # whole numbers beyond 64 bits and halves of characters, which an error may tell about
        return json.dumps(value, default=_plain).encode()


def _plain(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}
