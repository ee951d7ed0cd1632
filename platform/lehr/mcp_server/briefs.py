"""Short forms of queue entries, trials, stages and plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lehr.formats import duration
from lehr.mcp_server.answers import Answer, ago, brief_run

if TYPE_CHECKING:
    from lehr.schemas.rollouts import StageView
    from lehr.schemas.sweeps import TrialView


def brief_queued(one: Any) -> Answer:
    return {
        "position": one.position,
        "id": one.run_id,
        "name": one.name,
        "needs": f"{one.gpus} x {one.gpu_type or 'any GPU'}",
        "priority": one.priority,
        "why": one.reason,
        "waits_since": ago(one.queued_at),
    }


def brief_trial(one: TrialView) -> Answer:
    return {
        "rank": one.rank,
        "run": one.run.id,
        "parameters": one.parameters,
        "value": one.compared_value if one.compared_value is not None else one.value,
        "state": one.run.state,
        "why": one.run.reason if one.run.state in {"failed", "queued"} else None,
        "step": one.run.step,
    }


def brief_stage(stage: StageView) -> Answer:
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


def brief_plan(made: Answer) -> Answer:
    """Return the plan without its longest parts; of a sweep, the first trials."""
    short = {name: value for name, value in made.items() if name not in _LONG}
    for name in ("plan", "trials", "stages"):
        inner = short.get(name)
        if isinstance(inner, dict):
            short[name] = brief_plan(inner)
        elif isinstance(inner, list):
            short[name] = [brief_plan(one) for one in inner[:10]]
            short[f"{name}_total"] = len(inner)
    return short
