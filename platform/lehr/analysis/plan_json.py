"""The documented JSON of plans: of a run, a sweep, a rollout."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lehr.analysis.gates import expected
from lehr.analysis.plan import RunPlan, SpecPlan
from lehr.base.names import is_type
from lehr.specs.stages import left_out

if TYPE_CHECKING:
    from lehr.schemas.cluster import ClusterView
    from lehr.specs import PlannedStage


def plan_json(plan: RunPlan, cluster: ClusterView | None = None) -> dict[str, Any]:
    """Return the documented JSON of a run's plan. ``cluster``: for what is free now."""
    return {
        "model": plan.model,
        "parameter_count": plan.parameters.total,
        "embedding_parameters": plan.parameters.embedding,
        "tokens_per_step": plan.tokens_per_step,
        "steps": plan.steps,
        "tokens": plan.tokens,
        "tokens_per_parameter": plan.tokens_per_parameter,
        "corpus_tokens": plan.corpus_tokens,
        "flops": plan.flops,
        "gpus": plan.gpus,
        "nodes": plan.resources.nodes,
        "gpu_type": plan.gpu_type,
        "micro_batch": plan.micro_batch,
        "accumulation": plan.accumulation,
        "largest_micro_batch": plan.largest_micro_batch,
        "memory_bytes": plan.memory.peak,
        "gpu_memory_bytes": plan.gpu.memory_bytes if plan.gpu else None,
        "memory_stages": [
            {
                "stage": stage.stage,
                "shape": list(stage.shape),
                "overhead_bytes": stage.overhead,
                "phases": {
                    name: {**asdict(moment), "total": moment.total}
                    for name, moment in stage.phases.items()
                },
            }
            for stage in plan.memory_stages
        ],
        "checkpoint_copy_bytes": plan.memory.checkpoint_copy,
        "average_bytes": plan.memory.average,
        "checkpoints": asdict(plan.checkpoints),
        "stages": [
            {
                **asdict(stage),
                "seconds": None if plan.seconds is None else stage.share * plan.seconds,
                "dollars": None if plan.dollars is None else stage.share * plan.dollars,
            }
            for stage in plan.stages
        ],
        "replaced_parts": plan.replaced_parts,
        "not_counted": plan.not_counted,
        "fits": plan.fits,
        "fits_in": plan.roomy_gpus,
        "free_nodes": free_nodes(plan, cluster),
        "seconds": plan.seconds,
        "gpu_hours": plan.gpu_hours,
        "dollars": plan.dollars,
        "basis": plan.basis,
        "link": plan.link,
    }


def spec_json(plan: SpecPlan, cluster: ClusterView | None = None) -> dict[str, Any]:
    """Return what ``lehr plan --json`` prints."""
    spec = plan.spec
    if spec.kind == "sweep":
        shown = {
            "name": spec.name,
            "method": spec.method,
            "parameters": spec.paths,
            "metric": spec.metric.name,
            "goal": spec.metric.goal,
            "places": plan.places,
            "later": plan.later,
            "seconds": plan.seconds,
            "gpu_hours": plan.gpu_hours,
            "dollars": plan.dollars,
            "trials": [
                {"number": number, "parameters": parameters, **plan_json(trial, cluster)}
                for number, (parameters, trial) in enumerate(plan.runs, start=1)
            ],
        }
    elif spec.kind == "rollout":
        shown = {
            "name": spec.name,
            "left_out": left_out(spec),
            "stages": [_stage_json(stage, need) for stage, need in plan.runs],
        }
    else:
        shown = {"name": spec.name, "plan": plan_json(plan.runs[0][1], cluster)}
    return {"kind": spec.kind, **shown}


def _stage_json(stage: PlannedStage, plan: RunPlan) -> dict[str, Any]:
    gates = [(name, expected(name, stage)) for name in stage.gates]
    return {
        "number": stage.number,
        "name": stage.name,
        "title": stage.title,
        "judged_at_step": stage.judge_after,
        "changes": stage.changes,
        "runs": stage_runs(stage),
        "gates": [
            {
                "name": name,
                "enabled": stage.gates[name].enabled,
                "expected": gate.text,
                "at_least": gate.at_least,
                "at_most": gate.at_most,
                "unit": gate.unit,
            }
            for name, gate in gates
        ],
        **plan_json(plan),
    }


def stage_runs(stage: PlannedStage) -> list[dict[str, Any]]:
    """Return the role, name and steps of each run of the stage."""
    found = []
    for role in stage.roles:
        spec = stage.runs.get(role, stage.runs[stage.whole])
        steps = spec.own.steps - (stage.middle if role == "resumed" else 0)
        found.append({"role": role, "name": stage.run_name(role), "steps": steps})
    return found


def free_nodes(plan: RunPlan, cluster: ClusterView | None) -> list[str] | None:
    """Return the nodes on which such a run could start now; empty if they are too few.

    Runs that wait before it are not regarded. None if that is unknown, and for a run without GPUs.
    """
    # How many runs without GPUs a node trains now is not shown.
    if cluster is None or not plan.gpus:
        return None
    need = plan.resources
    free = [
        node.name
        for node in cluster.nodes
        if node.no_runs is None
        and sum(is_type(gpu.name, need.gpu_type) and not gpu.busy for gpu in node.gpus)
        >= need.gpus // need.nodes
    ]
    return free if len(free) >= need.nodes else []
