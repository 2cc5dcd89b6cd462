"""Spark on other machines: what is refused before it starts, which settings apply, what is sent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.servers import free_port

import penstock as ps
from penstock.flow import cluster, session, shipping, worker
from penstock.flow.failure import gist
from penstock.flow.worker import Look

KAFKA = "kafka://127.0.0.1:9092"
MASTER = "spark://127.0.0.1:7077"


@pytest.mark.parametrize("master", [MASTER, "yarn", "k8s://https://host:6443"])
def test_the_embedded_log_stays_on_one_machine(master: str, home: Path) -> None:
    with pytest.raises(ps.NotSupported, match="needs one machine") as refused:
        ps.App("shop", home=home, spark=master)
    assert "penstock copy" in refused.value.hint
    assert not home.exists()


def test_a_master_of_this_machine_takes_the_embedded_log(home: Path) -> None:
    assert ps.App("shop", home=home, spark="local[3]").spark == "local[3]"
    assert ps.App("shop", home=home, log=KAFKA, spark=MASTER).spark == MASTER


def test_checkpoints_have_a_folder_of_their_own(home: Path) -> None:
    assert ps.App("shop", home=home).checkpoints == home / "flow"
    for given in ("/shared/with space", Path("/shared/with space"), "file:///shared/with%20space"):
        assert ps.App("shop", home=home, checkpoints=given).checkpoints == Path("/shared/with space")


@pytest.mark.parametrize("given", ["s3a://bucket/state", "hdfs://name:8020/state", "file://elsewhere/state"])
def test_checkpoints_that_are_no_folder_are_refused(given: str, home: Path) -> None:
    with pytest.raises(ps.NotSupported, match="only in a folder"):
        ps.App("shop", home=home, checkpoints=given)


def test_settings_fit_the_master() -> None:
    here, there = session.settings_for("local[2,4]"), session.settings_for(MASTER)
    for setting in (
        "driver.host",
        "driver.bindAddress",
        "driver.memory",
        "ui.enabled",
        "sql.shuffle.partitions",
    ):
        assert f"spark.{setting}" in here
        assert f"spark.{setting}" not in there  # what spark-defaults.conf says counts
    assert here.items() > there.items()


def test_a_cluster_may_have_its_python_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "")
    for given, master, chosen in (
        ("/opt/python", MASTER, "/opt/python"),
        ("", MASTER, sys.executable),
        ("/opt/python", "local[2]", sys.executable),
    ):
        monkeypatch.setenv("PYSPARK_PYTHON", given)
        session._choose_python(master)
        assert os.environ["PYSPARK_PYTHON"] == chosen


def test_a_master_that_does_not_answer_is_said_at_once() -> None:
    with pytest.raises(ps.Unreachable, match="refused"):
        cluster.check_master(f"spark://127.0.0.1:{free_port()}")
    with pytest.raises(ps.BadOption, match="no address"):
        cluster.check_master("spark://127.0.0.1")
    with pytest.raises(ps.BadOption, match="is no master"):
        cluster.check_master("nonsense")
    cluster.check_master("yarn")  # which is no address


def test_a_worker_says_what_it_cannot_import_and_where_it_cannot_write(tmp_path: Path) -> None:
    look = Look(*worker.looking(["json", "no_such_package"], tmp_path)(0))
    assert (look.missing, look.unseen, look.python) == (["no_such_package"], None, sys.executable)
    assert Look(*worker.looking([], tmp_path / "not" / "there")(0)).unseen == "No such file or directory"


def test_what_a_worker_lacks_is_named_with_the_worker() -> None:
    looks = [
        Look("one", "/opt/python", [], None),
        Look("two", "/opt/python", ["orjson", "pyarrow"], None),
        Look("three", "/opt/python", ["pyarrow"], None),
    ]
    with pytest.raises(ps.NotSupported) as refused:
        cluster.check_modules(looks)
    assert refused.value.message == "worker three cannot import pyarrow with /opt/python (nor can two)."
    assert 'pip install "penstock[spark,kafka]"' in refused.value.hint
    cluster.check_modules(looks[:1])


def test_a_folder_that_a_worker_does_not_see_is_named_with_the_worker(tmp_path: Path) -> None:
    looks = [Look("one", "python", [], None), Look("two", "python", [], "No such file or directory")]
    with pytest.raises(ps.NotSupported, match=r"worker two cannot keep state in .*: No such file") as refused:
        cluster.check_folder(looks, tmp_path)
    assert "checkpoints=" in refused.value.hint
    cluster.check_folder(looks[:1], tmp_path)


def test_a_task_that_could_not_start_says_why_and_where() -> None:
    said = (
        "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
        ": org.apache.spark.SparkException: Lost task 0.3 in stage 1.0 (TID 7) (10.0.0.5 executor 1): "
        'java.io.IOException: Cannot run program "/no/python"\n'
        "\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1110)\n"
    )
    assert gist(said) == 'java.io.IOException: Cannot run program "/no/python" (worker 10.0.0.5)'


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """A module, a package and a package without an __init__.py, as a program has imported them."""
    import importlib

    folder = tmp_path / "program"
    for name, text in {
        "one_file.py": "X = 1",
        "a_package/__init__.py": "",
        "a_package/inner/__init__.py": "",
        "a_package/inner/deep.py": "from one_file import X",
        "a_package/never_imported.py": "Y = 2",
        "a_package/table.csv": "1,2",
        "no_init/part.py": "Z = 3",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    names = ["one_file", "a_package", "a_package.inner.deep", "no_init", "no_init.part", "json", "pytest"]
    found = {name: importlib.import_module(name) for name in names}
    for name in list(sys.modules):
        if name.partition(".")[0] in {"one_file", "a_package", "no_init"}:
            monkeypatch.delitem(sys.modules, name)
    return found


def test_what_a_program_has_imported_from_beside_itself_is_sent(program: dict[str, ModuleType]) -> None:
    assert sorted(shipping.sources(program)) == [
        "a_package/__init__.py",
        "a_package/inner/__init__.py",
        "a_package/inner/deep.py",
        "a_package/never_imported.py",
        "no_init/part.py",
        "one_file.py",
    ]


def test_penstock_is_sent_wherever_it_is_installed() -> None:
    found = shipping.sources({"penstock": ps, "penstock.flow.worker": worker})
    assert {"penstock/__init__.py", "penstock/flow/source.py", "penstock/kafka/log.py"} <= found.keys()


def test_the_file_of_the_app_is_not_sent_to_be_imported(program: dict[str, ModuleType]) -> None:
    sys.modules["one_file"] = program["one_file"]
    try:
        with shipping.by_value(program["one_file"]):
            assert "one_file.py" not in shipping.sources(program)
    finally:
        del sys.modules["one_file"]


def test_what_is_sent_can_be_imported_where_nothing_else_is(
    program: dict[str, ModuleType], tmp_path: Path
) -> None:
    packed = tmp_path / "program.zip"
    packed.write_bytes(shipping.pack(shipping.sources(program)))
    script = (
        f"import sys; sys.path.insert(0, {str(packed)!r})\n"
        "from a_package.inner import deep; from no_init import part; print(deep.X + part.Z, deep.__file__)"
    )
    ran = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["4", f"{packed}/a_package/inner/deep.pyc"]
