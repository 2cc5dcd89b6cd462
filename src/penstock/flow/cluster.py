"""A Spark cluster: what its workers need of us, and what is looked at before anything runs there.

Workers are other machines. They get our code and the program's with the session (see shipping.py), but they
must have the packages that both are built on, and see the folder in which state is kept.
"""

from __future__ import annotations

import shutil
import socket
import threading
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from penstock.errors import BadOption, NotSupported, Unreachable
from penstock.flow import shipping, worker
from penstock.flow.worker import Look
from penstock.opening import is_kafka

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

MODULES = ("numpy", "pandas", "pyarrow", "google.protobuf", "xxhash", "orjson", "confluent_kafka")
"""What our code imports in a worker, and what is no pure Python and cannot be sent there."""

LOCAL = "local"
_STANDALONE = "spark://"
_MASTERS = (LOCAL, _STANDALONE, "yarn", "k8s://")
_CONNECT_S = 10.0
_WORKERS_S = 60.0
_SETTLED_S = 3.0  # no further executor has come for so long
_LOOK_S = 0.05

_checked: set[tuple[str, Path | None]] = set()


def is_cluster(master: str) -> bool:
    """Whether Spark's workers may be on other machines."""
    return not master.startswith(LOCAL)


def check_log(master: str, address: str) -> None:
    """The embedded log is a folder of this machine, where workers elsewhere can neither read nor wait."""
    if is_cluster(master) and not is_kafka(address):
        raise NotSupported(
            f"the embedded log needs one machine, and {master} is a cluster.",
            hint="put the log on Kafka (penstock copy DIR kafka://host:port) and say "
            'ps.App(log="kafka://host:port"), or leave spark= away',
        )


def checkpoint_folder(given: str | Path) -> Path:
    """A path, or a file:// URL. State is read and written as files: other storage has to be mounted."""
    parts = urlsplit(str(given))
    if "://" not in str(given):
        return Path(given).absolute()
    if parts.scheme != "file" or parts.netloc not in {"", "localhost"}:
        raise NotSupported(
            f"checkpoints cannot be kept at {given}: only in a folder.",
            hint="mount it on this machine and on every worker, under the same path",
        )
    return Path(unquote(parts.path))


def check_master(master: str) -> None:
    """Whether one of the masters answers: Spark itself would try for a minute and then not say why."""
    if not master.startswith(_MASTERS):
        raise BadOption(
            f'spark="{master}" is no master.', hint='say "local[4]", "spark://host:7077", "yarn" or "k8s://…"'
        )
    if not master.startswith(_STANDALONE):
        return
    reasons = [_refusal(place) for place in master.removeprefix(_STANDALONE).split(",")]
    if all(reasons):
        raise Unreachable(
            f"Spark's master {master}", "; ".join(map(str, reasons)),
            hint="is it running, and is that the address it shows on its page?",
        )  # fmt: skip


def _refusal(place: str) -> str | None:
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal():
        raise BadOption(f'"{place}" is no address of a master.', hint='say spark="spark://host:7077"')
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def prepare(session: SparkSession, folder: Path | None) -> None:
    """Send the program to the workers, and see that they can run it. Raises NotSupported or Unreachable."""
    context = session.sparkContext
    context.pythonExec = context.getConf().get("spark.pyspark.python") or context.pythonExec
    shipping.send(context)
    if (context.applicationId, folder) in _checked:
        return
    _wait_for_workers(session)
    _check(context, folder)
    _checked.add((context.applicationId, folder))
    if not context.getConf().contains("spark.sql.shuffle.partitions"):
        # Spark's default, 200, is for big batches.
        session.conf.set("spark.sql.shuffle.partitions", context.defaultParallelism)


def _wait_for_workers(session: SparkSession) -> None:
    """Until there are executors, and no more come: how many there are decides how work is cut."""
    # Where executors are only asked for when there is work, this is the work.
    threading.Thread(target=_try, args=(session,), name="first-task", daemon=True).start()
    began = changed = time.monotonic()
    known = 0
    while known == 0 or time.monotonic() - changed < _SETTLED_S:
        if known == 0 and time.monotonic() - began > _WORKERS_S:
            raise Unreachable(
                f"the cluster {session.sparkContext.master}",
                f"no worker has taken this app within {_WORKERS_S:.0f} s",
                hint="are there workers with a free core and enough memory? Another app may hold them all "
                "(spark.cores.max limits one), or the workers cannot reach this machine (spark.driver.host)",
            )
        time.sleep(_LOOK_S)
        if (found := _executors(session.sparkContext)) != known:
            known, changed = found, time.monotonic()


def _try(session: SparkSession) -> None:
    from penstock.flow.failure import is_sparks

    try:
        session.range(1).count()
    except Exception as error:
        if not is_sparks(error):  # whoever waits says what is wrong
            raise


def _executors(context: SparkContext) -> int:
    here: Any = context._jsc
    return int(here.sc().getExecutorMemoryStatus().size()) - 1  # the driver is in there too


def _check(context: SparkContext, folder: Path | None) -> None:
    probe = folder / f".seen-{uuid.uuid4().hex}" if folder is not None else None
    if probe is not None:
        probe.mkdir(parents=True)
    try:
        looks = _looks(context, probe)
    finally:
        if probe is not None:
            shutil.rmtree(probe, ignore_errors=True)
    check_modules(looks)
    check_folder(looks, folder)


def _looks(context: SparkContext, probe: Path | None) -> list[Look]:
    """What each executor has: as many tasks as there are cores, each long enough that all get one."""
    from penstock.flow.failure import gist, is_sparks

    tasks = context.parallelize(range(context.defaultParallelism), context.defaultParallelism)
    try:
        with shipping.by_value(worker):  # importing it would take what is being looked for
            return [Look(*found) for found in tasks.map(worker.looking(MODULES, probe)).collect()]
    except Exception as error:
        if not is_sparks(error):
            raise
        raise NotSupported(
            f"the workers of {context.master} cannot run Python tasks: {gist(str(error))}",
            hint=f"they start {context.pythonExec}; spark.pyspark.python or PYSPARK_PYTHON names another, "
            "which must be there on every machine, also on this one",
        ) from error


def check_modules(looks: Iterable[Look]) -> None:
    lacking = {look.host: look for look in looks if look.missing}
    for host, look in sorted(lacking.items()):
        others = _besides(host, lacking)
        raise NotSupported(
            f"worker {host} cannot import {', '.join(look.missing)} with {look.python}{others}.",
            hint=f'install it there: {look.python} -m pip install "penstock[spark,kafka]"; or name another '
            "Python of the workers: spark.pyspark.python or PYSPARK_PYTHON",
        )


def check_folder(looks: Iterable[Look], folder: Path | None) -> None:
    blind = {look.host: look for look in looks if look.unseen}
    for host, look in sorted(blind.items()):
        raise NotSupported(
            f"worker {host} cannot keep state in {folder}: {look.unseen}{_besides(host, blind)}.",
            hint="checkpoints must be in a folder that this machine and every worker have mounted, under the "
            'same path: ps.App(checkpoints="/shared/penstock")',
        )


def _besides(host: str, others: Iterable[str]) -> str:
    further = sorted(set(others) - {host})
    return f" (nor can {', '.join(further)})" if further else ""
