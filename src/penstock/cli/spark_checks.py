"""What `penstock doctor` looks at for the `spark` extra: pyspark, and a Java to run it.

The log needs neither, so whatever is found here is a remark and never a problem. Spark itself is not started:
pyspark is imported in a process of its own, and Java is asked for its version.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from penstock.cli.doctor import Finding

_PYSPARK = "4.3"
_JAVA_MIN = 17
_ANSWER_S = 60.0
_INSTALL = "to process streams with Spark: pip install 'penstock[spark]'"
_IMPORT = "import pyspark; print(pyspark.__version__)"


def spark(environment: Mapping[str, str]) -> list[Finding]:
    """Whether Spark would run in a process with these environment variables."""
    return [_pyspark(environment), _java(environment)]


def _pyspark(environment: Mapping[str, str]) -> Finding:
    # -P: a file named pyspark.py in the current folder is not what Spark would be.
    code, out, err = _run([sys.executable, "-P", "-c", _IMPORT], environment)
    if code != 0:
        why = err.splitlines()[-1] if err else f"exit code {code}"
        if why == "ModuleNotFoundError: No module named 'pyspark'":
            told = "not installed, and not needed for the log"
            return Finding("software", "pyspark", "missing", told, _INSTALL)
        return Finding("software", "pyspark", "warning", f"cannot be imported ({why})", _INSTALL)
    version = out.split()[-1] if out else "of unknown version"
    if not version.startswith(f"{_PYSPARK}."):
        told = f"{version}, where Penstock works with {_PYSPARK}"
        return Finding("software", "pyspark", "warning", told, _INSTALL)
    return Finding("software", "pyspark", "ok", version)


def _java(environment: Mapping[str, str]) -> Finding:
    """The Java that Spark would start: that of JAVA_HOME where it is set, else the one on the PATH."""
    brought = Path(sys.prefix) / "java"  # by scripts/java.sh
    todo = f"Spark needs Java {_JAVA_MIN} or newer: install one, or set JAVA_HOME to one"
    if (brought / "bin" / "java").exists():
        todo = f"Spark needs Java {_JAVA_MIN} or newer: set JAVA_HOME={brought}"
    if home := environment.get("JAVA_HOME"):
        return _java_at(Path(home) / "bin" / "java", "JAVA_HOME", environment, todo)
    if found := shutil.which("java", path=environment.get("PATH", "")):
        return _java_at(Path(found), "PATH", environment, todo)
    return Finding("software", "java", "missing", "not found, and not needed for the log", todo)


def _java_at(java: Path, place: str, environment: Mapping[str, str], todo: str) -> Finding:
    code, _, said = _run([str(java), "-version"], environment)
    where = f"from {place} ({java})"
    if code != 0:
        why = said.splitlines()[0] if said else f"exit code {code}"
        return Finding("software", "java", "warning", f"does not start {where}: {why}", todo)
    version = re.search(r'version "((\d+)[^"]*)"', said)
    if version is None:
        return Finding("software", "java", "warning", f"of unknown version {where}", todo)
    # Java 8 calls itself 1.8, which is old enough either way.
    if int(version[2]) < _JAVA_MIN:
        return Finding("software", "java", "warning", f"{version[1]} {where} is too old", todo)
    return Finding("software", "java", "ok", f"{version[1]} {where}")


def _run(command: list[str], environment: Mapping[str, str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr; what cannot be run at all, or does not answer, has failed."""
    try:
        done = subprocess.run(
            command, env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=_ANSWER_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 1, "", f"no answer within {_ANSWER_S:g} s"
    except OSError as error:
        return 1, "", error.strerror or str(error)
    return done.returncode, done.stdout.strip(), done.stderr.strip()
