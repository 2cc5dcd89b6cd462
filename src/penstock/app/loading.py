"""From what is written on a command line to an app: `shop.py`, `shop.py:app` or `package.module:app`.

Loading runs the user's module: topics are declared, no Spark is started. The module's folder is on the
import path from then on, here and in Spark's workers, as if the file had been run as a script.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from penstock.app.app import App
from penstock.errors import BadInput, PenstockError
from penstock.schema import did_you_mean

_WRITE = "write shop.py, shop.py:app or package.module:app"


class AppNotLoaded(BadInput):
    """What was named is no file or module with an app in it."""

    def __init__(
        self, message: str, *, hint: str = "", file: str | None = None, line: int | None = None
    ) -> None:
        self.file, self.line = file, line
        super().__init__(f"{file}:{line}: {message}" if file and line else message, hint=hint)


@dataclass(frozen=True, slots=True)
class Loaded:
    """An app, and the module that declares it."""

    app: App
    module: ModuleType
    from_file: bool


def load(text: str, *, home: Path | None = None) -> Loaded:
    """The app that `text` names. `home` is where it keeps its log unless it says so itself."""
    place, _, name = text.rpartition(":") if ":" in text else (text, "", "")
    with _home(home):
        from_file = place.endswith(".py") or os.sep in place
        module = _file(Path(place)) if from_file else _module(place)
    app = _app_of(module, name, place)
    if home is not None and app.home != home.absolute():
        raise AppNotLoaded(
            f'app "{app.name}" says itself where its log is: {app.home}.',
            hint="leave --home away, or take home= out of ps.App(...)",
        )
    return Loaded(app, module, from_file)


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise AppNotLoaded(f"there is no file {path}.", hint=_WRITE)
    if not path.stem.isidentifier():
        raise AppNotLoaded(
            f'"{path.stem}" is no name that Python can import.',
            hint="name the file with letters, digits and _ only",
        )
    _on_the_path(path.parent.absolute())
    # A file that is called like a module which is in use must not take its place.
    name = f"app_{path.stem}" if path.stem in sys.modules else path.stem
    spec = importlib.util.spec_from_file_location(name, path.absolute())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _blamed(path.absolute()):
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return module


def _module(name: str) -> ModuleType:
    _on_the_path(Path.cwd())
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        near = f"{name}.py" if Path(f"{name}.py").is_file() else ""
        raise AppNotLoaded(f'there is no module "{name}".', hint=f"did you mean {near}?" if near else _WRITE)
    with _blamed(Path(spec.origin) if spec.origin else None):
        return importlib.import_module(name)


@contextmanager
def _blamed(file: Path | None) -> Iterator[None]:
    """Errors of the user's module, with the last line of it on the way there."""
    try:
        yield
    except SyntaxError as error:
        where = error.filename or str(file)
        raise AppNotLoaded(f"{error.msg}.", hint="mend it", file=where, line=error.lineno) from error
    except SystemExit as error:
        raise AppNotLoaded(
            f"{file} ends the program when it is imported.",
            hint='put what it does when it is run under: if __name__ == "__main__":',
        ) from error
    except Exception as error:
        line = _line_in(file, error)
        if isinstance(error, PenstockError):
            message, hint = error.message, error.hint
        else:
            message, hint = f"{type(error).__name__}: {error}", "it fails when it is imported"
        raise AppNotLoaded(message, hint=hint, file=str(file) if line else None, line=line) from error


def _line_in(file: Path | None, error: Exception) -> int | None:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame.lineno for frame in frames if file is not None and frame.filename == str(file)]
    return own[-1] if own else None


def _app_of(module: ModuleType, name: str, place: str) -> App:
    apps: dict[str, App] = {}
    for key, value in vars(module).items():
        if isinstance(value, App) and not any(value is known for known in apps.values()):
            apps[key] = value
    if name:
        found = getattr(module, name, None)
        if isinstance(found, App):
            return found
        what = f'"{name}" in {place} is no ps.App.' if found is not None else f'{place} has no "{name}".'
        raise AppNotLoaded(what, hint=did_you_mean(name, apps) if apps else _WRITE)
    if len(apps) == 1:
        return next(iter(apps.values()))
    if not apps:
        raise AppNotLoaded(f"there is no app in {place}.", hint='make one there: app = ps.App("shop")')
    raise AppNotLoaded(f"there are {len(apps)} apps in {place}.", hint=_which(place, apps))


def _which(place: str, apps: dict[str, App]) -> str:
    return f"say which: {' or '.join(f'{place}:{name}' for name in apps)}"


def _on_the_path(folder: Path) -> None:
    """For this process, and for the workers that Spark will start."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    known = os.environ.get("PYTHONPATH", "")
    if str(folder) not in known.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(part for part in (str(folder), known) if part)


@contextmanager
def _home(home: Path | None) -> Iterator[None]:
    """What an app without a home of its own takes."""
    before = os.environ.get("PENSTOCK_HOME")
    if home is not None:
        os.environ["PENSTOCK_HOME"] = str(home)
    try:
        yield
    finally:
        if before is not None:
            os.environ["PENSTOCK_HOME"] = before
        elif home is not None:
            del os.environ["PENSTOCK_HOME"]
