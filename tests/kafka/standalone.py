"""Spark's own cluster from the pip package: a master and workers of one core each, on the loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sysconfig
import tempfile
import urllib.request
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyspark
from tests.servers import free_port
from tests.waiting import wait_until

_START_S = 120.0
_QUICK_TO_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@dataclass(slots=True)
class Standalone:
    """Every process leads a group of its own, so that an executor dies with its worker."""

    folder: Path
    port: int
    page: int  # its port
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def start(self, *, workers: int) -> None:
        self._launch("master", "master.Master", "--port", self.port, "--webui-port", self.page)
        wait_until(lambda: self._alive() is not None, timeout_s=_START_S, what="Spark's master")
        for number in range(workers):
            self._launch(
                f"worker{number}", "worker.Worker", "--port", 0, "--webui-port", 0, "--cores", 1,
                "--memory", "1g", "--work-dir", self.folder / f"worker{number}", self.url,
            )  # fmt: skip
        wait_until(lambda: self._alive() == workers, timeout_s=_START_S, what="Spark's workers")

    def kill(self, name: str) -> None:
        """kill -9 of a process and of those it has started."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for name in list(self.processes):
            self.kill(name)

    def _launch(self, name: str, main: str, *options: object) -> None:
        home = Path(pyspark.__file__).parent
        command = [home / "bin" / "spark-class", f"org.apache.spark.deploy.{main}", "--host", "127.0.0.1"]
        with (self.folder / f"{name}.txt").open("wb") as said:
            self.processes[name] = subprocess.Popen(
                [*map(str, command), *map(str, options)],
                stdout=said, stderr=said, env=_environment(), cwd=self.folder, start_new_session=True,
            )  # fmt: skip

    def _alive(self) -> int | None:
        """How many workers the master knows, None while it does not answer."""
        for name, process in self.processes.items():
            assert process.poll() is None, (self.folder / f"{name}.txt").read_text(errors="replace")[-2_000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.page}/json/", timeout=5) as answer:
                return int(json.load(answer)["aliveworkers"])
        except (OSError, json.JSONDecodeError):  # its pages are there before /json is
            return None


def _environment() -> Mapping[str, str]:
    """As on another machine: nothing of this run can be imported there."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PY")}
    return {**inherited, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_JAVA_OPTS": _QUICK_TO_START}


@contextmanager
def standalone(*, workers: int) -> Iterator[Standalone]:
    with tempfile.TemporaryDirectory(prefix="penstock-spark-", ignore_cleanup_errors=True) as folder:
        cluster = Standalone(Path(folder), free_port(), free_port())
        try:
            cluster.start(workers=workers)
            yield cluster
        finally:
            cluster.stop()


def python_without(folder: Path, packages: Sequence[str]) -> Path:
    """A Python like this one in which some packages are not installed."""
    venv.create(folder, symlinks=True, with_pip=False)
    place = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    for installed in Path(sysconfig.get_path("purelib")).iterdir():
        if not any(name in installed.name for name in packages):
            (place / installed.name).symlink_to(installed)
    return folder / "bin" / "python"
