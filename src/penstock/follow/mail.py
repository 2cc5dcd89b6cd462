"""A mail for each record. Subject and body are templates over its columns: "Order {id} of {customer}".

`{op}` is "u" for a row and "d" for a key that is gone, of which only the key's columns are known; the
others are empty then. The Message-ID is the same at each try, so that a receiver can tell.
"""

from __future__ import annotations

import ipaddress
import smtplib
import ssl
import string
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from email.message import EmailMessage
from typing import Any
from urllib.parse import unquote, urlsplit

import xxhash

from penstock.errors import BadOption, NotAllowed, Unreachable
from penstock.follow.deliveries import Message, Refused
from penstock.follow.table import TableSpec
from penstock.schema import did_you_mean

_SMTP_PORT, _SMTPS_PORT = 25, 465


class Mail:
    """One connection, opened when it is needed and again when it broke."""

    batch = 1

    def __init__(
        self,
        url: str,
        *,
        label: str,
        to: Sequence[str],
        sender: str,
        subject: str,
        body: str,
        timeout_s: float,
    ) -> None:
        self._place, self._timeout_s = urlsplit(url), timeout_s
        self.label = label
        place = f"{self._place.hostname}:{self._place.port} {' '.join(sorted(to))}"
        self.identity = f"mail-{xxhash.xxh3_64_hexdigest(place.encode())}"
        self._to, self._sender = list(to), sender
        self._subject, self._body = subject, body
        self._server: smtplib.SMTP | None = None
        self._taken: tuple[str, list[str]] = ("", [])  # a mail that not all have taken yet, and who has

    def check(self, spec: TableSpec) -> None:
        for template in (self._subject, self._body):
            for name in fields_of(template):
                if name not in (*spec.columns.names, "op"):
                    raise BadOption(
                        f'the mail for "{spec.name}" names a column "{name}" that is not there.',
                        hint=did_you_mean(name, spec.columns.names),
                    )

    def send(self, key: str, messages: Sequence[Message]) -> None:
        try:
            mail = self._written(key, messages[0])
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise Refused(f"the template does not fit this row: {error}") from error
        left = [one for one in self._to if self._taken[0] != key or one not in self._taken[1]]
        server = self._reached()
        try:
            refused = server.send_message(mail, to_addrs=left)
        except smtplib.SMTPRecipientsRefused as error:
            refused = error.recipients
        except smtplib.SMTPResponseException as error:
            self._refused((error.smtp_code, error.smtp_error))
        except (smtplib.SMTPException, OSError) as error:
            self.close()
            raise self._unreachable(str(error)) from error
        if refused:
            self._taken = key, [one for one in self._to if one not in refused]
            self._refused_by(refused)

    def close(self) -> None:
        if self._server is not None:
            with suppress(smtplib.SMTPException, OSError):
                self._server.quit()
        self._server = None

    def _written(self, key: str, message: Message) -> EmailMessage:
        values = _Row({**message.row, "op": message.op or ""})
        mail = EmailMessage()
        # A subject is one line, whatever its columns hold.
        mail["Subject"] = " ".join(self._subject.format_map(values).split())
        mail["From"], mail["To"] = self._sender, ", ".join(self._to)
        mail["Date"] = datetime.fromisoformat(message.time)  # when it was appended, at each try
        mail["Message-ID"] = f"<{key}@penstock>"
        mail.set_content(self._body.format_map(values))
        return mail

    def _reached(self) -> smtplib.SMTP:
        try:
            return self._opened()
        except (smtplib.SMTPException, OSError) as error:
            self.close()  # also a 5xx is about the server here, and not about a mail
            code, text = getattr(error, "smtp_code", 0), getattr(error, "smtp_error", b"")
            said = f"it answers {code} {_plain(text)}" if code else str(error)
            raise self._unreachable(said) from error

    def _opened(self) -> smtplib.SMTP:
        if self._server is None:
            host = self._place.hostname or ""
            context = ssl.create_default_context()
            if self._place.scheme == "smtps":
                port = self._place.port or _SMTPS_PORT
                server: smtplib.SMTP = smtplib.SMTP_SSL(host, port, timeout=self._timeout_s, context=context)
            else:
                server = smtplib.SMTP(host, self._place.port or _SMTP_PORT, timeout=self._timeout_s)
            self._server = server
            self._introduce(server, context)
        return self._server

    def _introduce(self, server: smtplib.SMTP, context: ssl.SSLContext) -> None:
        server.ehlo()
        private = self._place.scheme == "smtps"
        if not private and server.has_extn("starttls"):
            server.starttls(context=context)
            server.ehlo()
            private = True
        if self._place.username is None:
            return
        if not private and not _is_here(self._place.hostname or ""):
            self.close()
            raise NotAllowed(
                self.label, "it offers no encryption for a password", hint="use smtps://, or another server"
            )
        try:
            server.login(unquote(self._place.username), unquote(self._place.password or ""))
        except smtplib.SMTPAuthenticationError as error:
            self.close()
            raise NotAllowed(self.label, f"it answers {error.smtp_code} to the login") from None

    def _refused_by(self, recipients: Mapping[str, tuple[int, bytes | str]]) -> None:
        """Some, or all: those who may take it later are asked again first, and they alone."""
        one = min(recipients, key=lambda each: recipients[each][0])
        self._refused(recipients[one], f" for {', '.join(recipients)}" if len(self._to) > 1 else "")

    def _refused(self, answer: tuple[int, bytes | str], about: str = "") -> None:
        """4xx means later, 5xx never."""
        code, text = answer
        said = f"it answers {code} {_plain(text)}{about}"
        self.close()
        if 500 <= code < 600:
            raise Refused(said)
        raise self._unreachable(said)

    def _unreachable(self, said: str) -> Unreachable:
        return Unreachable(self.label, said, hint="it is tried again; check that it runs")


def _plain(text: bytes | str) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else text


class _Row(dict[str, Any]):
    """What a delete does not say is empty."""

    def __missing__(self, name: str) -> str:
        return ""


def fields_of(template: str) -> list[str]:
    """The columns that a template names. Raises ValueError where it cannot be read."""
    parts = (field for _, field, _, _ in string.Formatter().parse(template) if field is not None)
    return [part.split(".")[0].split("[")[0] for part in parts]


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False
