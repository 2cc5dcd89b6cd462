"""JSON answers, written by orjson: what `to_json` gives, and dataclasses."""

from __future__ import annotations

import json
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
    except TypeError:  # whole numbers beyond 64 bits, which no topic has but an error may tell about
        return json.dumps(value, ensure_ascii=False).encode()
