"""Verification, begun and asked after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Body, Path
from pydantic import BaseModel, ConfigDict, Field

from penstock.gateway.jobs import Job
from penstock.gateway.routing import Routes, Served, needs

routes = Routes("jobs")


@dataclass(frozen=True, slots=True)
class JobList:
    jobs: tuple[Job, ...]


class Verifying(BaseModel):
    model_config = ConfigDict(extra="forbid")

    view: str | None = Field(None, description="Only this view or stream.", max_length=249)


@routes.post(
    "/verify", summary="Verify views.", response_model=Job, status_code=202, **needs("write", body=True)
)
async def verify(gateway: Served, verifying: Annotated[Verifying, Body(default_factory=Verifying)]) -> Job:
    """Recompute views and streams from the log and compare. Takes a while: ask after it at `/jobs/{id}`."""
    if verifying.view is not None:
        gateway.app.definition(verifying.view)
    return gateway.jobs.verify(verifying.view)


@routes.get("/jobs", summary="List jobs.", response_model=JobList, **needs("read"))
async def list_jobs(gateway: Served) -> JobList:
    """The newest first; a hundred are remembered."""
    return JobList(gateway.jobs.all())


@routes.get("/jobs/{job}", summary="Ask after a job.", response_model=Job, **needs("read"))
async def show_job(
    gateway: Served, job: Annotated[str, Path(description="Its id.", pattern="^[0-9a-f]{16}$")]
) -> Job:
    """`state` is running, done or failed; `result` is there when it is done."""
    return gateway.jobs.find(job)
