"""Check a submission without recording it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import ConfigDict, Field

from lehr.app.services import submit as submitting
from lehr.schemas.runs import SubmissionCheck, SubmissionKind
from lehr_api.deps import ServicesDep
from lehr_api.responses import problem_responses
from lehr_api.threads import in_submissions
from lehr_trainer.configs.documented import Documented

router = APIRouter(prefix="/checks", tags=["runs"])


class CheckRequest(Documented):
    """A spec to check, as it would be submitted."""

    model_config = ConfigDict(extra="forbid")

    kind: SubmissionKind = Field(examples=["run"])
    """Of the spec."""
    spec: dict[str, Any]
    overrides: dict[str, Any] | list[str] = Field(default={}, examples=[["train.steps=200"]])
    """Values by dotted path that replace those of the spec."""
    code_sent: bool = True
    """Whether the server has the capsule that the spec names. If false, it is sent only with the
    submission, and its files are not checked.
    """


@router.post("", responses=problem_responses(400, 413))
@in_submissions
def check(body: CheckRequest, services: ServicesDep) -> SubmissionCheck:
    """Refuse what a submission of this spec would be refused for. Nothing is recorded."""
    return submitting.check(
        services, body.kind, body.spec, body.overrides, code_sent=body.code_sent
    )
