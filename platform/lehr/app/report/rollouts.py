"""The report of a rollout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lehr.app.report import parts
from lehr.app.report.document import Document, Section, Table
from lehr.base import formats

if TYPE_CHECKING:
    from lehr.schemas.rollouts import GateView, RolloutDetail, StageView
    from lehr.schemas.runs import CostView
    from lehr.schemas.streams import AlertView, Series


def rollout_report(
    rollout: RolloutDetail,
    curves: Mapping[str, Sequence[tuple[str, Series]]],
    provenance: Mapping[str, Any],
    diagnosed: Mapping[str, Sequence[AlertView]],
    *,
    made_at: float,
    version: str,
) -> Document:
    """Return the report.

    Args:
        rollout: with its stages and gates.
        curves: by metric, the name and points of each stage's run.
        provenance: of its runs.
        diagnosed: by the run's id, its explained alerts.
        made_at: seconds since the epoch.
        version: of Lehr.
    """
    runs = [(one.run.name, one.run) for stage in rollout.stages for one in stage.runs]
    notes = [*([rollout.reason] if rollout.reason else []), *rollout.notes]
    if rollout.note:
        notes.append(f"Notes: {rollout.note}")
    sections = [
        Section("Result", facts=_facts(rollout), notes=notes, alerts=parts.alerts(runs, diagnosed)),
        Section("Stages", tables=[_stages(rollout.stages)]),
        Section("Gates", tables=[_gates(rollout.stages)]),
        Section(
            "Curves",
            figures=[parts.curves(metric, found) for metric, found in curves.items() if found],
            empty="No run has logged a metric yet.",
        ),
        parts.config(rollout.spec),
        *parts.provenance(provenance),
    ]
    passed = sum(stage.state == "passed" for stage in rollout.stages)
    headline = f"{passed} of {len(rollout.stages)} stages passed."
    return parts.document("rollout", rollout, headline, sections, made_at=made_at, version=version)


def _facts(rollout: RolloutDetail) -> list[tuple[str, str]]:
    return [
        *parts.cost(rollout.cost),
        ("submitted", parts.at(rollout.created_at)),
        ("ended", parts.at(rollout.ended_at)),
        ("run of the last stage", rollout.run_id or formats.NOTHING),
    ]


def _stages(stages: Sequence[StageView]) -> Table:
    rows = [
        [
            str(stage.number),
            stage.title,
            stage.state + (f": {stage.reason}" if stage.reason else ""),
            stage.model,
            f"{stage.gpus} on {stage.nodes}",
            f"{stage.steps:,}",
            _cost(stage.cost),
            ", ".join(one.run.id for one in stage.runs),
        ]
        for stage in stages
    ]
    head = ["", "stage", "state", "model", "GPUs on nodes", "steps", "cost", "runs"]
    return Table(head, rows, right=frozenset({5}))


def _cost(cost: CostView | None) -> str:
    return formats.NOTHING if cost is None else cost.text


def _gates(stages: Sequence[StageView]) -> Table:
    rows = [
        [
            stage.title,
            gate.title,
            gate.state.replace("_", " "),
            gate.expected,
            gate.seen or _NOT,
            _step(gate),
        ]
        for stage in stages
        for gate in stage.gates
    ]
    head = ["stage", "gate", "verdict", "expected", "seen", "step"]
    return Table(head, rows, right=frozenset({5}))


_NOT = formats.NOTHING


def _step(gate: GateView) -> str:
    return formats.NOTHING if gate.step is None else f"{gate.step:,}"
