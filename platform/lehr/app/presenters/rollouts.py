"""Views of rollouts: their stages, and each gate with what was expected and seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from lehr.analysis.gates import TITLES, Expected, expected
from lehr.analysis.plan import model_name
from lehr.app.presenters.cost import Costs, StageUse, together
from lehr.app.presenters.runs import RunPresenter
from lehr.app.presenters.streams import shared_fields
from lehr.base import formats
from lehr.schemas.rollouts import (
    GateState,
    GateView,
    RolloutDetail,
    RolloutState,
    RolloutView,
    StageRunView,
    StageStatus,
    StageView,
)
from lehr.schemas.runs import CostView, RunView
from lehr.specs.gates import GateName
from lehr.specs.rollout import RolloutSpec
from lehr.specs.stages import PlannedStage, left_out, stages
from lehr.store import Store
from lehr.store.tables import GateVerdict, RolloutRow, RolloutRun, RolloutStage, RunRow


class RolloutPresenter:
    """Makes views of rollouts."""

    def __init__(self, store: Store, runs: RunPresenter) -> None:
        self._store = store
        self._runs = runs
        self._costs = Costs(store)

    def views(self, rollouts: Sequence[RolloutRow]) -> list[RolloutView]:
        """Return the views in the same order."""
        return [
            RolloutView(
                **_fields(
                    one, self._store.rollouts.stages(one.id), self._store.rollouts.runs(one.id)
                )
            )
            for one in rollouts
        ]

    def detail(self, rollout: RolloutRow) -> RolloutDetail:
        store = self._store
        rows, links = store.rollouts.stages(rollout.id), store.rollouts.runs(rollout.id)
        verdicts = store.rollouts.verdicts(rollout.id)
        views = {view.id: view for view in self._runs.views([run for _, run in links])}
        spec = RolloutSpec.model_validate(rollout.spec)
        planned = stages(spec)
        costs = self._costs.of_stages(rollout.id, [_use(stage, links, views) for stage in planned])
        made = [
            _stage(
                stage,
                row,
                rollout,
                [
                    (link.role, run, views[run.id])
                    for link, run in links
                    if link.stage == row.number
                ],
                {verdict.gate: verdict for verdict in verdicts if verdict.stage == row.number},
                cost,
            )
            for stage, row, cost in zip(planned, rows, costs, strict=True)
        ]
        return RolloutDetail(
            **_fields(rollout, rows, links),
            spec=rollout.spec,
            stages=made,
            cost=together(costs),
            notes=[
                *(f"Stage {name} is left out: {why}." for name, why in left_out(spec).items()),
                *_not_judged(made),
            ],
        )


def _use(
    stage: PlannedStage, links: Sequence[tuple[RolloutRun, RunRow]], views: Mapping[str, RunView]
) -> StageUse:
    ids = tuple(run.id for link, run in links if link.stage == stage.number)
    device = next((views[one].device for one in ids if views[one].device is not None), None)
    return StageUse(stage, ids, device)


def _not_judged(stages: Sequence[StageView]) -> Iterator[str]:
    """Return one line per gate and reason: on a CPU the same two would appear for every stage."""
    found: dict[tuple[str, str | None], list[str]] = {}
    for stage in stages:
        for gate in stage.gates:
            if gate.state == "not_judged":
                found.setdefault((gate.title, gate.seen), []).append(stage.name)
    for (title, seen), names in found.items():
        yield f"{title[:1].upper()}{title[1:]} was not judged in {', '.join(names)}: {seen}."


def _fields(
    rollout: RolloutRow, rows: Sequence[RolloutStage], links: Sequence[tuple[RolloutRun, RunRow]]
) -> dict[str, Any]:
    states = {row.name: _stage_state(row, rollout) for row in rows}
    ended = [row for row in rows if row.outcome is not None]
    at = next((row for row in rows if row.outcome is None), None)
    if rollout.outcome is not None and ended:
        at = ended[-1]
    last = rows[-1].number if rows else 0
    return {
        **shared_fields(rollout, RolloutView),
        "state": cast("RolloutState", rollout.outcome or "running"),
        "stage": at.name if at is not None else None,
        "progress": states,
        "run_id": next((link.run_id for link, _ in links if link.stage == last), None),
    }


def _stage_state(row: RolloutStage, rollout: RolloutRow) -> StageStatus:
    if row.outcome is not None:
        return cast("StageStatus", row.outcome)
    if rollout.outcome is not None:
        return "skipped"
    return "running" if row.started_at is not None else "waiting"


def _stage(
    stage: PlannedStage,
    row: RolloutStage,
    rollout: RolloutRow,
    runs: Sequence[tuple[str, RunRow, RunView]],
    verdicts: dict[str, GateVerdict],
    cost: CostView,
) -> StageView:
    spec = stage.train
    state = _stage_state(row, rollout)
    return StageView(
        number=row.number,
        name=stage.name,
        title=stage.title,
        state=state,
        reason=row.reason or (_doing(runs) if state == "running" else None),
        gpus=spec.resources.gpus,
        nodes=spec.resources.nodes,
        gpu_type=spec.resources.gpu_type,
        model=model_name(spec.own),
        steps=spec.own.steps,
        tokens_per_step=spec.own.tokens_per_step,
        judged_at_step=stage.judge_after,
        changes=stage.changes,
        gates=[
            _gate(name, stage, verdicts.get(name), over=rollout.outcome is not None)
            for name in stage.gates
        ],
        runs=[StageRunView(role=cast("Any", role), run=view) for role, _, view in runs],
        gpu_seconds=cost.gpu_hours * 3600 if cost.attempts else None,
        cost=cost if cost.attempts else None,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def _gate(
    name: GateName, stage: PlannedStage, verdict: GateVerdict | None, *, over: bool
) -> GateView:
    if verdict is not None:
        return GateView(
            **shared_fields(verdict, GateView),
            name=name,
            title=TITLES[name],
            state=cast("Any", verdict.verdict),
            judged_at=verdict.at,
        )
    expectation: Expected = expected(name, stage)
    state: GateState = "skipped" if over else "waiting"
    return GateView(
        name=name,
        title=TITLES[name],
        state=state if stage.gates[name].enabled else "off",
        expected=expectation.text,
        **{name: value for name, value in vars(expectation).items() if name != "text"},
    )


def _doing(runs: Sequence[tuple[str, RunRow, RunView]]) -> str | None:
    """Describe what the stage's newest run does."""
    if not runs:
        return None
    role, _, view = runs[-1]
    what = {
        "train": "trains",
        "whole": "trains for the resume check",
        "resumed": "resumes from the middle, for the resume check",
    }[role]
    if view.state == "queued":
        return f"{view.name} {view.pending_reason or 'waits'}"
    if view.state == "paused":
        return f"{view.name} is paused"
    return f"{view.name} {what}: {formats.steps(view.step or 0, view.total_steps)}"
