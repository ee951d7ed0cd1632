"""Runs: submit, list, show, act on, label, fork, repeat, archive, delete."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import AfterValidator, Field, WithJsonSchema
from starlette.responses import Response

from lehr.app.services import archive as archiving
from lehr.app.services import requests, run_list
from lehr.app.services import submit as submitting
from lehr.app.services.checkpoints import order_checkpoint
from lehr.app.services.extend import gather_external, repeat_run
from lehr.control.forks import OptimizerState
from lehr.control.lifecycle import RunState
from lehr.schemas.base import Page
from lehr.schemas.runs import (
    Deletion,
    ExternalBegin,
    ExternalBegun,
    ExternalGroup,
    Opened,
    RunDetail,
    RunView,
    SubmissionCheck,
    SubmissionKind,
)
from lehr.schemas.sweeps import SweepDetail
from lehr.specs import dump_yaml
from lehr.specs.run import LONGEST_NOTE, WandbTracking
from lehr_api.deps import (
    ChangedRun,
    FoundRun,
    IdempotencyHeader,
    ListQueryDep,
    RequestBody,
    ServicesDep,
)
from lehr_api.problems import problem_responses, text_responses
from lehr_api.tagged_route import TaggedRoute
from lehr_api.threads import SUBMISSIONS

router = APIRouter(prefix="/runs", tags=["runs"], route_class=TaggedRoute)
checks = APIRouter(prefix="/checks", tags=["runs"], route_class=TaggedRoute)


class Submission(RequestBody):
    """A spec to record, as `lehr spec schema` describes it."""

    spec: dict[str, Any]
    overrides: dict[str, Any] | list[str] = Field(
        default={}, examples=[{"train.steps": 200}, ["train.optimizer.lr=3e-4"]]
    )
    """Values by dotted path that replace those of the spec."""
    provenance: dict[str, Any] = {}
    """Provenance: commit, host, command. Stored, never interpreted."""


class RunSubmission(Submission):
    spec: dict[str, Any]


@router.post("", status_code=201, response_model=RunDetail, responses=problem_responses(409))
@SUBMISSIONS.runs
def submit(body: RunSubmission, services: ServicesDep, key: IdempotencyHeader = None) -> Response:
    """Record a run and queue it. Nothing is recorded if the spec is invalid."""
    made = submitting.submit_run(services, body.spec, body.overrides, body.provenance)
    return services.once(key, made)


@router.post("/external", status_code=201, responses=problem_responses(409))
@SUBMISSIONS.runs
def begin_external(body: ExternalBegin, services: ServicesDep) -> ExternalBegun:
    """Record a run of a process that Lehr did not start; `lehr_log.init` calls this.

    Its streams follow on the routes of its attempt. Safe to repeat: the same token gets the same
    attempt.
    """
    return submitting.begin_external(services, body)


@router.put("/external/group")
@SUBMISSIONS.runs
def gather(body: ExternalGroup, services: ServicesDep) -> Opened:
    """Make runs that Lehr did not start a sweep over what their configs vary, or add to it."""
    return gather_external(services, body)


class CheckRequest(RequestBody):
    """A spec to check, as it would be submitted."""

    kind: SubmissionKind = Field(examples=["run"])
    """Of the spec."""
    spec: dict[str, Any]
    overrides: dict[str, Any] | list[str] = Field(default={}, examples=[["train.steps=200"]])
    """Values by dotted path that replace those of the spec."""
    code_sent: bool = True
    """Whether the server has the capsule that the spec names. If false, it is sent only with the
    submission, and its files are not checked.
    """


@checks.post("")
@SUBMISSIONS.runs
def check(body: CheckRequest, services: ServicesDep) -> SubmissionCheck:
    """Refuse what a submission of this spec would be refused for. Nothing is recorded."""
    return submitting.check(
        services, body.kind, body.spec, body.overrides, code_sent=body.code_sent
    )


@router.get("", response_model=Page[RunView], responses=problem_responses(404))
def list_runs(
    services: ServicesDep,
    query: ListQueryDep,
    state: Annotated[
        list[RunState] | None, Query(description="Any of these; may be repeated.")
    ] = None,
    sweep: Annotated[str | None, Query(description="A sweep's id or name.")] = None,
    within: Annotated[
        Literal["sweep", "rollout"] | None,
        Query(description="Only trials of sweeps, or runs of rollouts' stages."),
    ] = None,
    run: Annotated[
        list[str] | None,
        Query(
            max_length=200,
            description="Only those of these ids, archived or not; may be repeated.",
            examples=[["k3f9x2ab", "p8w2c4nd"]],
        ),
    ] = None,
    sort: Annotated[
        str | None,
        Query(
            max_length=500,
            description="What they are sorted by, the lowest first (with `-` the highest); several "
            "with commas: a column (name, state, step, eta, hours, ...), a path of the config, a "
            "metric, `best:NAME`, `versus:NAME`. Runs without a value come last.",
            examples=["val/loss", "-mfu,train.optimizer.lr"],
        ),
    ] = None,
    group: Annotated[
        run_list.Group | None,
        Query(description="With `sort`: keep the runs of each together, at its first one's place."),
    ] = None,
) -> Response:
    """List runs, newest first or sorted, one page at a time."""
    sweep_id = services.store.sweeps.find(sweep).id if sweep is not None else None
    of_runs = {"states": state, "sweep_id": sweep_id, "within": within, "ids": run}
    wanted = {**vars(query), **of_runs, **({} if run is None else {"archived": None})}
    page = run_list.list_runs(services, sort=sort, group=group, **wanted)
    return Response(page, media_type="application/json")


@router.get("/{ref}")
def show(run: FoundRun, services: ServicesDep) -> RunDetail:
    return services.presenter.runs.detail(run)


@router.get(
    "/{ref}/config",
    response_class=Response,
    responses=text_responses("application/yaml"),
)
def config(run: FoundRun) -> Response:
    """Return the resolved training config: the run can be repeated from it alone."""
    return Response(dump_yaml(run.stored.config), media_type="application/yaml")


_ACT = problem_responses(404, 409)


@router.post("/{ref}/cancel", responses=_ACT)
def cancel(run: ChangedRun, services: ServicesDep) -> RunDetail:
    """Stop the run without saving. Idempotent."""
    return requests.cancel_run(services, run)


@router.post("/{ref}/pause", responses=_ACT)
def pause(run: ChangedRun, services: ServicesDep) -> RunDetail:
    """Save a checkpoint, stop, and free the GPUs. Idempotent."""
    return requests.pause_run(services, run)


@router.post("/{ref}/resume", responses=_ACT)
def resume(run: ChangedRun, services: ServicesDep) -> RunDetail:
    """Queue a paused run again; it resumes from its checkpoint."""
    return requests.resume_run(services, run)


@router.post("/{ref}/retry", responses=_ACT)
def retry(run: ChangedRun, services: ServicesDep) -> RunDetail:
    """Queue a failed run again, from its last checkpoint, with full retry budgets."""
    return requests.retry_run(services, run)


@router.post("/{ref}/checkpoint", responses=_ACT)
def checkpoint(run: ChangedRun, services: ServicesDep) -> RunDetail:
    """Save a checkpoint after the current step."""
    return order_checkpoint(services, run)


class Fork(RequestBody):
    """The checkpoint and the changes."""

    step: int | None = Field(default=None, ge=0, examples=[15_000])
    """Step of the checkpoint; the newest checkpoint when it is not given."""
    changes: dict[str, Any] | list[str] = Field(
        default={},
        examples=[{"train.optimizer.lr": 1.5e-4}, ["train.schedule.warmup_steps=200"]],
    )
    """Values by dotted path that replace those of the run's spec. A new warmup begins at the
    checkpoint.
    """
    optimizer_state: OptimizerState = "keep"
    """fresh starts the optimizer without the checkpoint's state, as another optimizer must."""
    provenance: dict[str, Any] = {}
    """Provenance: commit, host, command. Stored, never interpreted."""


@router.post(
    "/{ref}/fork", status_code=201, response_model=RunDetail, responses=problem_responses(409)
)
@SUBMISSIONS.runs
def fork(
    body: Fork, run: FoundRun, services: ServicesDep, key: IdempotencyHeader = None
) -> Response:
    """Record and queue a run that continues from a checkpoint of this one.

    It continues with the checkpoint's optimizer state (unless that is to be fresh), data order and
    step count; the source run does not change. Nothing is recorded on an error.
    """
    made = submitting.fork_run(
        services,
        run,
        body.changes,
        step=body.step,
        optimizer_state=body.optimizer_state,
        provenance=body.provenance,
    )
    return services.once(key, made)


class Repetition(RequestBody):
    """How many runs to add."""

    n: int = Field(default=3, strict=True, examples=[3])
    """Number of runs, 1 to 20."""
    provenance: dict[str, Any] = {}
    """Provenance: commit, host, command. Stored, never interpreted."""


@router.post(
    "/{ref}/seeds", status_code=201, response_model=SweepDetail, responses=problem_responses(409)
)
def seeds(
    body: Repetition, run: FoundRun, services: ServicesDep, key: IdempotencyHeader = None
) -> Response:
    """Record and queue runs of the same spec with seeds that it does not have yet, as a sweep over
    the seed. The run itself does not change. Nothing is recorded on an error.
    """
    return services.once(key, repeat_run(services, run, n=body.n, provenance=body.provenance))


Tag = Annotated[
    str,
    AfterValidator(requests.checked_tag),
    WithJsonSchema({"type": "string", "pattern": r"^[^\s,]+$", "maxLength": requests.LONGEST_TAG}),
]


class Tags(RequestBody):
    """All of a run's tags."""

    tags: list[Tag] = Field(max_length=requests.MOST_TAGS, examples=[["omk", "baseline"]])
    """Without spaces and commas; duplicates count once."""


class TagChange(RequestBody):
    """Tags to add and tags to remove."""

    add: list[Tag] = Field([], max_length=requests.MOST_TAGS, examples=[["baseline"]])
    remove: list[Tag] = Field([], max_length=requests.MOST_TAGS, examples=[["omk"]])
    """A tag that the run does not have is ignored; one in both lists is removed."""


@router.put("/{ref}/tags")
def put_tags(body: Tags, run: ChangedRun, services: ServicesDep) -> RunDetail:
    """Replace the run's tags. Idempotent."""
    return requests.replace_tags(services, run, body.tags)


@router.post("/{ref}/tags")
def change_tags(body: TagChange, run: ChangedRun, services: ServicesDep) -> RunDetail:
    """Add and remove tags; others stay, also under concurrent changes. Idempotent."""
    return requests.change_tags(services, run, add=body.add, remove=body.remove)


class Priority(RequestBody):
    """Where a run stands in the queue."""

    priority: int = Field(ge=-100, le=100, examples=[5])
    """Runs of a higher priority start first; specs have 0 unless they say otherwise."""


@router.put("/{ref}/priority", responses=problem_responses(409))
def put_priority(body: Priority, run: ChangedRun, services: ServicesDep) -> RunDetail:
    """Replace the priority of a run that has not ended. Idempotent."""
    return requests.set_priority(services, run, body.priority)


class Note(RequestBody):
    """Text of a note. Empty: none."""

    note: str = Field(max_length=LONGEST_NOTE, examples=["The warmup was too short."])
    """Plain text; addresses in it become links on the page."""


@router.put("/{ref}/note")
def put_run(body: Note, run: ChangedRun, services: ServicesDep) -> RunDetail:
    """Replace the run's note. Idempotent."""
    return requests.note_run(services, run, body.note)


@router.post("/{ref}/wandb", responses=problem_responses(409))
def mirror(run: ChangedRun, services: ServicesDep, body: WandbTracking) -> RunDetail:
    """Mirror the run to W&B from its first event, whether it has ended or not.

    The body is the spec's `tracking.wandb`; mode `off` ends mirroring. The run's `wandb` shows the
    progress.
    """
    return requests.mirror_run(services, run, body)


@router.post("/{ref}/archive", responses=problem_responses(409))
def archive(run: ChangedRun, services: ServicesDep) -> RunDetail:
    """Archive an ended run: hide it from lists. Nothing is deleted. Idempotent."""
    return archiving.set_run_archived(services, run, True)


@router.post("/{ref}/unarchive", responses=problem_responses(409))
def unarchive(run: ChangedRun, services: ServicesDep) -> RunDetail:
    """Unarchive a run. Idempotent."""
    return archiving.set_run_archived(services, run, False)


@router.get("/{ref}/deletion")
def deletion(run: FoundRun, services: ServicesDep) -> Deletion:
    """Return what deleting the run would free; deletes nothing."""
    return archiving.estimate_run_deletion(services, run)


@router.delete("/{ref}", responses=problem_responses(409))
def delete(run: ChangedRun, services: ServicesDep) -> Deletion:
    """Delete an ended run's checkpoints, metrics, logs and files; its record stays, archived.

    Spec, provenance, transitions and attempts stay. Rejected while a fork that has not ended needs
    one of its checkpoints. Repeating it finishes an interrupted deletion.
    """
    return archiving.delete_run(services, run)
