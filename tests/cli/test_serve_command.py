"""`penstock serve`: what it refuses to serve, and an address that others can reach."""

from __future__ import annotations

import json
import signal
import socket
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.cli.command import Command, error_of

_OPEN = ("--host", "0.0.0.0", "--port", 0)


@pytest.fixture
def log(cli: Command) -> Command:
    """With a log that has a topic."""
    assert cli("topic", "create", "notes", "--schema", "text STRING").exit_code == 0
    return cli


@pytest.fixture
def tls(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate of this machine's own, for its loopback address, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "penstock test")]), datetime.now(UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = tmp_path / "server.pem", tmp_path / "server.key"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


def _refused(cli: Command, *arguments: object) -> str:
    """What it says. It must not begin to serve: then this would not come back."""
    result = cli("serve", *arguments, "--json")
    assert result.exit_code == 2, result.output
    error = error_of(result)
    return f"{error['message']} {error['hint']}"


def test_an_address_that_others_reach_needs_tls(log: Command) -> None:
    log("token", "create", "ann")
    assert "without TLS" in _refused(log, *_OPEN)


def test_an_address_that_others_reach_needs_a_token(log: Command, tls: tuple[Path, Path]) -> None:
    told = _refused(log, *_OPEN, "--certificate", tls[0], "--key", tls[1])
    assert "there is no token" in told
    assert "penstock token create" in told


def test_a_certificate_needs_its_key(log: Command, tls: tuple[Path, Path]) -> None:
    assert "give both" in _refused(log, "--certificate", tls[0])
    assert "there is no file" in _refused(log, "--certificate", tls[0], "--key", "nowhere.pem")
    assert "cannot be used for TLS" in _refused(log, "--certificate", tls[0], "--key", tls[0])


def test_a_port_that_is_taken_is_told_with_what_to_do(log: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        told = _refused(log, "--port", taken.getsockname()[1])
    assert "cannot be listened on" in told
    assert "--port" in told


def test_without_an_app_there_is_nothing_to_run(log: Command) -> None:
    assert "there is no app to run" in _refused(log, "--run", "--port", 0)


def test_without_an_app_there_must_be_a_log(cli: Command) -> None:
    result = cli("serve", "--port", 0, "--json")
    assert "there is no log" in error_of(result)["message"]


def test_an_open_address_with_tls_answers_who_has_a_token(log: Command, tls: tuple[Path, Path]) -> None:
    certificate, key = tls
    token = log.json("token", "create", "ann")["token"]
    with log.start("serve", *_OPEN, "--certificate", certificate, "--key", key, "--json") as process:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["address"]
        assert address.startswith("https://0.0.0.0:")
        port = address.rpartition(":")[2]
        trusted = ssl.create_default_context(cafile=certificate)
        with httpx.Client(verify=trusted, base_url=f"https://localhost:{port}/", timeout=60) as client:
            assert client.get("api/v1/topics").status_code == 401
            known = {"Authorization": f"Bearer {token}"}
            answer = client.get("api/v1/topics", headers=known)
            assert [topic["name"] for topic in answer.json()["topics"]] == ["notes"]
            assert "max-age" in answer.headers["Strict-Transport-Security"]
            foreign = client.get("api/v1/topics", headers={**known, "Host": "evil.example"})
            assert foreign.status_code == 403
            (log.home / "gateway" / "tokens.json").unlink()
            for nobody in ({}, known):
                assert client.get("api/v1/topics", headers=nobody).status_code == 401
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/api/v1/topics", headers=known, timeout=60)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
