"""The embedded log keeps the log contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.log.embedded import EmbeddedLog
from penstock.log.log import Log
from penstock.log.port import LogPort
from penstock.testing.log_contract import LogContract


class TestEmbeddedLog(LogContract):
    @pytest.fixture
    def port(self, tmp_path: Path) -> Iterator[LogPort]:
        port = EmbeddedLog(tmp_path / "log")
        yield port
        port.close()

    def reopen(self, port: LogPort) -> LogPort:
        assert isinstance(port, EmbeddedLog)
        return EmbeddedLog(port.home)

    def expire(self, port: LogPort, topic: str, partition: int) -> None:
        assert isinstance(port, EmbeddedLog)
        Log(port).alter_topic(topic, retention_bytes=0)
        port.maintain(topic, partition)
