"""Memory of a process that writes or reads much more than it should hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.bench import sample
from penstock.bench.child import Child, Line
from penstock.bench.read_rates import exhaust
from penstock.bench.report import Result, Setting
from penstock.bench.workbench import Workbench
from penstock.log.topic import Topic
from penstock.opening import open_log

_MB_MAX = 200.0
_LOOK_EVERY_S = 0.005
_ANONYMOUS = re.compile(r"^RssAnon:\s+(\d+) kB$", re.MULTILINE)

Work = Callable[[Topic, int], None]


def measure(bench: Workbench) -> Iterator[Result]:
    """Nothing where the kernel does not tell anonymous memory from the page cache's."""
    if not Path("/proc/self/status").exists():
        return
    work = {"append Arrow": _append, "read as Arrow": _read_arrow, "read as rows": _read_rows}
    size = f"{bench.sizes.memory_bytes / 1e9:g} GB"
    with bench.topic(durability="os") as topic:
        for name, kind in work.items():
            bench.progress(f"memory to {name}, {size}")
            before, most = _watched(bench, topic, kind)
            settings: dict[str, Setting] = {
                "log_bytes": bench.sizes.memory_bytes,
                "of": "RssAnon, the highest above that before",
                "before_mb": round(before / 1e6, 1),
            }
            found = Result(f"memory to {name}, {size}", (most - before) / 1e6, "MB", settings=settings)
            yield found.at_most(_MB_MAX)


def _watched(bench: Workbench, topic: Topic, work: Work) -> tuple[int, int]:
    """Bytes that a process of its own has before it begins, and the most it has on the way."""
    with Child(_begin, work, bench.home, topic.name, bench.sizes.memory_bytes) as child:
        child.hear()
        before = most = anonymous_bytes(child.pid)
        child.say("go")
        while not child.heard(_LOOK_EVERY_S):
            most = max(most, anonymous_bytes(child.pid))
        child.hear()
    return before, most


def anonymous_bytes(pid: int) -> int:
    """Memory that only this process has, without the pages of mapped files."""
    found = _ANONYMOUS.search(Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0


def _begin(line: Line, work: Work, home: Path, name: str, size_bytes: int) -> None:
    with open_log(home) as log:
        topic = log.topic(name)
        line.say("ready")
        line.hear()
        work(topic, size_bytes)
        line.say("done")
        line.hear()


def _append(topic: Topic, size_bytes: int) -> None:
    batch = sample.make(min(50_000, size_bytes // 100)).table
    for _ in range(0, size_bytes, batch.nbytes):
        topic.append(batch)


def _read_arrow(topic: Topic, _: int) -> None:
    exhaust(topic.read())


def _read_rows(topic: Topic, _: int) -> None:
    exhaust(topic.rows())
