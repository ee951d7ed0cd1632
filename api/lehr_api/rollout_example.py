"""Examples of rollout answers: a rollout stopped by a bug between two ranks.

Stages and what their gates expect come from the spec itself, so they cannot drift from it.
"""

from __future__ import annotations

from typing import Any

from lehr.analysis.gates import TITLES, expected
from lehr.analysis.plan import model_name
from lehr.schemas import (
    GateView,
    GpuRef,
    Latest,
    RolloutDetail,
    RolloutView,
    RunView,
    StageRunView,
    StageStatus,
    StageView,
)
from lehr.specs import PlannedStage, RolloutSpec, parse_spec, stages

_AT = 1_760_000_000.0
SPEC: dict[str, Any] = {
    "kind": "rollout",
    "name": "llama-1b",
    "run": {
        "resources": {"gpus": 8, "gpu_type": "H100"},
        "train": {
            "model": "llama-1b",
            "data": {"corpus": {"kind": "hub", "id": "karpathy/fineweb-edu-100b-shuffle"}},
            "batch": {"sequences": 512, "sequence_length": 2048, "micro_batch": 16},
            "steps": 20_000,
        },
    },
}
_SEEN: dict[str, dict[str, tuple[str, str, float | None, int | None]]] = {
    "cpu": {
        "first_loss": ("passed", "11.81 nats at step 1", 11.81, 1),
        "falling_loss": (
            "passed",
            "10.944 nats by step 60, 7.3 % under the first 11.810",
            10.944,
            60,
        ),
        "no_alerts": ("passed", "none in 60 logged steps", None, 60),
        "memory": ("not_judged", "the process held 1.9 GB of the machine's memory", None, None),
        "mfu": ("not_judged", "no peak is known of cpu, so there is no MFU", None, None),
        "exact_resume": ("passed", "all 2 files are equal", None, 60),
    },
    "one_gpu": {
        "first_loss": ("passed", "12.21 nats at step 1", 12.21, 1),
        "falling_loss": (
            "passed",
            "6.180 nats by step 250, 49.4 % under the first 12.210",
            6.18,
            250,
        ),
        "no_alerts": ("passed", "none in 250 logged steps", None, 250),
        "memory": ("passed", "peak 38.2 GB, 41.0 GB reserved", 38.2, None),
        "mfu": ("passed", "41.7 %, the median of steps 126 to 250", 0.417, 250),
        "exact_resume": ("passed", "all 2 files are equal", None, 20),
    },
    "two_gpus": {"first_loss": ("failed", "24.42 nats at step 1", 24.42, 1)},
}
_STATES: dict[str, StageStatus] = {
    "cpu": "passed",
    "one_gpu": "passed",
    "two_gpus": "failed",
    "all": "skipped",
}
_IDS = {
    "cpu": [("train", "c2pw7kfa"), ("resumed", "d4xh9mtb")],
    "one_gpu": [("train", "e8gq3ncv"), ("whole", "f5ya6rdw"), ("resumed", "g9sk2jex")],
    "two_gpus": [("train", "h3bz8vfy")],
}


def _stage(stage: PlannedStage) -> StageView:
    spec = stage.train
    ids = _IDS.get(stage.name, [])
    began = _AT + 900.0 * stage.number if ids else None
    return StageView(
        number=stage.number,
        name=stage.name,
        title=stage.title,
        state=_STATES[stage.name],
        reason=_REASON if _STATES[stage.name] == "failed" else None,
        gpus=spec.resources.gpus,
        nodes=spec.resources.nodes,
        gpu_type=spec.resources.gpu_type,
        model=model_name(spec.train),
        steps=spec.train.steps,
        tokens_per_step=spec.train.tokens_per_step,
        judged_at_step=stage.judge_after,
        changes=stage.changes,
        gates=[_gate(stage, name, ids[0][1] if ids else None, began) for name in stage.gates],
        runs=[
            StageRunView(role=role, run=_run(stage, role, run_id, began or _AT))
            for role, run_id in ids
        ],
        gpu_seconds=780.0 * spec.resources.gpus if ids else None,
        started_at=began,
        ended_at=began + 780 if began is not None else None,
    )


def _gate(stage: PlannedStage, name: Any, run_id: str | None, began: float | None) -> GateView:
    wanted = expected(name, stage)
    state, seen, value, step = _SEEN.get(stage.name, {}).get(name, ("skipped", None, None, None))
    return GateView(
        name=name,
        title=TITLES[name],
        state=state,
        expected=wanted.text,
        seen=seen,
        value=value,
        at_least=wanted.at_least,
        at_most=wanted.at_most,
        unit=wanted.unit,
        run_id=run_id if seen else None,
        step=step,
        judged_at=began + 700 if began is not None and seen else None,
    )


def _run(stage: PlannedStage, role: str, run_id: str, began: float) -> RunView:
    spec = stage.runs.get(role, stage.train)  # type: ignore[call-overload]
    failed = _STATES[stage.name] == "failed"
    step = 3 if failed else spec.train.steps
    return RunView(
        id=run_id,
        name=spec.name if role != "resumed" else f"{stage.train.name}-resumed",
        project="default",
        rollout_id="r6td3wpz",
        state="cancelled" if failed else "completed",
        attempt=1,
        gpus=spec.resources.gpus,
        gpu_type=spec.resources.gpu_type,
        device="NVIDIA H100 80GB HBM3" if spec.resources.gpus else "cpu",
        placement=[GpuRef(node="n1", gpu=gpu) for gpu in range(spec.resources.gpus)],
        step=step,
        total_steps=spec.train.steps,
        tokens_per_step=spec.train.tokens_per_step,
        latest={"train/loss": Latest(value=24.4 if failed else 6.2, step=step)},
        trend=[12.2, 9.1, 7.4, 6.6, 6.2],
        created_at=began,
        queued_at=began,
        started_at=began + 8,
        ended_at=began + 260,
        submitted_by="rollout",
    )


_REASON = (
    "first loss: 24.42 nats at step 1; expected 12.19 ± 0.5 nats: ln(131,072) and 0.41 for the "
    "spread of the first logits"
)
_FIELDS: dict[str, Any] = {
    "id": "r6td3wpz",
    "name": "llama-1b",
    "project": "default",
    "state": "failed",
    "reason": f"stage two_gpus, {_REASON}",
    "stage": "two_gpus",
    "progress": _STATES,
    "run_id": None,
    "created_at": _AT,
    "ended_at": _AT + 2750,
}


def _spec() -> RolloutSpec:
    spec = parse_spec(SPEC)
    assert isinstance(spec, RolloutSpec)
    return spec


ROLLOUT = RolloutView(**_FIELDS)
DETAIL = RolloutDetail(
    **_FIELDS,
    spec=SPEC,
    stages=[_stage(stage) for stage in stages(_spec())],
    notes=[
        "Stage cpu, memory: not judged; the process held 1.9 GB of the machine's memory.",
        "Stage cpu, MFU: not judged; no peak is known of cpu, so there is no MFU.",
    ],
)
