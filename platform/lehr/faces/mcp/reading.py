"""Tools that read lists, objects, comparisons and plans, in short answers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from lehr.analysis.plan_json import spec_json
from lehr.errors import NotFound
from lehr.faces.client.plan_server import PlanServer
from lehr.faces.mcp.answers import Answer, brief_plan, brief_queued, brief_run, brief_trial
from lehr.faces.mcp.launching import Overrides, Ref, SpecText
from lehr.schemas.base import Page
from lehr.schemas.runs import RunView
from lehr.specs import Spec, load_spec

if TYPE_CHECKING:
    from lehr.faces.client import Client, Sweep

Limit = Annotated[int, Field(ge=1, le=100)]
Offset = Annotated[int, Field(ge=0, description="Skip so many, to read on.")]
_SWEEP = {"id", "name", "state", "counts", "parameters", "metric", "best_value", "best_parameters"}
_SWEEP_DETAIL = _SWEEP | {
    "goal", "compared_at_step", "notes", "noise", "next_trials", "cost", "warnings",
}  # fmt: skip
_ATTEMPT = {"number", "resume_from", "outcome", "cause", "message", "exit_code"}
_STAGE: dict[str, Any] = {
    **dict.fromkeys(("name", "title", "state", "reason", "gpus", "steps"), True),
    "gates": {"__all__": {"name", "state", "expected", "seen", "run_id"}},
}
_RESULT = {
    "run_id", "name", "value", "delta", "tokens_per_s", "mfu", "memory_bytes",
}  # fmt: skip


class Reading:
    """The tools, for one server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def overview(self) -> Answer:
        """Show the server, its GPUs, what runs and what waits. Begin here."""
        cluster = self._client.cluster()
        active = self._client.runs(states=["starting", "running", "stopping"], limit=20)
        fields = {"state", "message", "gpus_total", "gpus_busy", "gpus_free"}
        return {
            "server": self._client.server,
            "cluster": {
                **cluster.model_dump(mode="json", include=fields),
                "kinds": sorted({gpu.name for node in cluster.nodes for gpu in node.gpus}),
            },
            "running": [brief_run(run.view) for run in active],
            **self.queue(limit=5),
            **self.list_sweeps(limit=5),
        }

    def list_runs(
        self,
        state: Annotated[
            list[str] | None,
            Field(description="queued, running, completed, failed, cancelled, paused, pruned, ..."),
        ] = None,
        project: str | None = None,
        sweep: str | None = None,
        tag: str | None = None,
        search: Annotated[str | None, Field(description="Part of the name.")] = None,
        limit: Limit = 20,
        cursor: Annotated[str | None, Field(description="next_cursor of the last page.")] = None,
    ) -> Answer:
        """List runs, newest first, with state, reason, step and newest losses."""
        params = {"state": state, "project": project, "sweep": sweep, "tag": tag}
        params |= {"search": search, "cursor": cursor}
        answer = self._client.transport.get("/runs", {**params, "limit": limit})
        page = Page[RunView].model_validate_json(answer)
        runs = [brief_run(view) for view in page.items]
        return {"total": page.total, "runs": runs, "next_cursor": page.next_cursor}

    def show_run(self, ref: Ref) -> Answer:
        """Show a run: state and reason, alerts, attempts, cost, its config, what to do next."""
        run = self._client.run(ref)
        detail = run.detail
        saved = [point.step for point in run.checkpoints() if point.removed_at is None]
        return {
            **brief_run(detail),
            "cause": detail.cause,
            "latest": {name: latest.value for name, latest in detail.latest.items()},
            "gpus": f"{detail.gpus} x {detail.device or detail.gpu_type or 'any GPU'}",
            "forked_from": detail.forked_from,
            "cost": detail.cost,
            "attempts": [attempt.model_dump(include=_ATTEMPT) for attempt in detail.attempts[-5:]],
            "checkpoints_at": saved[-20:],
            "warnings": detail.warnings,
            "train": detail.spec.get("train"),
            "trainer": detail.spec.get("trainer"),
            "note": detail.note,
            "url": run.url,
        }

    def list_sweeps(self, project: str | None = None, limit: Limit = 20) -> Answer:
        """List sweeps, newest first, with their best trial so far."""
        sweeps = self._client.sweeps(project=project, limit=limit)
        return {"sweeps": [sweep.view.model_dump(include=_SWEEP) for sweep in sweeps]}

    def show_sweep(self, ref: Ref, limit: Limit = 20, offset: Offset = 0) -> Answer:
        """Show a sweep: its verdict, notes, ranked trials, cost, and the trials to add next."""
        sweep = self._client.find_sweep(ref)
        ranked = sweep.results()
        return {
            **sweep.detail.model_dump(mode="json", include=_SWEEP_DETAIL),
            "verdict": self._verdict(sweep),
            "trials": [brief_trial(trial) for trial in ranked[offset : offset + limit]],
            "trials_total": len(ranked),
            "url": sweep.url,
        }

    def list_rollouts(self, project: str | None = None, limit: Limit = 20) -> Answer:
        """List rollouts, newest first, with the state of each stage."""
        fields = {"id", "name", "state", "reason", "progress"}
        rollouts = self._client.rollouts(project=project, limit=limit)
        return {"rollouts": [rollout.view.model_dump(include=fields) for rollout in rollouts]}

    def show_rollout(self, ref: Ref) -> Answer:
        """Show a rollout: each stage with its gates, what was expected and what was seen."""
        rollout = self._client.find_rollout(ref)
        return {
            **rollout.view.model_dump(include={"id", "name", "state", "reason"}),
            "stages": [
                {
                    **stage.model_dump(mode="json", include=_STAGE),
                    "runs": [{"role": run.role, **brief_run(run.run)} for run in stage.runs],
                }
                for stage in rollout.stages
            ],
            "notes": rollout.notes,
            "url": rollout.url,
        }

    def compare(
        self,
        refs: Annotated[list[str], Field(min_length=2, max_length=20)],
        metric: str = "",
        x: Literal["step", "tokens", "time", "flops"] = "step",
        by: str = "",
    ) -> Answer:
        """Compare runs at equal x: configs, values, noise. The first is the baseline.

        metric: val/loss if all runs have it, else another one that they have.
        by: group them by config paths, metrics (val/loss, val/loss<2.5), tag or project.
        """
        runs = [self._client.run(ref) for ref in refs]
        compared = self._client.compare(*runs, metric=metric, x=x, by=by)
        return {
            "metric": compared.metric,
            f"compared_at_{compared.x_axis}": compared.common_x,
            "results": [result.model_dump(include=_RESULT) for result in compared.results],
            "groups": compared.groups,
            "differences": [
                {"path": one.path, "values": one.values, "may_change_outcome": one.factor}
                for one in sorted(compared.differences, key=lambda one: not one.factor)[:30]
            ],
            "verdicts": [gap.sentence for gap in compared.gaps],
            "notes": compared.notes,
        }

    def queue(self, limit: Limit = 30) -> Answer:
        """List queued runs in order, each with the reason why it waits."""
        waiting = self._client.queue()
        return {"queued": [brief_queued(run) for run in waiting[:limit]], "total": len(waiting)}

    def cluster(self) -> Answer:
        """Show the nodes, and what each GPU does."""
        return {"cluster": self._client.cluster()}

    def plan(self, spec: SpecText, overrides: Overrides = None) -> Answer:
        """Estimate memory, time and cost of a run, sweep or rollout, without launching it."""
        return brief_plan(planned(self._client, load_spec(f"{spec}\n", overrides or {})))

    def transfer(
        self,
        ref: Ref,
        spec: SpecText,
        overrides: Overrides = None,
        rule: Annotated[str | None, Field(description="One of the answer's rules.")] = None,
    ) -> Answer:
        """Estimate the learning rate of a larger run or rollout from a sweep's verdict (ref)."""
        sweep = self._client.find_sweep(ref)
        estimate = sweep.transfer(f"{spec}\n", overrides or {}, rule=rule)
        return estimate.model_dump(mode="json", exclude={"sweep_id", "from_likely", "from_sure"})

    def example_spec(self, kind: Literal["run", "sweep", "rollout"]) -> Answer:
        """Return a small working spec as YAML, with comments. The schema is a resource."""
        from lehr.specs.examples import example

        return {"yaml": example(kind), "schema": f"lehr://schema/{kind}"}

    def _verdict(self, sweep: Sweep) -> str | None:
        """Return the result of the sweep as a sentence; None before there is one."""
        try:
            answer = self._client.transport.get(f"/sweeps/{sweep.id}/figure")
        except NotFound:
            return None
        verdict = json.loads(answer).get("verdict")
        return verdict if isinstance(verdict, str) else None


def planned(client: Client, spec: Spec) -> Answer:
    """Return what `lehr plan --json` prints.

    Raises:
        PlanRefused: a run does not fit in the requested GPU.
    """
    plan, refused = PlanServer(lambda: client).plan(spec)
    if refused is not None:
        raise refused
    return spec_json(spec, plan)
