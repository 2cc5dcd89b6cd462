"""The program's code, sent to workers on which it is not installed.

What is pure Python travels: Penstock, always in the version that runs here, and every module that the program
has imported from outside its Python installation. The file that declares the app is sent by value instead.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import marshal
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext

_ALWAYS = "penstock"
_NEVER = {"__main__", "py4j", "pyspark"}  # functions of the first are sent by value, the others are Spark's
_INSTALLED = {"dist-packages", "site-packages"}


def send(context: SparkContext) -> None:
    """Let the workers import what this process has imported."""
    files = sources(sys.modules)
    folder: Any = context._temp_dir  # it lives as long as the session, and executors may come later
    place = Path(folder) / f"program-{_digest(files)}.zip"
    if not place.exists():
        place.write_bytes(pack(files))
        context.addPyFile(str(place))


def _digest(files: Mapping[str, Path]) -> str:
    """The same program is sent once."""
    digest = hashlib.sha256()
    for name, file in sorted(files.items()):
        digest.update(f"{name}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def by_value(module: ModuleType) -> Iterator[None]:
    """Meanwhile, functions of a module are sent whole."""
    from pyspark import cloudpickle

    pickle: Any = cloudpickle
    pickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        pickle.unregister_pickle_by_value(module)


def pack(files: Mapping[str, Path]) -> bytes:
    """A zip that Python can import from; the keys are the names in it."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as packed:
        # A package without an __init__.py is found by the entry of its folder.
        folders = {str(folder) for name in files for folder in Path(name).parents if folder.name}
        for folder in sorted(folders):
            packed.writestr(f"{folder}/", b"")
        for name, file in sorted(files.items()):
            packed.writestr(name, file.read_bytes())
            packed.writestr(f"{name}c", _compiled(file))
    return written.getvalue()


def _compiled(file: Path) -> bytes:
    """As in a .pyc whose source is not looked at; a worker with another Python compiles it again.

    Each worker process would compile by itself: half a second that a batch may be waiting for.
    """
    code = SourceFileLoader(file.stem, str(file)).get_code(file.stem)
    head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little")
    return head + importlib.util.source_hash(file.read_bytes()) + marshal.dumps(code)


def sources(modules: Mapping[str, ModuleType]) -> dict[str, Path]:
    """The files of all that must travel, by their names in the zip: packages whole, or as far as imported."""
    from pyspark import cloudpickle

    pickle: Any = cloudpickle
    skipped = _NEVER | pickle.list_registry_pickle_by_value()
    found: dict[str, Path] = {}
    for name, module in list(modules.items()):
        top = name.partition(".")[0]
        if top not in skipped and name not in skipped and (top == _ALWAYS or _is_programs(module)):
            found.update(_files(name, module, modules.get(top)))
    return found


def _files(name: str, module: ModuleType, top: ModuleType | None) -> dict[str, Path]:
    top_file = _file(top)
    if top_file is not None and top_file.name == "__init__.py":
        root = top_file.parent
        return {str(Path(root.name, file.relative_to(root))): file for file in root.rglob("*.py")}
    file = _file(module)
    if file is None:
        return {}
    place = name.replace(".", "/")
    return {f"{place}/__init__.py" if file.name == "__init__.py" else f"{place}.py": file}


def _is_programs(module: ModuleType) -> bool:
    file = _file(module)
    if file is None or _INSTALLED & set(file.parts):
        return False
    library = [Path(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib")]
    return not any(file.is_relative_to(folder) for folder in library)


def _file(module: ModuleType | None) -> Path | None:
    """Where its source is, if it has one."""
    name = getattr(module, "__file__", None)
    file = Path(name).absolute() if isinstance(name, str) else None
    return file if file is not None and file.suffix == ".py" and file.is_file() else None
