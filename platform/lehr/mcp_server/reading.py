"""Tools that read lists, objects, comparisons and plans, in short answers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from lehr.errors import NotFound
from lehr.mcp_server.answers import Answer, ago, brief_run, clipped, cost_of
from lehr.mcp_server.briefs import (
    brief_plan,
    brief_queued,
    brief_stage,
    brief_trial,
)
from lehr.mcp_server.launching import Overrides, Ref, SpecText
from lehr.mcp_server.plain_text import plain
from lehr.schemas.base import Page
from lehr.schemas.runs import RunView
from lehr.specs import load_spec

if TYPE_CHECKING:
    from lehr.client import Client, Sweep
    from lehr.mcp_server.estimates import LaunchEstimates

Limit = Annotated[int, Field(ge=1, le=100)]
Offset = Annotated[int, Field(ge=0, description="Skip so many, to read on.")]
_REPORT_PIECE = 8_000
_LINE = 500


class Reading:
    """The tools, for one server."""

    def __init__(self, client: Client, estimates: LaunchEstimates) -> None:
        self._client = client
        self._estimates = estimates

    def overview(self) -> Answer:
        """Show the server, its GPUs, what runs and what waits. Begin here."""
        cluster = self._client.cluster()
        active = self._client.runs(states=["starting", "running", "stopping"], limit=20)
        waiting = self._client.queue()
        return {
            "server": self._client.server,
            "cluster": {
                "state": cluster.state,
                "message": cluster.message,
                "gpus": cluster.gpus_total,
                "busy": cluster.gpus_busy,
                "free": cluster.gpus_free,
                "kinds": sorted({gpu.name for node in cluster.nodes for gpu in node.gpus}),
            },
            "running": [brief_run(run.view) for run in active],
            "queued": len(waiting),
            "first_in_queue": [brief_queued(one) for one in waiting[:5]],
            "newest_sweeps": [
                {"id": one.id, "name": one.name, "state": one.state}
                for one in self._client.sweeps(limit=5)
            ],
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
        params = {
            "state": state,
            "project": project,
            "sweep": sweep,
            "tag": tag,
            "search": search,
            "limit": limit,
            "cursor": cursor,
        }
        page = Page[RunView].model_validate_json(self._client.transport.get("/runs", params))
        return {
            "total": page.total,
            "runs": [brief_run(view) for view in page.items],
            "next_cursor": page.next_cursor,
        }

    def show_run(self, ref: Ref) -> Answer:
        """Show a run: state and reason, alerts, attempts, cost, its config, what to do next."""
        run = self._client.run(ref)
        detail = run.detail
        saved = [one for one in run.checkpoints() if one.removed_at is None]
        return {
            **brief_run(detail),
            "cause": detail.cause,
            "latest": {name: one.value for name, one in detail.latest.items()},
            "gpus": f"{detail.gpus} x {detail.device or detail.gpu_type or 'any GPU'}",
            "forked_from": detail.forked_from,
            "cost": cost_of(detail.cost),
            "attempts": [
                {
                    "number": one.number,
                    "resumed_from": one.resume_from,
                    "outcome": one.outcome,
                    "cause": one.cause,
                    "message": clipped(one.message or "", 600),
                    "exit_code": one.exit_code,
                    "ended": ago(one.exited_at),
                }
                for one in detail.attempts[-5:]
            ],
            "checkpoints_at": [one.step for one in saved][-20:],
            "warnings": detail.warnings,
            "train": detail.spec.get("train"),
            "trainer": detail.spec.get("trainer"),
            "note": clipped(detail.note, 600),
            "url": run.url,
        }

    def list_sweeps(self, project: str | None = None, limit: Limit = 20) -> Answer:
        """List sweeps, newest first, with their best trial so far."""
        return {
            "sweeps": [
                {
                    "id": one.id,
                    "name": one.name,
                    "state": one.state,
                    "counts": one.view.counts,
                    "varies": one.view.parameters,
                    "metric": one.view.metric,
                    "best_value": one.view.best_value,
                    "best": one.view.best_parameters,
                }
                for one in self._client.sweeps(project=project, limit=limit)
            ]
        }

    def show_sweep(self, ref: Ref, limit: Limit = 20, offset: Offset = 0) -> Answer:
        """Show a sweep: its verdict, notes, ranked trials, cost, and the trials to add next."""
        sweep = self._client.find_sweep(ref)
        view = sweep.detail
        ranked = sweep.results()
        return {
            "id": sweep.id,
            "name": sweep.name,
            "state": sweep.state,
            "counts": view.counts,
            "metric": f"{view.metric}, {view.goal}",
            "compared_at_step": view.compared_at_step,
            "best": view.best_parameters,
            "best_value": view.best_value,
            "verdict": self._verdict(sweep),
            "notes": view.notes,
            "noise_between_seeds": view.noise,
            "trials": [brief_trial(one) for one in ranked[offset : offset + limit]],
            "trials_total": len(ranked),
            "next_trials": view.next_trials,
            "cost": cost_of(view.cost),
            "warnings": view.warnings,
            "url": sweep.url,
        }

    def list_rollouts(self, project: str | None = None, limit: Limit = 20) -> Answer:
        """List rollouts, newest first, with the state of each stage."""
        return {
            "rollouts": [
                {
                    "id": one.id,
                    "name": one.name,
                    "state": one.state,
                    "why": one.reason,
                    "stages": one.view.progress,
                }
                for one in self._client.rollouts(project=project, limit=limit)
            ]
        }

    def show_rollout(self, ref: Ref) -> Answer:
        """Show a rollout: each stage with its gates, what was expected and what was seen."""
        rollout = self._client.find_rollout(ref)
        return {
            "id": rollout.id,
            "name": rollout.name,
            "state": rollout.state,
            "why": rollout.reason,
            "stages": [brief_stage(stage) for stage in rollout.stages],
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
        found = self._client.compare(*runs, metric=metric, x=x, by=by)
        return {
            "metric": found.metric,
            f"compared_at_{found.x_axis}": found.common_x,
            "results": [
                {
                    "run": one.name or one.run_id,
                    "id": one.run_id,
                    "value": one.value,
                    "delta": one.delta,
                    "tokens_per_s": one.tokens_per_s,
                    "mfu": one.mfu,
                    "memory_bytes": one.memory_bytes,
                }
                for one in found.results
            ],
            "groups": [group.model_dump() for group in found.groups],
            "differences": [
                {"path": one.path, "values": one.values, "may_change_outcome": one.factor}
                for one in sorted(found.differences, key=lambda one: not one.factor)[:30]
            ],
            "verdicts": [one.sentence for one in found.gaps],
            "notes": found.notes,
        }

    def queue(self, limit: Limit = 30) -> Answer:
        """List queued runs in order, each with the reason why it waits."""
        found = self._client.queue()
        return {"queued": [brief_queued(one) for one in found[:limit]], "total": len(found)}

    def cluster(self) -> Answer:
        """Show the nodes, and what each GPU does."""
        return {"cluster": self._client.cluster()}

    def plan(self, spec: SpecText, overrides: Overrides = None) -> Answer:
        """Estimate memory, time and cost of a run, sweep or rollout, without launching it."""
        made = self._estimates.plan(load_spec(f"{spec}\n", overrides or {}))
        return brief_plan(made)

    def transfer(
        self,
        ref: Ref,
        spec: SpecText,
        overrides: Overrides = None,
        rule: Annotated[str | None, Field(description="One of the answer's rules.")] = None,
    ) -> Answer:
        """Estimate the learning rate of a larger run or rollout from a sweep's verdict (ref)."""
        found = self._client.find_sweep(ref).transfer(f"{spec}\n", overrides or {}, rule=rule)
        return found.model_dump(mode="json", exclude={"sweep_id", "from_likely", "from_sure"})

    def report(self, ref: Ref, offset: Offset = 0) -> Answer:
        """Read the report of a run, sweep or rollout as text, a piece at a time."""
        found = self._client.find_any(ref)
        kind = type(found).__name__.lower()
        text = plain(self._client.transport.text(f"/{kind}s/{found.id}/report"))
        end = offset + _REPORT_PIECE
        return {
            "text": text[offset:end],
            "next_offset": end if end < len(text) else None,
        }

    def example_spec(self, kind: Literal["run", "sweep", "rollout"]) -> Answer:
        """Return a small working spec as YAML, with comments. The schema is a resource."""
        from lehr.examples import example

        return {"yaml": example(kind), "schema": f"lehr://schema/{kind}"}

    def _verdict(self, sweep: Sweep) -> str | None:
        """Return the result of the sweep as a sentence; None before there is one."""
        try:
            answer = self._client.transport.get(f"/sweeps/{sweep.id}/figure")
        except NotFound:
            return None
        verdict = json.loads(answer).get("verdict")
        return verdict if isinstance(verdict, str) else None
