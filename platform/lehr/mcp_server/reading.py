"""Tools that read: each answer is short, and names how to get more."""

from __future__ import annotations

import itertools
import json
import re
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from lehr.cli.connect import find_any
from lehr.errors import NotFound, UserError, nearest
from lehr.formats import duration
from lehr.mcp_server.answers import Answer, ago, brief_run, clipped, cost_of, curve
from lehr.mcp_server.launching import Overrides, Ref, SpecText
from lehr.mcp_server.plain_text import plain
from lehr.schemas.base import Page
from lehr.schemas.runs import RunView
from lehr.schemas.streams import Series
from lehr.specs import load_spec

if TYPE_CHECKING:
    from lehr.client import Client, Sweep
    from lehr.mcp_server.estimates import LaunchEstimates
    from lehr.schemas.rollouts import StageView
    from lehr.schemas.sweeps import TrialView

Limit = Annotated[int, Field(ge=1, le=100)]
Offset = Annotated[int, Field(ge=0, description="Skip so many, to read on.")]
_REPORT_PIECE = 8_000
_LINE = 500
_EXAMPLES = {"sweep": "lr_grid_small.yaml", "rollout": "rollout_small.yaml"}


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
                "kinds": sorted({gpu.name for node in cluster.nodes for gpu in node.gpus}),
            },
            "running": [brief_run(run.view) for run in active],
            "queued": len(waiting),
            "first_in_queue": [_queued(one) for one in waiting[:5]],
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
            "train": detail.spec["train"],
            "notes": clipped(detail.spec.get("notes", ""), 600),
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
            "trials": [_trial(one) for one in ranked[offset : offset + limit]],
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
            "stages": [_stage(stage) for stage in rollout.stages],
            "notes": rollout.notes,
            "url": rollout.url,
        }

    def metrics(
        self,
        ref: Ref,
        matching: Annotated[str, Field(description="A regular expression.")] = "",
        limit: Limit = 60,
    ) -> Answer:
        """List the metrics of a run, each with points, last value and range."""
        try:
            pattern = re.compile(matching)
        except re.error as error:
            raise UserError(f"matching {matching!r} is no regular expression: {error}.") from error
        known = [one for one in self._client.run(ref).metrics() if pattern.search(one.name)]
        return {
            "metrics": [
                {
                    "name": one.name,
                    "points": one.points,
                    "last": one.last,
                    "at_step": one.last_step,
                    "min": one.minimum,
                    "max": one.maximum,
                }
                for one in known[:limit]
            ],
            "total": len(known),
        }

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
        known = [one.name for one in run.metrics()]
        for name in names:
            if name not in known:
                near = nearest(name, known)
                raise NotFound(
                    f"run {run.name} has no metric {name!r}.",
                    hint=f"Did you mean {near}?" if near else "List them with metrics.",
                )
        params = {"name": names, "x": x, "points": points, "smoothing": smoothing}
        answer = self._client.transport.get(
            f"/runs/{run.id}/series", {**params, "from": first, "to": last}
        )
        return {
            "curves": [curve(one) for one in TypeAdapter(list[Series]).validate_json(answer)],
        }

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
        found = list(itertools.islice(hits, limit + 1))
        return {
            "lines": [
                {"offset": one.offset, "text": clipped(one.text, _LINE)} for one in found[:limit]
            ],
            "more": len(found) > limit or None,
        }

    def events(self, ref: Ref, limit: Limit = 30) -> Answer:
        """List the newest events of a run: transitions, requests, checkpoints, warnings."""
        found = self._client.run(ref).events()
        return {
            "events": [
                {
                    "when": ago(one.at),
                    "kind": one.kind,
                    "message": clipped(one.message, 600),
                    "step": one.step,
                    "attempt": one.attempt,
                }
                for one in found[-limit:]
            ],
            "earlier": max(len(found) - limit, 0) or None,
        }

    def diagnose(self, ref: Ref) -> Answer:
        """Find what is wrong with a run: how it ended, alerts on its curves, cause, advice."""
        run = self._client.run(ref)
        detail = run.detail
        newest = detail.attempts[-1] if detail.attempts else None
        return {
            "run": brief_run(detail),
            "cause": detail.cause,
            "end": clipped(newest.message or "", 2_000) if newest else None,
            "alerts": run.alerts(),
            "next": "logs, search_logs and events have the details; retry continues a failed run.",
        }

    def compare(
        self,
        refs: Annotated[list[str], Field(min_length=2, max_length=20)],
        metric: str = "val/loss",
        x: Literal["step", "tokens", "time", "flops"] = "step",
    ) -> Answer:
        """Compare runs at equal x: configs, values, noise. The first is the baseline."""
        runs = [self._client.run(ref) for ref in refs]
        found = self._client.compare(*runs, metric=metric, x=x)
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
        return {"queued": [_queued(one) for one in found[:limit]], "total": len(found)}

    def cluster(self) -> Answer:
        """Show the nodes, and what each GPU does."""
        return {"cluster": self._client.cluster()}

    def node_history(
        self,
        node: str,
        hours: Annotated[float, Field(gt=0, le=2160)] = 1.0,
        points: Annotated[int, Field(ge=2, le=100)] = 30,
    ) -> Answer:
        """Show CPU, memory, disk, network and GPUs of a node over the last hours."""
        first = time.time() - hours * 3600
        return {"history": self._client.node_history(node, first=first, points=points)}

    def system(
        self,
        ref: Ref,
        attempt: int | None = None,
        points: Annotated[int, Field(ge=2, le=100)] = 30,
    ) -> Answer:
        """Show what a run's nodes and GPUs did while an attempt ran, by default the newest."""
        run = self._client.run(ref)
        if not run.attempt:
            return {"note": f"{run.name} has not been started yet."}
        return {"system": run.system(attempt=attempt or run.attempt, points=points)}

    def plan(self, spec: SpecText, overrides: Overrides = None) -> Answer:
        """Estimate memory, time and cost of a run, sweep or rollout, without launching it."""
        made = self._estimates.plan(load_spec(f"{spec}\n", overrides or {}))
        return _short_plan(made)

    def report(self, ref: Ref, offset: Offset = 0) -> Answer:
        """Read the report of a run, sweep or rollout as text, a piece at a time."""
        found = find_any(self._client, ref)
        kind = type(found).__name__.lower()
        text = plain(self._client.transport.text(f"/{kind}s/{found.id}/report"))
        end = offset + _REPORT_PIECE
        return {
            "text": text[offset:end],
            "next_offset": end if end < len(text) else None,
        }

    def example_spec(self, kind: Literal["run", "sweep", "rollout"]) -> Answer:
        """Return a small working spec as YAML, with comments. The schema is a resource."""
        from lehr.examples import FOLDER

        if kind == "run":
            return {"yaml": EXAMPLE_RUN, "schema": "lehr://schema/run"}
        text = (FOLDER / _EXAMPLES[kind]).read_text()
        return {"yaml": text, "schema": f"lehr://schema/{kind}"}

    def _verdict(self, sweep: Sweep) -> str | None:
        """Return what the sweep says in a sentence; None before it says anything."""
        try:
            answer = self._client.transport.get(f"/sweeps/{sweep.id}/figure")
        except NotFound:
            return None
        verdict = json.loads(answer).get("verdict")
        return verdict if isinstance(verdict, str) else None


EXAMPLE_RUN = """\
name: first
train:
  model: tiny                       # a preset: lehr presets lists them
  data:
    corpus: {kind: stdlib}          # text that every machine has
    tokenizer: byte
  batch: {sequences: 8, sequence_length: 128}
  steps: 200
  optimizer: {lr: 1e-3}
  validation: {every: 50}
  checkpoint: {every: 100}
resources: {gpus: 1}
time_limit_s: 600                   # the budget counts this time where no plan of it exists
"""


def _queued(one: Any) -> Answer:
    return {
        "position": one.position,
        "id": one.run_id,
        "name": one.name,
        "needs": f"{one.gpus} x {one.gpu_type or 'any GPU'}",
        "priority": one.priority,
        "why": one.reason,
        "waits_since": ago(one.queued_at),
    }


def _trial(one: TrialView) -> Answer:
    return {
        "rank": one.rank,
        "run": one.run.id,
        "parameters": one.parameters,
        "value": one.compared_value if one.compared_value is not None else one.value,
        "state": one.run.state,
        "why": one.run.reason if one.run.state in {"failed", "queued"} else None,
        "step": one.run.step,
    }


def _stage(stage: StageView) -> Answer:
    return {
        "name": stage.name,
        "title": stage.title,
        "state": stage.state,
        "why": stage.reason,
        "gpus": stage.gpus,
        "steps": stage.steps,
        "gates": [
            {
                "name": gate.name,
                "state": gate.state,
                "expected": gate.expected,
                "seen": gate.seen,
                "run": gate.run_id,
            }
            for gate in stage.gates
        ],
        "runs": [{"role": one.role, **brief_run(one.run)} for one in stage.runs],
        "took": None
        if stage.started_at is None or stage.ended_at is None
        else duration(stage.ended_at - stage.started_at),
    }


_LONG = ("memory_stages", "usual_batches", "corpus_tokens", "embedding_parameters")


def _short_plan(made: Answer) -> Answer:
    """Return the plan without its longest parts; of a sweep, the first trials."""
    short = {name: value for name, value in made.items() if name not in _LONG}
    for name in ("plan", "trials", "stages"):
        inner = short.get(name)
        if isinstance(inner, dict):
            short[name] = _short_plan(inner)
        elif isinstance(inner, list):
            short[name] = [_short_plan(one) for one in inner[:10]]
            short[f"{name}_total"] = len(inner)
    return short
