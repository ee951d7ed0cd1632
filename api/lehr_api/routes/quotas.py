"""Quotas: how many GPUs the runs of a project hold at a time."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import ConfigDict, Field

from lehr.schemas.quotas import QuotasView, QuotaView
from lehr.services import quotas
from lehr_api.deps import ServicesDep
from lehr_api.responses import problem_responses
from lehr_trainer.configs.documented import Documented

router = APIRouter(tags=["cluster"])

Project = Annotated[str, Path(max_length=200, examples=["ablations"])]


class QuotaRequest(Documented):
    """The quota of a project."""

    model_config = ConfigDict(extra="forbid", strict=True)

    gpus: int = Field(ge=0, le=1_000_000, examples=[16])
    """The most GPUs that its runs hold at a time. 0: none of its runs starts on GPUs."""


@router.get("/quotas", responses=problem_responses())
def list_quotas(services: ServicesDep) -> QuotasView:
    """Return the quotas by project. A project without one has no limit."""
    return quotas.list_quotas(services)


@router.put("/quotas/{project}", responses=problem_responses(422))
def set_quota(project: Project, body: QuotaRequest, services: ServicesDep) -> QuotaView:
    """Set the quota of a project. Running runs continue, even if they hold more."""
    return quotas.set_quota(services, project, body.gpus)


@router.delete("/quotas/{project}", responses=problem_responses(404))
def remove_quota(project: Project, services: ServicesDep) -> QuotaView:
    """Remove the quota of a project: its runs have no limit."""
    return quotas.remove_quota(services, project)
