"""Processes of ours that never see pandas do without it.

pyarrow loads pandas, where it is installed, with its first array and its first `to_numpy`: a second of work
and 40 MB, in each process.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any


class _Hidden:
    """A finder that finds no pandas."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> Any:
        if name == "pandas":
            raise ModuleNotFoundError("this process does without pandas", name=name)


def hide_pandas() -> None:
    """For a process whose whole program is ours: from now on it cannot load pandas, and pyarrow does not.

    Changes nothing where it is loaded already, and nothing when it is called again.
    """
    if "pandas" not in sys.modules and not any(isinstance(finder, _Hidden) for finder in sys.meta_path):
        finder: Any = _Hidden()
        sys.meta_path.insert(0, finder)
