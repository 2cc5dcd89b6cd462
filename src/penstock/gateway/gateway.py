"""What a server serves: an app with its log and views, and what is held for its clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.requests import Request

from penstock.app.app import App
from penstock.clock import Clock, SystemClock
from penstock.gateway.channels import Channels
from penstock.gateway.guard import Guard
from penstock.gateway.handed import Handed
from penstock.gateway.jobs import Jobs
from penstock.gateway.keys import Keys
from penstock.gateway.limits import Limits
from penstock.gateway.measures import Measures
from penstock.gateway.members import Members
from penstock.gateway.pool import Pool
from penstock.gateway.refusals import Busy
from penstock.gateway.surroundings import surroundings
from penstock.gateway.together import Together
from penstock.gateway.tokens import Tokens

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Settings:
    """How a gateway is served. `source`: what names the app on a command line, None for a log without one."""

    source: str | None = None
    names: tuple[str, ...] = ()  # hosts that it answers to, besides those of the loopback address
    open_to_all: bool = True  # without a token, as long as none was made
    alerts: tuple[str, ...] = ()  # who is told when something needs a person: https://…, smtp://host?to=…
    limits: Limits = field(default_factory=Limits)


class Gateway:
    """One for each server. Used from its event loop; what blocks goes to a pool."""

    def __init__(self, app: App, settings: Settings | None = None, *, clock: Clock | None = None) -> None:
        self.app = app
        self.settings = settings or Settings()
        self.limits = self.settings.limits
        self.clock = clock or SystemClock()
        self.measures = Measures()
        self.tokens = Tokens(app.home, now_us=self.clock.now_us)
        self.guard = Guard(self.tokens, open_to_all=self.settings.open_to_all)
        self.channels = Channels(self.limits, self.measures)
        self.keys = Keys(app)
        self.members = Members(app, members_max=self.limits.members, answer_bytes_max=self.limits.page_bytes)
        self.jobs = Jobs(self.settings.source, surroundings(app), now_us=self.clock.now_us)
        self.handed = Handed(app.home, most=self.limits.handed)
        self.ended = False  # no new streams, and those there are end
        self.bodies_bytes = 0
        limits = self.limits
        self._reads = Pool("reads", threads=limits.readers, waiting_max=limits.waiting)
        self._writes = Pool("appends", threads=limits.writers, waiting_max=limits.waiting)
        self.together = Together(app, self.write, waiting_max=limits.waiting)
        self._scans = Pool("scans", threads=limits.scans, waiting_max=limits.waiting // 32)

    async def read(self, work: Callable[..., T], *args: object, **options: object) -> T:
        """Something short that touches the disk: `await gateway.read(topics.all_of, gateway.app)`."""
        return await self._reads.run(work, *args, **options)

    async def write(self, work: Callable[..., T], *args: object, **options: object) -> T:
        """Something that waits for a sync."""
        return await self._writes.run(work, *args, **options)

    async def scan(self, work: Callable[..., T], *args: object, **options: object) -> T:
        """Something that reads a whole topic or table."""
        return await self._scans.run(work, *args, **options)

    @contextmanager
    def room_for(self, request: Request) -> Iterator[None]:
        """While the body of an append is held. Raises Busy when the others take up all there is."""
        announced = request.headers.get("content-length", "")
        size = (
            min(int(announced), self.limits.body_bytes) if announced.isdecimal() else self.limits.body_bytes
        )
        if self.bodies_bytes + size > self.limits.bodies_bytes:
            raise Busy("too much is being appended at once")
        self.bodies_bytes += size
        try:
            yield
        finally:
            self.bodies_bytes -= size

    def end_streams(self) -> None:
        """Say goodbye to subscribers; called before the server waits for its connections to end."""
        self.ended = True
        self.channels.end()

    async def close(self) -> None:
        await self.channels.close()
        await self.jobs.close()
        self.members.close()
        self.handed.close()
        self.keys.close()
        for pool in (self._reads, self._writes, self._scans):
            pool.close()
