"""One Spark session, tuned for small batches on one machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from penstock.errors import NotSupported

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STREAMING = "org.apache.spark.sql.execution.streaming"
_SETTINGS = {
    # About 40 ms off every hop into Python.
    "spark.python.unix.domain.socket.enabled": "true",
    # The default forks some forty processes a batch; the crash tests show that ours survives without.
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.stateStore.providerClass": f"{_STREAMING}.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.join.stateFormatVersion": "3",
    "spark.sql.adaptive.enabled": "false",
    "spark.shuffle.compress": "false",
    "spark.locality.wait": "0",
    "spark.driver.memory": "2g",
    # A plan is known by its text, which must not be shortened.
    "spark.sql.debug.maxToStringFields": "100000",
    # A plan shows the options of its source, and the log's address may have a password in it.
    "spark.sql.redaction.options.regex": "(?i)url|kafka://[^?]*@",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # A query that was stopped in the middle of a batch matches a Python traceback with a recursive regex.
    "spark.driver.extraJavaOptions": "-Xss8m -XX:+UseParallelGC",
}


def start_session(
    name: str, *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The running session, or a new one with our source registered."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise NotSupported(
            "event-time processing runs on Spark, and pyspark is not installed.",
            hint='pip install "penstock[spark]"; it needs a Java 17 or newer',
        ) from error
    cores = os.cpu_count() or 2
    # Spark's workers must run the Python that runs this.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    _find_java()
    builder: Any = SparkSession.builder.appName(name).master(master or f"local[{cores},4]")
    chosen = {**_SETTINGS, "spark.sql.shuffle.partitions": str(cores), **(settings or {})}
    for key, value in chosen.items():
        builder = builder.config(key, value)
    with _quiet_start():
        session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    _write_no_side_files(session)
    _register(session)
    return session


def is_running() -> bool:
    """Whether this process has a session already."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:  # start_session says what to do
        return False
    return SparkSession.getActiveSession() is not None


def send_by_value(module: ModuleType) -> None:
    """Functions of an app's file reach Spark's workers whole: importing it there would declare the app."""
    from pyspark import cloudpickle

    register: Any = cloudpickle.register_pickle_by_value
    register(module)


def _find_java() -> None:
    """The Java that `make` brings into the environment, where the machine has none."""
    brought = Path(sys.prefix) / "java"
    if "JAVA_HOME" not in os.environ and not shutil.which("java") and (brought / "bin" / "java").exists():
        os.environ["JAVA_HOME"] = str(brought)


def _register(session: SparkSession) -> None:
    import warnings

    from penstock.flow.source import LogSource

    with warnings.catch_warnings():  # says that a name is taken when a session is used again
        warnings.simplefilter("ignore")
        session.dataSource.register(LogSource)


def _write_no_side_files(session: SparkSession) -> None:
    """Hadoop's local files would each get a .crc file beside them."""
    jvm: Any = session._jvm
    local = jvm.java.net.URI("file:///")
    files = jvm.org.apache.hadoop.fs.FileSystem.get(local, session._jsc.hadoopConfiguration())
    files.setWriteChecksum(False)
    files.setVerifyChecksum(False)


@contextlib.contextmanager
def _quiet_start() -> Any:
    """The launcher greets people on stderr before its log level can be set."""
    sys.stderr.flush()
    saved = os.dup(2)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
