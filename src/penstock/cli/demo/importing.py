"""An imaginary file that is imported with atomic appends, now and then twice."""

from __future__ import annotations

import os
import time

from penstock.cli.demo.shop import imported
from penstock.log.log import Log

_LINES = 10


class Import:
    """Ten lines at a time, with the position after them: all or nothing. Of one thread."""

    def __init__(self, log: Log) -> None:
        self._topic = log.topic(imported.name)
        self._producer = log.producer(f"importer-{os.getpid():x}-{time.time_ns():x}")
        self.line = self.sent_again = self.stored_again = self._times = 0

    def go_on(self) -> None:
        first, last = self.line, self.line + _LINES
        lines = [{"line": n, "text": f"line {n} of an imaginary file"} for n in range(first, last)]
        position, sequence = f"line {last}".encode(), self._producer.next_sequence
        self._producer.append({self._topic: lines}, position=position, sequence=sequence)
        self.line, self._times = last, self._times + 1
        if self._times % 3 == 0:  # as after a crash, when nobody knows whether the last one got through
            again = self._producer.append({self._topic: lines}, position=position, sequence=sequence)
            self.sent_again += 1
            self.stored_again += not again.duplicate

    @property
    def position(self) -> str:
        return (self._producer.position() or b"").decode()

    def is_whole(self) -> bool:
        """Whether the log has every line once, and the position that goes with them."""
        lines = [row["line"] for row in self._topic.rows()]
        return lines == list(range(self.line)) and self.position == (f"line {self.line}" if self.line else "")
