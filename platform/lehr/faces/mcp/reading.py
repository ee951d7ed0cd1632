"""Tools that read lists, objects, comparisons, plans and what runs recorded, in short answers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from lehr.analysis.plan_json import spec_json
from lehr.control.lifecycle import REPORTING
from lehr.errors import NotFound, ServerUnavailable
from lehr.faces.client import Client, Rollout, Run, Sweep
from lehr.faces.client.plan_server import PlanServer
from lehr.faces.mcp.answers import (
    Answer,
    ago,
    brief_plan,
    brief_queued,
    brief_run,
    brief_trial,
    clipped,
    curve,
)
from lehr.faces.mcp.launching import Overrides, Ref, SpecText
from lehr.schemas.base import Page
from lehr.schemas.runs import RunView
from lehr.schemas.streams import Series
from lehr.specs import load_spec
from lehr.specs.examples import example

Limit = Annotated[int, Field(ge=1, le=100)]
Offset = Annotated[int, Field(ge=0, description="Skip so many, to read on.")]
_LINE = 500
_LOOK_S = 2.0
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
        active = self._client.runs(states=sorted(REPORTING), limit=20)
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
        x: Literal["step", "tokens", "time", "flops", "end"] = "step",
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

    async def wait(
        self,
        refs: Annotated[list[Ref], Field(min_length=1, max_length=20)],
        until: Literal["all_ended", "any_ended", "state_changed", "alert"] = "all_ended",
        timeout_s: Annotated[
            float, Field(ge=0, le=3600, description="Below the time at which your client gives up.")
        ] = 50,
    ) -> Answer:
        """Wait for runs, sweeps or rollouts; use it in place of asking again and again.

        It answers once all or any have ended, one changed its state, or a run had a new alert or
        failed (in a sweep: another trial failed); at the latest once all have ended, or after
        timeout_s with reached false: then call it again.
        """
        began = time.monotonic()
        objects = [await asyncio.to_thread(self._client.find_any, ref) for ref in refs]
        before = [_signs(waited) for waited in objects]
        sign = {"state_changed": "state", "alert": "trouble"}.get(until)
        while True:
            signs = [_signs(waited) for waited in objects]
            ended = [waited.ended for waited in objects]
            reached = all(ended) or (until == "any_ended" and any(ended))
            if sign is not None:
                reached |= [now[sign] for now in signs] != [old[sign] for old in before]
            waited_s = time.monotonic() - began
            if reached or waited_s >= timeout_s:
                return {"reached": reached, "waited_s": round(waited_s), "now": signs}
            await asyncio.sleep(min(_LOOK_S, timeout_s - waited_s))
            for waited in objects:
                # A server that restarts does not end a wait.
                with contextlib.suppress(ServerUnavailable):
                    await asyncio.to_thread(waited.refresh)

    def cluster(self) -> Answer:
        """Show the nodes, and what each GPU does."""
        return {"cluster": self._client.cluster()}

    def plan(self, spec: SpecText, overrides: Overrides = None) -> Answer:
        """Estimate memory, time and cost of a run, sweep or rollout, without launching it."""
        loaded = load_spec(f"{spec}\n", overrides or {})
        plan, refused = PlanServer(lambda: self._client).plan(loaded)
        if refused is not None:
            raise refused
        return brief_plan(spec_json(plan))

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
        return {"yaml": example(kind), "schema": f"lehr://schema/{kind}"}

    def metrics(
        self,
        ref: Ref,
        matching: Annotated[
            str, Field(max_length=200, description="Part of the name; * stands for any text.")
        ] = "",
        limit: Limit = 60,
    ) -> Answer:
        """List the metrics of a run, each with points, last value and range."""
        # Not a regular expression: one can take hours, and no other thread would run, not even the
        # one that answers the agent.
        pattern = f"*{matching}*".replace("[", "[[]")
        known = [one for one in self._client.run(ref).metrics() if fnmatchcase(one.name, pattern)]
        fields = {"name", "points", "last", "last_step", "minimum", "maximum"}
        shown = [metric.model_dump(mode="json", include=fields) for metric in known[:limit]]
        return {"metrics": shown, "total": len(known)}

    def history(
        self,
        ref: Ref,
        names: Annotated[list[str], Field(min_length=1, max_length=6)],
        x: Literal["step", "tokens", "time"] = "step",
        points: Annotated[int, Field(ge=2, le=200)] = 40,
        first: Annotated[float | None, Field(description="From this x on.")] = None,
        last: Annotated[float | None, Field(description="Up to this x.")] = None,
        smoothing: Annotated[float | None, Field(ge=0, lt=1)] = None,
    ) -> Answer:
        """Read curves of a run, reduced to a few points; narrow first and last to see more."""
        run = self._client.run(ref)
        params = {"name": names, "x": x, "points": points, "smoothing": smoothing}
        answer = self._client.transport.get(
            f"/runs/{run.id}/series", {**params, "from": first, "to": last}
        )
        curves = TypeAdapter(list[Series]).validate_json(answer)
        return {"curves": [curve(series) for series in curves]}

    def logs(
        self,
        ref: Ref,
        name: Annotated[str, Field(description="rank-0.log, launcher.log, ...")] = "rank-0.log",
        attempt: int | None = None,
        lines: Annotated[int, Field(ge=1, le=200)] = 40,
        offset: Annotated[
            int | None, Field(description="Begin at this byte, as search_logs returned it.")
        ] = None,
    ) -> Answer:
        """Read the last lines of a run's output, or lines from a byte on."""
        run = self._client.run(ref)
        tail = lines if offset is None else None
        found = run.logs(name, attempt=attempt, tail=tail, offset=offset)
        streams = [f"{one.name} of attempt {one.attempt}" for one in run.log_streams()]
        return {
            "lines": [clipped(one, _LINE) for one in itertools.islice(found, lines)],
            "logs": streams[-20:],
        }

    def search_logs(
        self,
        ref: Ref,
        text: Annotated[str, Field(min_length=1)],
        name: str = "rank-0.log",
        attempt: int | None = None,
        limit: Limit = 20,
    ) -> Answer:
        """Find lines of a whole log that contain a text, ignoring case."""
        hits = self._client.run(ref).search_logs(text, name, attempt=attempt)
        lines = [
            {"offset": hit.offset, "text": clipped(hit.text, _LINE)}
            for hit in itertools.islice(hits, limit + 1)
        ]
        return {"lines": lines[:limit], "more": len(lines) > limit or None}

    def events(self, ref: Ref, limit: Limit = 30) -> Answer:
        """List the newest events of a run: transitions, requests, checkpoints, warnings."""
        events = self._client.run(ref).events()
        fields = {"kind", "message", "step", "attempt"}
        return {
            "events": [
                {"when": ago(event.at), **event.model_dump(mode="json", include=fields)}
                for event in events[-limit:]
            ],
            "earlier": max(len(events) - limit, 0) or None,
        }

    def checkpoints(self, ref: Ref, limit: Limit = 20) -> Answer:
        """List the newest checkpoints of a run that exist, and why each is kept."""
        saved = [one for one in self._client.run(ref).checkpoints() if one.removed_at is None]
        fields = {
            "attempt", "step", "size_bytes", "reason", "val_loss", "best", "latest", "kept",
            "copy_state", "copy_error",
        }  # fmt: skip
        return {
            "checkpoints": [one.model_dump(mode="json", include=fields) for one in saved[-limit:]],
            "earlier": max(len(saved) - limit, 0) or None,
        }

    def code_diff(
        self,
        ref: Ref,
        other: Ref,
        name: Annotated[str | None, Field(description="Only this file.")] = None,
    ) -> Answer:
        """Show how the code of another run differs from that of a run, by file."""
        changes = self._client.code_diff(ref, other).changes
        shown = [change.model_dump() for change in changes if name in (None, change.name)]
        return {"changes": shown, "same": not changes or None}

    def diagnose(self, ref: Ref) -> Answer:
        """Find what is wrong with a run: how it ended, alerts on its curves, cause, advice."""
        run = self._client.run(ref)
        detail = run.detail
        newest = detail.attempts[-1] if detail.attempts else None
        return {
            "run": brief_run(detail),
            "cause": detail.cause,
            "end": clipped(newest.message or "", 2_000) if newest else None,
            # Once each: the explanation repeats the fields for people.
            "alerts": [
                alert.model_dump(mode="json", exclude={"message", "explanation"})
                for alert in run.alerts()
            ],
            "next": "logs, search_logs and events have the details; retry continues a failed run.",
        }

    def _verdict(self, sweep: Sweep) -> str | None:
        """Return the result of the sweep as a sentence; None before there is one."""
        try:
            answer = self._client.transport.get(f"/sweeps/{sweep.id}/figure")
        except NotFound:
            return None
        verdict = json.loads(answer).get("verdict")
        return verdict if isinstance(verdict, str) else None


def _signs(waited: Run | Sweep | Rollout) -> Answer:
    """Return the state of what is waited for, and the signs of trouble that wake an agent."""
    view: Any = waited.view
    failed = waited.state == "failed" or getattr(view, "counts", {}).get("failed", 0)
    return {
        "id": waited.id,
        "name": waited.name,
        "state": waited.state,
        "why": getattr(view, "reason", None),
        "step": getattr(view, "step", None),
        "trouble": [*getattr(view, "alerts", ()), *([f"failed: {failed:d}"] if failed else ())],
    }
