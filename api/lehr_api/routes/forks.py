"""Forks: a new run that starts from a checkpoint of another run, with changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from lehr import home as homes
from lehr.checkpoints.registry import CheckpointLocations
from lehr.control import forks
from lehr.errors import Conflict
from lehr.schemas import RunDetail
from lehr.store.records.checkpoints import THERE
from lehr_api import examples, submission
from lehr_api.deps import FoundRun, IdempotencyHeader, ServicesDep

if TYPE_CHECKING:
    from pathlib import Path

    from lehr_api.services import Services

router = APIRouter(prefix="/runs/{ref}", tags=["runs"])


class Fork(BaseModel):
    """The checkpoint and the changes."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    step: int | None = Field(default=None, ge=0, examples=[15_000])
    """Step of the checkpoint; the newest checkpoint when it is not given."""
    changes: dict[str, Any] | list[str] = Field(
        default={},
        examples=[{"train.optimizer.lr": 1.5e-4}, ["train.schedule.warmup_steps=200"]],
    )
    """Values by dotted path that replace those of the run's spec. A new warmup begins at the
    checkpoint.
    """
    provenance: dict[str, Any] = {}
    """Provenance: commit, host, command. Stored, never interpreted."""


@router.post(
    "/fork",
    status_code=201,
    response_model=RunDetail,
    responses=examples.answers(examples.DETAIL, 400, 404, 409, 413, status=201),
)
def fork(
    body: Fork, run: FoundRun, services: ServicesDep, key: IdempotencyHeader = None
) -> Response:
    """Record and queue a run that continues from a checkpoint of this one.

    It continues with the checkpoint's optimizer state, data order and step count; the source run
    does not change. Nothing is recorded on an error.
    """
    point = forks.choose(run.name, services.store.checkpoints.of_run(run.id), body.step)
    submission.refuse_relative_paths(body.changes)
    spec = forks.fork_spec(run.spec, body.changes, step=point.step)
    places = CheckpointLocations(homes.runs_dir(services.settings.home), run, point)
    places.require_own()
    folder = places.folder
    origin = {
        "run": run.id,
        "name": run.name,
        "attempt": point.attempt,
        "step": point.step,
        "digest": point.digest,
        "changes": body.changes,
    }

    def check() -> None:
        if point.copy_state != THERE:
            _refuse_missing(services, run.name, point.step, folder)
        submission.check_run(spec, services)

    def record() -> RunDetail:
        store = services.store
        with store.transaction():
            # Checked again here, where no deletion can happen in between.
            forks.choose(run.name, store.checkpoints.of_run(run.id), point.step)
            made = store.runs.create(
                spec,
                actor="user",
                provenance={**body.provenance, "fork": origin},
                resume_from=str(folder),
                forked_from=run.id,
            )
        return services.presenter.runs.detail(made)

    answer = services.answers.once(
        key, f"fork of {run.id}", body.model_dump(mode="json"), check=check, record=record
    )
    services.dispatcher.wake()
    return answer


def _refuse_missing(services: Services, name: str, step: int, folder: Path) -> None:
    """Reject missing files. Checked here only if trainings run on this machine; else the trainer
    checks.
    """
    if services.settings.ray_address is None and not (folder / "manifest.json").is_file():
        raise Conflict(
            f"the files of {name}'s checkpoint at step {step:,} are gone: there is no {folder}.",
            hint=f"Its other checkpoints: lehr checkpoints ls {name}",
        )
