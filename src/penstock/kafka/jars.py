"""Java libraries without a build tool: Ivy, which comes with pyspark, fetches them into a cache.

A machine that must not fetch, or that has a mirror, says so in the environment:

- `PENSTOCK_KAFKA_JARS`: a folder that holds the broker's jars already.
- `PENSTOCK_SPARK_KAFKA_JARS`: the same for those of Spark's Kafka connector.
- `PENSTOCK_IVY_SETTINGS`: an Ivy settings file, which names the mirror.
- `PENSTOCK_CACHE`: where they are kept (default: `penstock` in the user's cache folder).
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import NotSupported, StorageError

_FETCH_S_MAX = 600


@dataclass(frozen=True, slots=True)
class Jar:
    """One library by its Maven coordinates."""

    group: str
    artifact: str
    version: str

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"


@dataclass(frozen=True, slots=True)
class JarSet:
    """Libraries that work together, under one name. `given`: the variable that names a folder of them."""

    name: str
    jars: tuple[Jar, ...]
    given: str
    complete: bool = False  # nothing else is needed; otherwise what they need comes with them


BROKER = JarSet(
    "kafka-4.3.1",
    (Jar("org.apache.kafka", "kafka_2.13", "4.3.1"), Jar("org.apache.kafka", "kafka-tools", "4.3.1")),
    "PENSTOCK_KAFKA_JARS",
)


def _connector(version: str, tokens: str) -> JarSet:
    return JarSet(
        f"spark-kafka-{version}",
        (
            Jar("org.apache.spark", "spark-sql-kafka-0-10_2.13", version),
            Jar("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", tokens),
            Jar("org.apache.kafka", "kafka-clients", "3.9.2"),
            Jar("org.apache.commons", "commons-pool2", "2.12.1"),
        ),
        "PENSTOCK_SPARK_KAFKA_JARS",
        complete=True,
    )


_CONNECTOR_TESTED = _connector("4.2.0", "4.0.0")  # with Spark 4.2 and 4.3


def folder_of(wanted: JarSet) -> Path:
    """A folder that holds exactly these jars; fetched the first time."""
    given = os.environ.get(wanted.given)
    if given:
        return _given(Path(given), wanted)
    folder = cache() / wanted.name
    if not folder.exists():
        _fetch(wanted, folder)
    return folder


def connector() -> Path:
    """The jars of Spark's Kafka connector: of this Spark's version, or else those that are known to work.

    Not every mirror has each of them for each version.
    """
    exact = importlib.metadata.version("pyspark")
    wanted = [_connector(exact, exact), _CONNECTOR_TESTED]
    there = [each for each in wanted if (cache() / each.name).exists() or os.environ.get(each.given)]
    if there:
        return folder_of(there[0])
    try:
        return folder_of(wanted[0])
    except StorageError:
        return folder_of(wanted[1])


def cache() -> Path:
    chosen = os.environ.get("PENSTOCK_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


def java() -> str:
    """The program that runs Java."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if found is None:
        raise NotSupported("there is no Java here.", hint="install a Java 17 or newer, or set JAVA_HOME")
    return found


def _given(folder: Path, wanted: JarSet) -> Path:
    if not any(folder.glob("*.jar")):
        raise NotSupported(
            f"{wanted.given}={folder} holds no jars.",
            hint=f"put these there, with what they need: {', '.join(map(str, wanted.jars))}",
        )
    return folder


def _fetch(wanted: JarSet, folder: Path) -> None:
    """All of them or none: the folder comes to be when the last one is there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{wanted.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():  # another process was faster
            return
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{wanted.name}.") as place:
            for jar in wanted.jars:
                _fetch_one(jar, wanted, Path(place) / "jars")
            (Path(place) / "jars").rename(folder)


def _fetch_one(jar: Jar, wanted: JarSet, folder: Path) -> None:
    settings = os.environ.get("PENSTOCK_IVY_SETTINGS")
    command = [
        java(), "-jar", str(ivy()), "-cache", str(cache() / "ivy"),
        *(("-settings", settings) if settings else ()),
        *(("-notransitive",) if wanted.complete else ()),
        "-dependency", jar.group, jar.artifact, jar.version, "-confs", "default",
        "-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_S_MAX, check=False)
    except subprocess.TimeoutExpired:
        raise _not_fetched(jar, wanted, f"it took longer than {_FETCH_S_MAX} s") from None
    if done.returncode or not any(folder.glob(f"{jar.artifact}-{jar.version}*.jar")):
        raise _not_fetched(jar, wanted, _complaint(done.stdout + done.stderr))


def ivy() -> Path:
    spec = importlib.util.find_spec("pyspark")
    for place in spec.submodule_search_locations or () if spec else ():
        for found in Path(place).glob("jars/ivy-*.jar"):
            return found
    raise NotSupported(
        "Java libraries are fetched with the Ivy that comes with pyspark, which is not installed.",
        hint='pip install "penstock[spark,kafka]"',
    )


def _complaint(output: str) -> str:
    lines = [line.strip(": \t") for line in output.splitlines()]
    for mark in ("not found", "download failed", "Server access", "Exception", "FAILED"):
        for line in lines:
            if mark in line:
                return line
    return lines[-1] if lines else "it said nothing"


def _not_fetched(jar: Jar, wanted: JarSet, reason: str) -> StorageError:
    return StorageError(
        f"{jar} could not be fetched: {reason}.",
        hint="a mirror is named with PENSTOCK_IVY_SETTINGS=settings.xml; without a network, set "
        f"{wanted.given} to a folder that holds the jars",
    )
