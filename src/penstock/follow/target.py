"""Where the rows or records of a view, stream or table also go: what `to=` says.

A target is a declaration: it checks what was said and connects to nothing. It is opened when the app runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable
from urllib.parse import SplitResult, urlsplit

from penstock.clock import duration_ms
from penstock.errors import BadOption, NotSupported
from penstock.follow.positions import Positions
from penstock.follow.store import Sink
from penstock.log.log import Log
from penstock.opening import check_postgres, check_secret, is_postgres


@dataclass(frozen=True, slots=True)
class Site:
    """Where an app is, for targets that keep something there."""

    app: str
    home: Path
    log: Log


@runtime_checkable
class Target(Protocol):
    @property
    def label(self) -> str:
        """For people: the address, without what is secret in it."""

    @property
    def keyed(self) -> bool:
        """Whether it holds rows by key; else it gets each record."""

    def open(self, site: Site) -> Sink: ...


@dataclass(frozen=True, slots=True)
class SQLiteTarget:
    path: Path
    keyed: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return f"sqlite:///{self.path}"

    def open(self, site: Site) -> Sink:
        from penstock.follow.sqlite import SQLiteStore

        return SQLiteStore(self.path)


@dataclass(frozen=True, slots=True)
class PostgresTarget:
    url: str = field(repr=False)
    keyed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not is_postgres(check_secret(self.url)):
            raise BadOption(
                "this is no address of PostgreSQL.", hint='write "postgresql://user@host/database"'
            )
        check_postgres()

    @property
    def label(self) -> str:
        return shown(self.url)

    def open(self, site: Site) -> Sink:
        from penstock.follow.postgres import PostgresStore

        return PostgresStore(self.url)


@dataclass(frozen=True, slots=True)
class RedisTarget:
    url: str = field(repr=False)
    prefix: str = "penstock"
    ttl_ms: int | None = None
    keyed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        parts(self.url, ("redis", "rediss"), "redis://host:6379/0")
        if not self.prefix or self.prefix.isspace():
            raise BadOption(
                "the prefix of keys in Redis is empty.", hint='say prefix="shop", or leave it out'
            )
        if self.ttl_ms is not None and self.ttl_ms <= 0:
            raise BadOption("a ttl is longer than nothing.", hint='say ttl="1 hour", or leave it out')
        check_package("redis", "redis")

    @property
    def label(self) -> str:
        return shown(self.url)

    def open(self, site: Site) -> Sink:
        from penstock.follow.redis import RedisSink

        return RedisSink(self.url, label=self.label, prefix=self.prefix, ttl_ms=self.ttl_ms)


@dataclass(frozen=True, slots=True)
class SearchTarget:
    path: Path
    text: tuple[str, ...] = ()  # none: all columns of text
    every_ms: int = 1_000
    keyed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_package("tantivy", "search")

    @property
    def label(self) -> str:
        return f"search:///{str(self.path).lstrip('/')}"

    def open(self, site: Site) -> Sink:
        from penstock.follow.search import SearchSink

        return SearchSink(self.path, text=self.text, gather_s=self.every_ms / 1_000)


@dataclass(frozen=True, slots=True)
class DeltaTarget:
    path: Path
    every_ms: int = 10_000
    keyed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_package("deltalake", "delta")

    @property
    def label(self) -> str:
        return f"delta:///{str(self.path).lstrip('/')}"

    def open(self, site: Site) -> Sink:
        from penstock.follow.delta import DeltaSink

        return DeltaSink(self.path, gather_s=self.every_ms / 1_000)


@dataclass(frozen=True, slots=True)
class ParquetTarget:
    path: Path
    every_ms: int = 10_000
    keyed: ClassVar[bool] = False

    @property
    def label(self) -> str:
        return f"parquet:///{str(self.path).lstrip('/')}"

    def open(self, site: Site) -> Sink:
        from penstock.follow.parquet import ParquetSink

        return ParquetSink(self.path, gather_s=self.every_ms / 1_000)


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    url: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(repr=False, default=())
    batch: int = 1
    timeout_ms: int = 10_000
    give_up_after_ms: int = 86_400_000
    keyed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        parts(self.url, ("http", "https"), "https://example.com/hook")
        if not 1 <= self.batch <= 10_000:
            raise BadOption(f"batch={self.batch!r}.", hint="choose 1 to 10,000 records for one POST")
        for name, value in self.headers:
            if not name or not f"{name}{value}".isascii() or not f"{name}{value}".isprintable():
                raise BadOption(f"{name!r} is no header.", hint="names and values are one line of ASCII each")

    @property
    def label(self) -> str:
        # Not the path: many services have their secret there.
        place = urlsplit(self.url)
        return f"{place.scheme}://{_host(place)}/…" if place.path.strip("/") else shown(self.url)

    def open(self, site: Site) -> Sink:
        from penstock.follow.deliveries import Deliveries
        from penstock.follow.webhook import Webhook

        sender = Webhook(
            self.url, label=self.label, headers=dict(self.headers), batch=self.batch,
            timeout_s=self.timeout_ms / 1_000,
        )  # fmt: skip
        give_up_after_s = self.give_up_after_ms / 1_000
        return Deliveries(sender, _positions(site), site.log, give_up_after_s=give_up_after_s)


@dataclass(frozen=True, slots=True)
class MailTarget:
    url: str = field(repr=False)
    to: tuple[str, ...]
    sender: str
    subject: str
    body: str = field(repr=False)
    timeout_ms: int = 30_000
    give_up_after_ms: int = 86_400_000
    keyed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        parts(self.url, ("smtp", "smtps"), "smtps://user:password@mail.example.com")
        for address in (*self.to, self.sender):
            if "@" not in address or address != "".join(address.split()):
                raise BadOption(f"{address!r} is no mail address.", hint='write it as "ann@example.com"')
        if not self.to:
            raise BadOption("a mail to nobody.", hint='say to=["ann@example.com"]')
        _check_template(self.subject)
        _check_template(self.body)

    @property
    def label(self) -> str:
        return shown(self.url)

    def open(self, site: Site) -> Sink:
        from penstock.follow.deliveries import Deliveries
        from penstock.follow.mail import Mail

        sender = Mail(
            self.url, label=self.label, to=self.to, sender=self.sender, subject=self.subject, body=self.body,
            timeout_s=self.timeout_ms / 1_000,
        )  # fmt: skip
        give_up_after_s = self.give_up_after_ms / 1_000
        return Deliveries(sender, _positions(site), site.log, give_up_after_s=give_up_after_s)


def _positions(site: Site) -> Positions:
    return Positions(site.home / "follow" / f"{site.app}.db")


# ---- what was said ------------------------------------------------------------------------------


def parts(url: str, schemes: Sequence[str], example: str) -> SplitResult:
    """An address taken apart. Raises BadOption for what is none, and repeats no secrets."""
    if "https" not in schemes:  # where a path may be anything
        check_secret(url)
    try:
        found = urlsplit(url)
        is_meant = found.scheme in schemes and bool(found.hostname) and found.port != 0
        # As whoever connects does: a ValueError for a name that no host has.
        (found.hostname or "").encode("idna")
    except ValueError:
        is_meant = False
    if not is_meant or not url.isascii() or any(character.isspace() for character in url):
        raise BadOption(f"this is no address of {schemes[0]}.", hint=f'write it as "{example}"')
    return found


def shown(url: str) -> str:
    """An address without user, password and options."""
    place = urlsplit(url)
    return f"{place.scheme}://{_host(place)}{place.path}"


def path_of(address: str | Path, scheme: str) -> Path:
    """The absolute path in "scheme:///path", or a plain path."""
    text = str(address).removeprefix(f"{scheme}://")
    if not text.strip("/") or "://" in text:
        raise BadOption(f"{str(address)!r} names no path.", hint=f'write it as "{scheme}:///path"')
    return Path(text).absolute()


def milliseconds(text: str | float | None) -> int | None:
    return None if text is None else duration_ms(text)


def check_package(package: str, extra: str) -> None:
    """Raises NotSupported where a package is not installed."""
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise NotSupported(
            f"that needs the package {package}, which is not installed ({error}).",
            hint=f'install it with: pip install "penstock[{extra}]"',
        ) from error


def _host(place: SplitResult) -> str:
    return place.netloc.rpartition("@")[2]


def _check_template(template: str) -> None:
    from penstock.follow.mail import fields_of

    try:
        names = fields_of(template)
    except ValueError as error:
        raise BadOption(f"the template {template!r} cannot be read ({error}).", hint=_TEMPLATE) from error
    if any(not name or name.isdecimal() for name in names):
        raise BadOption(f"the template {template!r} names no column in its braces.", hint=_TEMPLATE)


_TEMPLATE = 'write columns in braces, as "Order {id} of {customer}", and a brace itself twice'
