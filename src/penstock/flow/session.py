"""One Spark session, tuned for small batches; on this machine, or on a cluster."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from penstock.errors import BadOption, NotSupported
from penstock.flow import cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STREAMING = "org.apache.spark.sql.execution.streaming"
_EVERYWHERE = {
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
    # A plan is known by its text, which must not be shortened.
    "spark.sql.debug.maxToStringFields": "100000",
    # A plan shows the options of its source, among which may be a password.
    "spark.sql.redaction.options.regex": "(?i)url|password|kafka://[^?]*@",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # A query that was stopped in the middle of a batch matches a Python traceback with a recursive regex.
    "spark.driver.extraJavaOptions": "-Xss8m -XX:+UseParallelGC",
}
# On a cluster these are for those who run it: they say so in spark-defaults.conf, or the app does.
_ONE_MACHINE = {
    "spark.shuffle.compress": "false",
    "spark.locality.wait": "0",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def start_session(
    name: str,
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    checkpoints: Path | None = None,
    held: int = 0,
) -> SparkSession:
    """The running session, or a new one with our source registered.

    `checkpoints`: the folder that the workers of a cluster must share with us. `held`: how many tasks of
    real-time queries there will be for good, beside those of batches; on a cluster it must have them.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise NotSupported(
            "event-time processing runs on Spark, and pyspark is not installed.",
            hint='pip install "penstock[spark]"; it needs a Java 17 or newer',
        ) from error
    master = master or f"local[{cores() + held},4]"
    before = is_running()
    if not before:
        cluster.check_master(master)
    _choose_python(master)
    _find_java()
    builder: Any = SparkSession.builder.appName(name).master(master)
    for key, value in {**settings_for(master), **(settings or {})}.items():
        builder = builder.config(key, value)
    with _quiet_start():
        session: SparkSession = builder.getOrCreate()
    try:
        _make_ready(session, master, checkpoints)
    except BaseException:
        if not before:
            session.stop()
        raise
    return session


def settings_for(master: str) -> dict[str, str]:
    """Ours; what a user sets comes over them."""
    if cluster.is_cluster(master):
        return _EVERYWHERE
    parallel = {"spark.sql.shuffle.partitions": str(cores()), "spark.default.parallelism": str(cores())}
    return {**_EVERYWHERE, **_ONE_MACHINE, **parallel}


def cores() -> int:
    return os.cpu_count() or 2


def _make_ready(session: SparkSession, master: str, checkpoints: Path | None) -> None:
    running = session.sparkContext.master or cluster.LOCAL
    if cluster.is_cluster(master) and running != master:
        raise BadOption(
            f"Spark runs in this process already, on {running}, and not on {master}.",
            hint="stop that session first, or run the app in a process of its own",
        )
    session.sparkContext.setLogLevel("ERROR")
    if cluster.is_cluster(running):
        cluster.prepare(session, checkpoints)
    else:
        _write_no_side_files(session)
    _register(session)


def _choose_python(master: str) -> None:
    """On this machine workers must run the Python that runs this; those of a cluster may have another."""
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if cluster.is_cluster(master):
        # Streams are planned here, by the workers' Python, which is not handed what workers are.
        ours, given = str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = f"{ours}{os.pathsep}{given}" if given else ours
    if not cluster.is_cluster(master) or not os.environ.get("PYSPARK_PYTHON"):
        os.environ["PYSPARK_PYTHON"] = sys.executable


def is_running() -> bool:
    """Whether this process has a session already."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:  # start_session says what to do
        return False
    return SparkSession.getActiveSession() is not None


def send_by_value(module: ModuleType) -> None:
    """Functions of an app's file reach Spark's workers whole: importing it there would declare the app."""
    try:
        from pyspark import cloudpickle
    except ImportError:  # start_session says what to do
        return
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
