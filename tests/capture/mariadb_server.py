"""A throwaway MariaDB with a binlog, that can be killed and started again on its data."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.servers import Unavailable, free_port
from tests.waiting import wait_until

pymysql = pytest.importorskip("pymysql")

PASSWORD = "s3cret"
_START_S = 40.0
_SETTINGS = (
    "--no-defaults", "--server-id=1", "--log-bin=binlog", "--binlog-format=ROW", "--binlog-row-image=FULL",
    "--binlog-row-metadata=FULL", "--skip-name-resolve", "--bind-address=127.0.0.1", "--sql-mode=",
    "--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M", "--performance-schema=OFF",
)  # fmt: skip


@dataclass
class MariaDB:
    """Its user `capture` may do what a capture has to."""

    folder: Path
    user: str
    port: int
    options: Sequence[str] = ()
    process: subprocess.Popen[bytes] | None = field(default=None)

    def url(self, database: str, *, user: str = "capture", password: str = PASSWORD) -> str:
        return f"mysql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str | None = None) -> Any:
        """As root, each statement committed at once."""
        return pymysql.connect(
            unix_socket=str(self.folder / "socket"), user="root", database=database, autocommit=True,
            charset="utf8mb4",
        )  # fmt: skip

    def start(self) -> None:
        with (self.folder / "server.log").open("ab") as output:
            self.process = subprocess.Popen(
                ["mariadbd", *_SETTINGS, *self.options, f"--datadir={self.folder / 'data'}",
                 f"--socket={self.folder / 'socket'}", f"--port={self.port}", f"--user={self.user}"],
                stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd=self.folder,
            )  # fmt: skip
        try:
            wait_until(self._answers, timeout_s=_START_S, what="MariaDB to answer")
        except TimeoutError as error:
            self.kill()
            raise Unavailable(f"MariaDB: {error}; see {self.folder / 'server.log'}") from error

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            last = (self.folder / "server.log").read_text(errors="replace").strip().splitlines()[-1:]
            raise Unavailable(f"MariaDB stopped: {' '.join(last)}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=2):
            self.connect().close()
            return True
        return False


@contextlib.contextmanager
def throwaway(*options: str) -> Iterator[MariaDB]:
    """Skips the test where there is no MariaDB."""
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="penstock-", dir=place) as folder:
        try:
            server = _made(Path(folder), options)
            server.start()
        except Unavailable as reason:
            pytest.skip(str(reason))
        try:
            yield server
        finally:
            server.kill()


def _made(folder: Path, options: Sequence[str]) -> MariaDB:
    if not shutil.which("mariadbd") or not shutil.which("mariadb-install-db"):
        raise Unavailable("MariaDB: there is no mariadbd on this machine")
    user = pwd.getpwuid(os.geteuid()).pw_name
    if user == "root":
        user = "mysql"
        account = pwd.getpwnam(user)
        os.chown(folder, account.pw_uid, account.pw_gid)
    made = subprocess.run(
        ["mariadb-install-db", "--no-defaults", f"--datadir={folder / 'data'}", f"--user={user}",
         "--skip-test-db", "--skip-name-resolve", "--auth-root-authentication-method=normal"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode:
        raise Unavailable(f"MariaDB: {(made.stderr or made.stdout).strip().splitlines()[-1]}")
    return MariaDB(folder, user, free_port(), options)


def grant(server: MariaDB) -> None:
    """A user with the least rights that a capture needs."""
    with contextlib.closing(server.connect()) as db, db.cursor() as cursor:
        cursor.execute(f"CREATE USER IF NOT EXISTS capture@'%' IDENTIFIED BY '{PASSWORD}'")
        cursor.execute("GRANT REPLICATION SLAVE, BINLOG MONITOR, SELECT ON *.* TO capture@'%'")
