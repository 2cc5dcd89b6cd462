"""`ps.to`: where the rows of a view, stream or table also go. Each is a value for `to=[...]`.

Nothing is connected to before the app runs. Where an address says enough, it can stand for itself:
`to=["redis://localhost:6379/0", "parquet:///archive"]`.

Rows by key, exactly what the log says up to an offset that is kept with them:
`sqlite`, `postgres`, `redis`, `search`, `delta`.
Each record: `parquet` exactly once; `webhook` and `mail` at least once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from penstock.clock import duration_ms
from penstock.errors import BadOption
from penstock.follow.feed import Kind, check_keyed
from penstock.follow.target import (
    DeltaTarget,
    MailTarget,
    ParquetTarget,
    PostgresTarget,
    RedisTarget,
    SearchTarget,
    SQLiteTarget,
    Target,
    WebhookTarget,
    milliseconds,
    path_of,
)

Places = str | Target | Sequence[str | Target]
"""What `to=` takes: one target, or several."""

_KINDS = (
    "sqlite:///path, postgresql://…, redis://…, search:///path, delta:///path, parquet:///path, "
    "http://…, https://…, or one of ps.to"
)


def sqlite(path: str | Path) -> SQLiteTarget:
    """A table in a SQLite file, of its own columns and a unique key."""
    # Three slashes come before a path, as in all such addresses: a fourth makes it absolute.
    return SQLiteTarget(path_of(str(path).replace("sqlite:///", "", 1), "sqlite"))


def postgres(url: str) -> PostgresTarget:
    """A table in PostgreSQL, of native types."""
    return PostgresTarget(url)


def redis(url: str, *, prefix: str = "penstock", ttl: str | float | None = None) -> RedisTarget:
    """JSON under `<prefix>:<name>:<key>`; with a `ttl` it goes away so long after it last changed."""
    return RedisTarget(url, prefix, milliseconds(ttl))


def search(
    path: str | Path, *, text: str | Sequence[str] = (), every: str | float = "1 second"
) -> SearchTarget:
    """A search index in `<path>/<name>`, for `penstock search`; `text`: columns to look in (default: all)."""
    columns = (text,) if isinstance(text, str) else tuple(text)
    return SearchTarget(path_of(path, "search"), columns, duration_ms(every))


def delta(path: str | Path, *, every: str | float = "10 seconds") -> DeltaTarget:
    """A Delta Lake table in `<path>/<name>`; a commit at most this often."""
    return DeltaTarget(path_of(path, "delta"), duration_ms(every))


def parquet(path: str | Path, *, every: str | float = "10 seconds") -> ParquetTarget:
    """Parquet files of all records, in `<path>/<name>`; a file at most this often."""
    return ParquetTarget(path_of(path, "parquet"), duration_ms(every))


def webhook(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    batch: int = 1,
    timeout: str | float = "10 seconds",
    give_up_after: str | float = "1 day",
) -> WebhookTarget:
    """A POST for each record, or for up to `batch` of them, as JSON with an Idempotency-Key.

    Tried again when there is no answer, or 408, 425, 429 or 5xx. What gets another answer, and what
    cannot be delivered within `give_up_after`, goes to the topic `<name>.dead`.
    """
    pairs = tuple((str(name), str(value)) for name, value in (headers or {}).items())
    return WebhookTarget(url, pairs, batch, duration_ms(timeout), duration_ms(give_up_after))


def mail(
    url: str,
    *,
    to: str | Sequence[str],
    sender: str,
    subject: str,
    body: str,
    timeout: str | float = "30 seconds",
    give_up_after: str | float = "1 day",
) -> MailTarget:
    """A mail for each record; `subject` and `body` have columns in braces: "Order {id}"."""
    receivers = (to,) if isinstance(to, str) else tuple(to)
    return MailTarget(url, receivers, sender, subject, body, duration_ms(timeout), duration_ms(give_up_after))


def targets(
    to: Places, *, name: str, kind: Kind, key: tuple[str, ...], event_time: str | None = None
) -> tuple[Target, ...]:
    """What `to=` means for a view, stream or table; raises BadOption or NotSupported."""
    said = [to] if isinstance(to, str) or not isinstance(to, Sequence) else to
    found = tuple(_read(one) for one in said)
    for at, target in enumerate(found):
        if target in found[:at]:
            raise BadOption(f'"{name}" goes to {target.label} twice.', hint="name it once")
        if target.keyed:
            check_keyed(name, kind, key, event_time, target.label)
    return found


def _read(said: object) -> Target:
    if isinstance(said, Target):
        return said
    if not isinstance(said, str):
        raise BadOption(f"nothing can follow to {type(said).__name__}.", hint=f"say {_KINDS}")
    scheme, colon, _ = said.partition("://")
    if scheme in ("smtp", "smtps"):
        raise BadOption(
            "an address alone does not say what to mail to whom.",
            hint="say ps.to.mail(url, to=…, sender=…, subject=…, body=…)",
        )
    if not colon or scheme not in _BY_SCHEME:
        raise BadOption(f'nothing can follow to "{scheme}".', hint=f"say {_KINDS}")
    return _BY_SCHEME[scheme](said)


_BY_SCHEME: dict[str, Callable[[str], Target]] = {
    "sqlite": sqlite,
    "postgres": postgres,
    "postgresql": postgres,
    "redis": redis,
    "rediss": redis,
    "search": search,
    "delta": delta,
    "parquet": parquet,
    "http": webhook,
    "https": webhook,
}
