"""`kafka://host:port,host:port?option=value`: where a cluster is, and how to talk to it.

Options are librdkafka's own names (`security.protocol`, `sasl.mechanism`, `ssl.ca.location`, …). A user and a
password before the hosts stand for `sasl.username` and `sasl.password`. What begins with `schema.registry.`
is for the registry of Avro schemas.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.errors import BadOption, NotSupported
from penstock.kafka.registry import PREFIX

SCHEME = "kafka://"
_SERVER = re.compile(r"[^\s:]+(:\d+)?|\[[0-9a-fA-F:.]+\](:\d+)?")
_HINT = (
    "write it as kafka://host:port,host:port or kafka://user:password@host:port?security.protocol=SASL_SSL"
)


@dataclass(frozen=True, slots=True)
class Address:
    servers: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # there may be a password in them
    registry: Mapping[str, str] = field(default_factory=dict, repr=False)  # and in these

    @classmethod
    def parse(cls, url: str) -> Address:
        parts = urlsplit(url)
        user, at, servers = parts.netloc.rpartition("@")
        if f"{parts.scheme}://" != SCHEME or not servers or parts.path.strip("/"):
            raise BadOption(f"{cls.shown(url)} is no address of a Kafka cluster.", hint=_HINT)
        if parts.fragment or not all(_SERVER.fullmatch(server) for server in servers.split(",")):
            # What stands there may be a part of a password.
            raise BadOption(
                "this address of a Kafka cluster cannot be read.",
                hint="signs such as # ? / @ in a password are written %23 %3F %2F %40",
            )
        options = dict(parse_qsl(parts.query))
        if at:
            name, _, password = user.partition(":")
            sasl = {"sasl.username": unquote(name), "sasl.password": unquote(password)}
            defaults = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
            options = {**defaults, **sasl, **options}
        registry = {k.removeprefix(PREFIX): v for k, v in options.items() if k.startswith(PREFIX)}
        options = {name: value for name, value in options.items() if not name.startswith(PREFIX)}
        return cls(servers, options, registry)

    @staticmethod
    def shown(url: str) -> str:
        """Without a password."""
        scheme, _, rest = url.partition("?")[0].partition("://")
        return f"{scheme}://{rest.rpartition('@')[2]}"

    def __str__(self) -> str:
        return f"{SCHEME}{self.servers}"

    def client(self, **settings: Any) -> dict[str, Any]:
        """What librdkafka is told; names with underscores for dots."""
        return {
            "bootstrap.servers": self.servers,
            "client.id": "penstock",
            "log_level": 0,  # what matters comes as errors
            "socket.connection.setup.timeout.ms": 5_000,
            "socket.timeout.ms": 25_000,
            "reconnect.backoff.max.ms": 1_000,
            **self.options,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }

    def java(self) -> dict[str, str]:
        """The same for Kafka's own clients in Java, which name a few things otherwise."""
        found = {name: value for name, value in self.options.items() if name not in _RENAMED}
        if user := self.options.get("sasl.username"):
            mechanism = self.options.get("sasl.mechanism", "PLAIN")
            module = "scram.Scram" if mechanism.startswith("SCRAM") else "plain.Plain"
            password = self.options.get("sasl.password", "")
            found["sasl.jaas.config"] = (
                f"org.apache.kafka.common.security.{module}LoginModule required "
                f"username={_quoted(user)} password={_quoted(password)};"
            )
        if authority := self.options.get("ssl.ca.location"):
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": authority}
        if "ssl.certificate.location" in self.options:
            raise NotSupported(
                "a client's own certificate cannot be handed to Java from here.",
                hint="use SASL for this, or leave latency= out: micro-batches need no Java client",
            )
        return {"bootstrap.servers": self.servers, **found}


_RENAMED = {
    "sasl.username",
    "sasl.password",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
}


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
