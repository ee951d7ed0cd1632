"""Carry the learning rate of a sweep to a larger training."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import ConfigDict, Field

from lehr.app.services.transfer import transfer_rate
from lehr.base.access import Role
from lehr.schemas.sweeps import TransferView
from lehr_api.auth import needs
from lehr_api.deps import FoundSweep, ServicesDep
from lehr_api.etag import TaggedRoute
from lehr_api.responses import problem_responses
from lehr_api.threads import in_submissions
from lehr_trainer.configs.documented import Documented

router = APIRouter(
    prefix="/sweeps/{ref}",
    tags=["sweeps"],
    route_class=TaggedRoute,
    dependencies=[needs(Role.VIEWER)],  # It records nothing.
)


class TransferRequest(Documented):
    """The training that needs a rate: the spec of a run or of a rollout."""

    model_config = ConfigDict(extra="forbid")

    spec: dict[str, Any]
    overrides: dict[str, Any] | list[str] = {}
    """Values by dotted path that replace those of the spec."""
    rule: Annotated[str | None, Field(max_length=40, examples=["square_root"])] = None
    """Name of a rule; by default the one with the least regret on published runs."""


@router.post("/transfer", responses=problem_responses(400, 404))
@in_submissions
def transfer(sweep: FoundSweep, body: TransferRequest, services: ServicesDep) -> TransferView:
    """Return the learning rate for a larger training, with its interval, each rule's answer, and
    the spec as YAML. Nothing is recorded.
    """
    return transfer_rate(services, sweep, body.spec, body.overrides, rule=body.rule)
