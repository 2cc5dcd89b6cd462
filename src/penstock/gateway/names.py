"""Names in requests, checked before they touch anything."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from pydantic import AfterValidator

_PATTERN = r"^[a-zA-Z0-9._-]{1,249}$"


def _no_folder(name: str) -> str:
    if name in (".", ".."):
        raise ValueError("it is no name")
    return name


def _name(what: str, example: str) -> object:
    return Path(description=f"The name of {what}.", pattern=_PATTERN, max_length=249, examples=[example])


_CHECKED = AfterValidator(_no_folder)

TopicName = Annotated[str, _name("the topic", "page_views"), _CHECKED]
ViewName = Annotated[str, _name("the view or stream", "views_per_minute"), _CHECKED]
TableName = Annotated[str, _name("the table", "users"), _CHECKED]
GroupName = Annotated[str, _name("the consumer group", "mailer"), _CHECKED]
QueueName = Annotated[str, _name("the queue", "mails"), _CHECKED]
