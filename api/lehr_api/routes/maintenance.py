"""Maintenance windows: times in which nodes are not used."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import ConfigDict, Field

from lehr.schemas.maintenance import MaintenancesView, MaintenanceView
from lehr.services import maintenance
from lehr_api.deps import ServicesDep
from lehr_api.responses import problem_responses
from lehr_trainer.configs.documented import Documented

router = APIRouter(tags=["cluster"])

WindowId = Annotated[
    int, Path(ge=1, le=1 << 60, description="The number of a window.", examples=[3])
]


class MaintenanceRequest(Documented):
    """A window to declare."""

    model_config = ConfigDict(extra="forbid")

    starts_at: float = Field(allow_inf_nan=False, examples=[1_796_000_400.0])
    """When it begins, in seconds since the epoch."""
    duration_s: float = Field(allow_inf_nan=False, examples=[14_400.0])
    """How long it is, at most 90 days."""
    node: str | None = Field(default=None, max_length=200, examples=["n1"])
    """The node; null: all nodes."""
    repeat: str | None = Field(default=None, max_length=100, examples=["weekly"])
    """daily or weekly; a day always has 24 hours. null: once."""
    note: str = Field(default="", max_length=maintenance.LONGEST_NOTE, examples=["new drivers"])
    """Shown in the reasons of runs that wait."""


@router.get("/maintenance", responses=problem_responses())
def list_windows(services: ServicesDep) -> MaintenancesView:
    """Return the maintenance windows, the next one first."""
    return maintenance.list_windows(services)


@router.post("/maintenance", status_code=201, responses=problem_responses(404, 422))
def add_window(body: MaintenanceRequest, services: ServicesDep) -> MaintenanceView:
    """Declare a window. Before it, no run starts that would lose work; at its begin, runs save,
    stop and are queued again; after it, they resume.
    """
    return maintenance.add_window(services, **body.model_dump())


@router.delete("/maintenance/{window}", responses=problem_responses(404))
def remove_window(window: WindowId, services: ServicesDep) -> MaintenanceView:
    """Remove a window. If it is open, its nodes are used again at once."""
    return maintenance.remove_window(services, window)
