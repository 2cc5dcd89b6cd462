"""What Spark says when a query fails, and which line of it says why."""

from __future__ import annotations

import re

from penstock.errors import Contended, StorageError

_LOST_TASK = re.compile(r"Lost task .*?\((?P<host>\S+) executor \S+\): (?P<why>.+)")


def is_sparks(error: BaseException) -> bool:
    """Whether Spark failed, as opposed to us or the user's program."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException | Py4JError | OSError)


def is_passing(error: Exception) -> bool:
    """Whether another try may help: Spark failed, or the disk, or somebody held a lock."""
    return is_sparks(error) or isinstance(error, StorageError | Contended)


def gist(text: str) -> str:
    """The line of a Spark failure that says what was wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = ("penstock.", "Hint:", "pyspark.errors.")
    said = [line for line in lines if line.startswith(ours) or "Error:" in line]
    if said:
        return " ".join(said[-2:])
    if lost := _LOST_TASK.search(text):
        return f"{lost['why']} (worker {lost['host']})"
    return lines[0] if lines else "it stopped"
