"""A real schema registry: Apicurio, which has Confluent's interface, from Maven Central, on Java."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers import Unavailable, free_port
from tests.waiting import wait_until

from penstock.kafka.cluster import State
from penstock.kafka.jars import cache, ivy, java

_NAME, _VERSION = "apicurio-registry-app", "2.6.13.Final"
_FETCH_S_MAX = 600
_START_S = 60.0
# It is a program in an archive beside the library's jar, which Ivy's command line has no word for.
_WANTED = f"""
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="penstock" module="registry"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="io.apicurio" name="{_NAME}" rev="{_VERSION}" transitive="false" conf="*->master(*)">
      <artifact name="{_NAME}" type="tar.gz" ext="tar.gz" m:classifier="all"/>
    </dependency>
  </dependencies>
</ivy-module>
"""


@dataclass(frozen=True, slots=True)
class Running:
    url: str

    def ask(self, method: str, path: str, **body: object) -> Any:
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(
            f"{self.url}{path}", data, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read())

    def answers(self) -> bool:
        try:
            return isinstance(self.ask("GET", "/subjects"), list)
        except OSError:
            return False

    def register(self, subject: str, schema: object) -> int:
        return int(self.ask("POST", f"/subjects/{subject}/versions", schema=json.dumps(schema))["id"])

    def versions(self, subject: str) -> list[dict[str, Any]]:
        """The schemas of a subject, oldest first."""
        numbers = self.ask("GET", f"/subjects/{subject}/versions")
        texts = [self.ask("GET", f"/subjects/{subject}/versions/{n}")["schema"] for n in numbers]
        return [json.loads(text) for text in texts]


@contextmanager
def running(folder: Path) -> Iterator[Running]:
    """In memory, with Confluent's default of backward compatibility. Raises Unavailable."""
    program = next(_installed().glob("*-runner.jar"))
    port = free_port()
    command = [
        java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", f"-Dquarkus.http.port={port}",
        "-Dquarkus.http.host=127.0.0.1", "-jar", str(program),
    ]  # fmt: skip
    with (folder / "registry.txt").open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, cwd=folder, stdin=subprocess.DEVNULL)
    try:
        found = Running(f"http://127.0.0.1:{port}/apis/ccompat/v7")
        wait_until(found.answers, timeout_s=_START_S, what="the schema registry to answer")
        found.ask("PUT", "/config", compatibility="BACKWARD")
        yield found
    except TimeoutError as error:
        raise Unavailable(f"schema registry: {error}") from error
    finally:
        process.kill()
        process.wait()


def _installed() -> Path:
    """Fetched once, into the cache that the brokers' jars have."""
    folder = cache() / f"{_NAME}-{_VERSION}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as place:
                archive = _fetched(Path(place))
                with tarfile.open(archive) as opened:
                    opened.extractall(Path(place) / "all", filter="data")
                shutil.move(Path(place) / "all", folder)
    return folder


def _fetched(place: Path) -> Path:
    (place / "ivy.xml").write_text(_WANTED.strip())
    settings = os.environ.get("PENSTOCK_IVY_SETTINGS")
    command = [
        java(), "-jar", str(ivy()), "-cache", str(cache() / "ivy"),
        *(("-settings", settings) if settings else ()),
        "-ivy", str(place / "ivy.xml"), "-retrieve", f"{place}/[artifact].[ext]",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_S_MAX, check=False)
    archive = place / f"{_NAME}.tar.gz"
    if not archive.exists():
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        raise Unavailable(f"schema registry: it could not be fetched: {' '.join(last)}")
    return archive


def with_registry(kafka: State, url: str) -> str:
    return f"{kafka.url}?schema.registry.url={url}"
