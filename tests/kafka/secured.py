"""A real broker that wants to know who asks: SASL, TLS, and rights for each user."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from tests.servers import free_port
from tests.waiting import wait_until

from penstock.kafka import jars
from penstock.kafka.address import Address
from penstock.kafka.cluster import Cluster, Node

PASSWORDS = {"ann": "ann-5ecret", "eve": "eve-5ecret"}  # ann may do everything
_STORE = "changeit"
_KAFKA = "org.apache.kafka"
_HOST = "127.0.0.1"

Right = tuple[ResourceType, str, AclOperation]


@dataclass(frozen=True, slots=True)
class Secured:
    """One broker with three ports. At the plain one, everybody may do everything."""

    plain: str
    sasl_port: int
    tls_port: int
    certificate: Path

    def sasl(self, user: str, password: str | None = None) -> str:
        credentials = f"{user}:{password or PASSWORDS[user]}"
        return f"kafka://{credentials}@{_HOST}:{self.sasl_port}?security.protocol=SASL_PLAINTEXT"

    def tls(self, user: str, password: str | None = None) -> str:
        credentials = f"{user}:{password or PASSWORDS[user]}"
        options = f"sasl.mechanism=SCRAM-SHA-512&ssl.ca.location={self.certificate}"
        return f"kafka://{credentials}@{_HOST}:{self.tls_port}?{options}"

    def grant(self, user: str, *rights: Right) -> None:
        """By the beginning of a name."""
        admin = self._admin()
        bindings = [
            AclBinding(
                kind, name, ResourcePatternType.PREFIXED, f"User:{user}", "*", operation,
                AclPermissionType.ALLOW,
            )
            for kind, name, operation in rights
        ]  # fmt: skip
        for granted in admin.create_acls(bindings).values():
            granted.result(30)

    def add_users(self, users: Iterable[str]) -> None:
        """For SCRAM; those for PLAIN are in the settings."""
        admin, how = self._admin(), ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        for user in users:
            wanted = UserScramCredentialUpsertion(user, how, PASSWORDS[user].encode())
            for altered in admin.alter_user_scram_credentials([wanted]).values():
                altered.result(30)
            wait_until(partial(_is_known, admin, user), what=f"{user} to be known")

    def _admin(self) -> AdminClient:
        return AdminClient(Address.parse(self.plain).client())


def start(folder: Path) -> tuple[Cluster, Secured]:
    cluster = Cluster(folder / "cluster")
    (node,) = cluster.create(port=0).nodes
    store, certificate = folder / "broker.p12", folder / "certificate.pem"
    certificate.write_bytes(_certificate(store))
    sasl_port, tls_port = free_port(), free_port()
    with cluster.properties(node).open("a") as added:
        for name, value in _settings(node, sasl_port, tls_port, store).items():
            added.write(f"{name}={value}\n")
    secured = Secured(cluster.up().url, sasl_port, tls_port, certificate)
    secured.add_users(PASSWORDS)
    return cluster, secured


def _settings(node: Node, sasl_port: int, tls_port: int, store: Path) -> dict[str, str]:
    listeners = (
        f"PLAINTEXT://{_HOST}:{node.port},SASL://{_HOST}:{sasl_port},TLS://{_HOST}:{tls_port}"
    )  # fmt: skip
    users = " ".join(f'user_{user}="{password}"' for user, password in PASSWORDS.items())
    security = f"{_KAFKA}.common.security"
    return {
        "listeners": f"{listeners},CONTROLLER://{_HOST}:{node.controller_port}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SASL_SSL"
        ),
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": f"{security}.plain.PlainLoginModule required {users};",
        "listener.name.tls.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.tls.scram-sha-512.sasl.jaas.config": f"{security}.scram.ScramLoginModule required;",
        "listener.name.tls.ssl.keystore.location": str(store),
        "listener.name.tls.ssl.keystore.password": _STORE,
        "listener.name.tls.ssl.keystore.type": "PKCS12",
        "authorizer.class.name": f"{_KAFKA}.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:ann",
    }


def _certificate(store: Path) -> bytes:
    """Of a key that is made here, and signs itself."""
    keytool = Path(jars.java()).with_name("keytool")
    known = ["-alias", "broker", "-keystore", str(store), "-storepass", _STORE]
    wanted = ["-keyalg", "EC", "-dname", "CN=broker", "-ext", f"SAN=ip:{_HOST}", "-storetype", "PKCS12"]
    subprocess.run([keytool, "-genkeypair", *known, *wanted], check=True, capture_output=True)
    exported = subprocess.run([keytool, "-exportcert", "-rfc", *known], check=True, capture_output=True)
    return exported.stdout


def _is_known(admin: AdminClient, user: str) -> bool:
    found: Any = admin.describe_user_scram_credentials([user])
    (described,) = found.values()
    try:
        return bool(described.result(30).scram_credential_infos)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.RESOURCE_NOT_FOUND:  # the broker has not heard of it yet
            return False
        raise
