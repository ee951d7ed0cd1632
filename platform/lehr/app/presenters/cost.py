"""Cost of runs, sweeps and rollouts, beside what a plan expects."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lehr.analysis.plan import plan_run
from lehr.base.lru import Lru
from lehr.errors import LehrError
from lehr.schemas.runs import CostView, UsedView
from lehr.specs.run import RunSpec
from lehr.specs.stages import PlannedStage
from lehr.store import Store
from lehr.store.records.attempts import GpuUse
from lehr.store.tables import RunRow
from lehr_trainer.contract import layout
from lehr_trainer.planning.hardware import GpuType, find_gpu, gpu_of_kind, usual_mfu

_PLANNED = 64
"""Trials of a sweep that are planned one by one; a larger sweep is planned by that many of them."""


class Costs:
    """Computes costs. Keeps planned GPU-hours, which do not change."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._planned: Lru[tuple[str, str, int, str], float] = Lru(2_000)

    def of_runs(
        self, key: str, run_ids: Sequence[str], *, device: str | None, gpu_type: str | None
    ) -> CostView | None:
        """Return what these runs used together; None before the first attempt.

        The planned hours are kept under ``key``. ``device`` is the GPU that a trainer of theirs
        saw, ``gpu_type`` the kind that their spec requests.
        """
        used = self._store.attempts.use(run_ids)
        if not used.attempts:
            return None
        gpu = priced_gpu(device, gpu_type)
        planned: float | None = None
        if gpu is not None:
            plan = partial(self._plan, run_ids, gpu.kind)
            planned = self._kept(("runs", key, len(run_ids), gpu.kind), plan)
        return _view(used, gpu, planned)

    def of_stages(self, key: str, stages: Sequence[StageUse]) -> list[CostView]:
        """Return what all stages of a rollout used, beside the plan of all their runs.

        A stage that has not begun is planned on the kind of GPU that it requests, else on the one
        that another stage used. A stage without GPUs costs nothing. Plans are kept under ``key``.
        """
        seen = next((use.device for use in stages if use.gpus and use.device is not None), None)
        found = []
        for use in stages:
            gpu = priced_gpu(use.device or (None if use.gpu_type else seen), use.gpu_type)
            planned: float | None = None
            if not use.gpus:
                gpu, planned = None, 0.0
            elif gpu is not None:
                plan = partial(stage_hours, use.stage, gpu.kind)
                planned = self._kept(("stage", key, use.stage.number, gpu.kind), plan)
            found.append(_view(self._store.attempts.use(use.run_ids), gpu, planned))
        return found

    def _kept(
        self, key: tuple[str, str, int, str], plan: Callable[[], float | None]
    ) -> float | None:
        hours = self._planned.get(key)
        if hours is None and (hours := plan()) is not None:
            self._planned.put(key, hours)
        return hours

    def _plan(self, run_ids: Sequence[str], kind: str) -> float | None:
        """Return the GPU-hours that a plan expects of them on that kind of GPU."""
        every = max(1, len(run_ids) // _PLANNED)
        rows = self._store.runs.by_ids(list(itertools.islice(run_ids, 0, None, every)))
        total = _sum([self._planned_hours(row, kind) for row in rows])
        return None if total is None or not rows else total * len(run_ids) / len(rows)

    def _planned_hours(self, run: RunRow, kind: str) -> float | None:
        try:
            spec = RunSpec.model_validate(run.spec)
        except (ValueError, LehrError):
            return None  # A spec of an earlier version.
        return hours_on(spec, kind, forked_at(self._store, run))


@dataclass(frozen=True)
class StageUse:
    """A stage of a rollout, and what ran of it."""

    stage: PlannedStage
    run_ids: tuple[str, ...]
    device: str | None  # That one of its trainers saw.

    @property
    def gpus(self) -> int:
        return self.stage.train.resources.gpus

    @property
    def gpu_type(self) -> str | None:
        return self.stage.train.resources.gpu_type


def stage_hours(stage: PlannedStage, kind: str) -> float | None:
    """Return the GPU-hours that a plan expects of all runs of a stage; None if it is unknown."""
    total = 0.0
    for role in stage.roles:
        spec = stage.runs.get(role, stage.runs[stage.whole])
        hours = hours_on(spec, kind)
        if hours is None:
            return None
        steps = spec.own.steps
        total += hours * ((steps - stage.middle) / steps if role == "resumed" else 1.0)
    return total


def together(views: Sequence[CostView]) -> CostView | None:
    """Add up the costs of stages; None before the first attempt."""
    if not any(view.attempts for view in views):
        return None
    kinds = {view.gpu for view in views if view.gpu_hours or view.planned_gpu_hours}
    one = next((view for view in views if view.gpu is not None and kinds == {view.gpu}), None)
    return CostView(
        gpu_hours=sum(view.gpu_hours for view in views),
        until=max((view.until for view in views if view.until is not None), default=None),
        attempts=sum(view.attempts for view in views),
        gpu=one.gpu if one is not None else None,
        dollars_per_gpu_hour=one.dollars_per_gpu_hour if one is not None else None,
        dollars=_sum([0.0 if not view.gpu_hours else view.dollars for view in views]),
        planned_gpu_hours=_sum([view.planned_gpu_hours for view in views]),
        planned_dollars=_sum(
            [0.0 if view.planned_gpu_hours == 0 else view.planned_dollars for view in views]
        ),
        planned_basis="; ".join(dict.fromkeys(v.planned_basis for v in views if v.planned_basis))
        or None,
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def used_view(used: GpuUse | None) -> UsedView | None:
    """Return what runs have used; None before the first attempt."""
    if used is None or not used.attempts:
        return None
    # To 36 microseconds: a list of many runs is sent often.
    return UsedView(gpu_hours=round(used.hours, 8), until=used.until)


def _view(used: GpuUse, gpu: GpuType | None, planned: float | None) -> CostView:
    price = gpu.dollars_per_hour if gpu is not None else None
    basis = None
    if gpu is not None and planned:
        usual = usual_mfu(gpu.kind)
        basis = f"at {100 * usual.share:.0f} % MFU ({usual.source})"
    return CostView(
        gpu_hours=used.hours,
        until=used.until,
        attempts=used.attempts,
        gpu=gpu.kind if gpu is not None else None,
        dollars_per_gpu_hour=price,
        dollars=None if price is None else used.hours * price,
        planned_gpu_hours=planned,
        planned_dollars=None if price is None or planned is None else planned * price,
        planned_basis=basis,
    )


def forked_at(store: Store, run: RunRow) -> int:
    """Return the step of the checkpoint that a fork starts from; 0 for another run."""
    if run.forked_from is None:
        return 0
    if point := layout.checkpoint_at("/".join(Path(run.resume_from or "").parts[-3:])):
        return point[1]
    # A trial that waits for its trunk starts from the last one.
    return store.runs.get(run.forked_from).stored.total_steps or 0


def hours_on(spec: RunSpec, kind: str, step: int = 0) -> float | None:
    """Return the GPU-hours that a plan expects of a run on this kind of GPU; None: unknown.

    ``step``: of the checkpoint that it starts from.
    """
    if spec.resources.gpus == 0:
        return 0.0
    if spec.train is None:
        return None
    resources = spec.resources.model_copy(update={"gpu_type": kind})
    hours = plan_run(spec.model_copy(update={"resources": resources})).gpu_hours
    if hours is None or not step:
        return hours
    return hours * (1.0 - spec.own.tokens_at(step) / spec.own.total_tokens)


def priced_gpu(device: str | None, gpu_type: str | None) -> GpuType | None:
    """Return the GPU whose price counts: the one that a trainer saw, else the requested one.

    None if it is not in the table of GPUs. A trainer on a CPU costs nothing that is known here.
    """
    if device is not None:
        return find_gpu(device)
    return None if gpu_type is None else gpu_of_kind(gpu_type)
