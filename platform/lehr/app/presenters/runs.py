"""Views of runs. Everything is read for many runs at once."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from lehr.analysis.compare import rank
from lehr.analysis.diagnosis import Alert
from lehr.app.presenters.alerts import Alerts
from lehr.app.presenters.cost import Costs, used_view
from lehr.app.presenters.evaluations import evaluations
from lehr.app.presenters.forecasts import live_forecast
from lehr.app.presenters.series import drawn
from lehr.app.presenters.streams import (
    TrainerSummary,
    attempt_view,
    flops_per_token,
    gpu_refs,
    latest_values,
    losses,
    shared_fields,
    train_stages,
)
from lehr.base.lru import Lru
from lehr.control.exits import finished_report
from lehr.control.lifecycle import RunState
from lehr.control.liveness import SILENT_S, Liveness
from lehr.control.queue_entries import resume_warning, separate_folders
from lehr.control.resources import Need, Node, can_ever_place
from lehr.control.retries import has_saved
from lehr.schemas.runs import (
    Latest,
    LatestOfRun,
    RunDetail,
    RunView,
    WandbView,
)
from lehr.schemas.streams import AlertView
from lehr.store import Store
from lehr.store.records.lists import RowPage
from lehr.store.records.run_lists import FACTS
from lehr.store.streams.series import LatestValue
from lehr.store.tables import Attempt, RunRow
from lehr_trainer.configs.stages import span_of

CORE_METRICS = (
    "train/loss",
    "val/loss",
    "task/mean",
    "val/bits_per_byte",
    "train/lr",
    "train/grad_norm",
    "tokens_per_s",
    "mfu",
    "step_time_s",
    "data_wait_s",
    "data/epoch",
    "memory/allocated_bytes",
    "memory/peak_bytes",
    "memory/rss_bytes",
)
"""Metrics that a list of runs shows; ``/metrics`` has all."""
OWN_METRICS = 5
"""How many metrics of its own the page of a program's run shows."""
TREND_POINTS = 24
_SILENT = (
    f"silent: nothing has come from its process for {SILENT_S / 60:.0f} minutes or more. It may "
    "have ended, or the network is away; on its machine, lehr sync sends what is left"
)
_VIEWS_KEPT = 4_000  # Several times what the longest page has. Each takes some 4 kB.
LivenessByRun = Callable[["Collection[Attempt]"], Mapping[str, Liveness]]
"""By run id: the liveness of those of these attempts that live."""
HeartbeatTimes = Callable[[str], float | None]  # By an attempt's id: when its last heartbeat came.
MirrorViews = Callable[[str], WandbView | None]
"""By a run's id; None for a run without a mirror."""


@dataclass(eq=False, repr=False)
class RunPresenter:
    """Makes views of runs."""

    store: Store
    liveness: LivenessByRun
    mirror_view: MirrorViews
    heartbeat_at: HeartbeatTimes
    nodes: Callable[[], Sequence[Node]]

    def __post_init__(self) -> None:
        self._kept: Lru[str, tuple[tuple[Any, ...], bytes]] = Lru(_VIEWS_KEPT)
        """By run id: what its view follows from, and the view as JSON."""
        self._alerts = Alerts(self.store)
        self._costs = Costs(self.store)

    def views(self, runs: Sequence[RunRow]) -> list[RunView]:
        """Return the views in the same order."""
        return [RunView(**fields) for fields in self._fields(runs)]

    def page(self, page: RowPage[Any]) -> bytes:
        """Return a page of runs of which the ``FACTS`` were read as JSON: with their views.

        The view of a run that does not report is made again only if its facts, its indexed events
        or its alerts have changed: it follows from them.
        """
        indexed = self.store.series.indexed([facts.id for facts in page.items])
        keys, views = {}, {}
        for facts in page.items:
            alerts = self._alerts.of_run(facts, None, read_curves=False)
            keys[facts.id] = key = (*facts, indexed.get(facts.id), *alerts)
            kept = self._kept.get(facts.id)
            if kept is not None and kept[0] == key:
                views[facts.id] = kept[1]
        changed = keys.keys() - views.keys()
        runs = self.store.runs.by_ids(changed) if changed else []
        for run, view in zip(runs, self.views(runs) if runs else [], strict=True):
            views[run.id] = view.model_dump_json().encode()
            # The row was read after its facts: it may have changed, and may change back.
            facts = zip(FACTS.selected_columns.keys(), keys[run.id], strict=False)
            same = all(getattr(run, name, value) == value for name, value in facts)
            grows = view.used is not None and view.used.until is not None
            if same and not grows and not RunState(run.state).reports:
                self._kept.put(run.id, (keys[run.id], views[run.id]))
        items = [orjson.Fragment(views[run_id]) for run_id in keys]
        return orjson.dumps({"items": items, "next_cursor": page.next_cursor, "total": page.total})

    def detail(self, run: RunRow) -> RunDetail:
        [fields] = self._fields([run], read_curves=True)
        fields["latest"] |= self._own_latest(run)
        attempts = self.store.attempts.of_run(run.id)
        streams = {
            attempt.number: self.store.streams.of_attempt(attempt.id) for attempt in attempts
        }
        sizes = {
            number: {stream.name: stream.size for stream in of_attempt}
            for number, of_attempt in streams.items()
        }
        evaluated, failing = evaluations(self.store, run)
        return RunDetail(
            **fields,
            evaluations=evaluated,
            stages=train_stages(run.stored.spans),
            spec=run.spec,
            logged_config=self.store.events.configs([run.id])[run.id],
            held_out=self._load_summary(run).held_out if run.attempt else None,
            provenance=self.store.runs.provenance(run),
            attempts=[
                attempt_view(attempt, sizes[attempt.number], self.heartbeat_at(attempt.id))
                for attempt in attempts
            ],
            wandb=self.mirror_view(run.id),
            diagnosis=_explained(self.alerts(run)),
            forecast=live_forecast(self.store, run),
            cost=self._costs.of_runs(
                run.id, [run.id], device=fields["device"], gpu_type=run.stored.gpu_type
            ),
            warnings=[
                *failing,
                *([] if RunState(run.state).ended else self._start_warnings(run)),
                *(
                    sentence
                    for attempt in attempts
                    for sentence in losses(
                        attempt.number,
                        self.store.streams.gaps(attempt.id),
                        streams[attempt.number],
                    )
                ),
            ],
        )

    def _start_warnings(self, run: RunRow) -> list[str]:
        fork = self.store.runs.provenance(run).get("fork") or {}
        return [
            *([fork["warning"]] if "warning" in fork else []),
            *self.node_warnings(run.spec, run.pending_reason),
        ]

    def node_warnings(self, spec: Mapping[str, Any], reason: str | None = None) -> list[str]:
        """Return what the nodes lack for runs of this spec: such GPUs, a shared folder of runs.

        Without what ``reason`` says already, for which a run waits.
        """
        need, nodes = Need(**spec["resources"]), self.nodes()
        warnings = []
        if nodes and can_ever_place(need, nodes) not in (None, reason):
            warnings.append(f"{need.unmet[0].upper()}{need.unmet[1:]}. Until then it waits.")
        uploads = bool(spec.get("checkpoints", {}).get("upload"))
        names = [] if uploads else separate_folders(need, nodes)
        return [*warnings, resume_warning(names)] if names else warnings

    def diagnose(self, run: RunRow) -> bool:
        """Diagnose a run, for all later views. Return whether there was anything new."""
        [before] = self._fields([run])
        [after] = self._fields([run], read_curves=True)
        return bool(before["alerts"] != after["alerts"])

    def alerts(self, run: RunRow) -> tuple[Alert, ...]:
        """Return its alerts, each with the step at which it began."""
        attempt = self.store.attempts.newest([run.id]).get(run.id)
        latest = self.store.series.latest([run.id], CORE_METRICS).get(run.id, {})
        return self._alerts.of_run(run, _step(attempt, latest), read_curves=True)

    def known_alerts(self, runs: Sequence[RunRow]) -> dict[str, list[AlertView]]:
        """Return the explained alerts of runs by their ids, as lists show them: without reading
        the curves of ended runs.
        """
        return {
            run.id: _explained(self._alerts.of_run(run, None, read_curves=False)) for run in runs
        }

    def latest(self, run_ids: Iterable[str]) -> dict[str, dict[str, Latest]]:
        values = self.store.series.latest(list(run_ids), CORE_METRICS)
        return {run_id: latest_values(latest) for run_id, latest in values.items()}

    def _own_latest(self, run: RunRow) -> dict[str, Latest]:
        """Return the first ``OWN_METRICS`` that a program logs under names of its own."""
        if run.spec["trainer"] is None:
            return {}
        logged = self.store.series.latest([run.id])[run.id]
        names = sorted(logged.keys() - set(CORE_METRICS), key=rank)[:OWN_METRICS]
        return latest_values({name: logged[name] for name in names})

    def newest(self, run_ids: Sequence[str]) -> list[LatestOfRun]:
        """Return what listeners get when the metrics of these runs grow."""
        recorded_at = self.store.series.recorded_at(run_ids)
        return [
            LatestOfRun(run_id=run_id, latest=latest, recorded_at=recorded_at.get(run_id))
            for run_id, latest in self.latest(run_ids).items()
        ]

    def _fields(self, runs: Sequence[RunRow], *, read_curves: bool = False) -> list[dict[str, Any]]:
        store = self.store
        tried = [run.id for run in runs if run.attempt]
        live = [run.id for run in runs if RunState(run.state).reports]
        attempts = store.attempts.newest(tried)
        latest = store.series.latest(tried, CORE_METRICS)
        recorded_at = store.series.recorded_at(tried)
        trends = store.series.trend(tried, "train/loss", TREND_POINTS)
        newest = [attempts[run_id] for run_id in live if run_id in attempts]
        liveness = self.liveness(newest) if newest else {}
        step_times = store.series.trend(live, "step_time_s", TREND_POINTS)
        trials = store.sweeps.trials_of_runs([run.id for run in runs if run.sweep_id is not None])
        rollouts = store.rollouts.of_runs([run.id for run in runs if run.sweep_id is None])
        used = store.attempts.use_by_run(tried) if tried else {}
        summary = {run.id: self._load_summary(run) for run in runs if run.attempt}
        return [
            {
                **_run_fields(
                    run,
                    attempts.get(run.id),
                    latest.get(run.id, {}),
                    finite_median(step_times.get(run.id, [])),
                    summary.get(run.id, TrainerSummary()),
                    liveness.get(run.id, Liveness.OK),
                ),
                "recorded_at": recorded_at.get(run.id),
                "trend": drawn(trends.get(run.id, [])),
                "parameters_varied": trials[run.id].parameters if run.id in trials else {},
                "rollout_id": rollouts.get(run.id),
                "used": used_view(used.get(run.id)),
                "alerts": [
                    *self._diagnosed(
                        run, attempts.get(run.id), latest.get(run.id, {}), read_curves=read_curves
                    ),
                    *(summary[run.id].warnings if run.id in summary else ()),
                ],
            }
            for run in runs
        ]

    def _diagnosed(
        self,
        run: RunRow,
        attempt: Attempt | None,
        latest: dict[str, LatestValue],
        *,
        read_curves: bool,
    ) -> list[str]:
        step = _step(attempt, latest) if latest else None
        read_curves = read_curves or RunState(run.state).reports
        messages = [
            alert.message for alert in self._alerts.of_run(run, step, read_curves=read_curves)
        ]
        loss = latest.get("val/loss")
        if loss is not None and not math.isfinite(loss.value):
            messages.append(f"val/loss is {loss.value} at step {loss.step:,}")
        return messages

    def parameters(self, runs: Iterable[RunRow]) -> dict[str, int | None]:
        """Return the number of parameters of each run, by id."""
        return {run.id: self._load_summary(run).parameters for run in runs}

    def _load_summary(self, run: RunRow) -> TrainerSummary:
        kinds = {"started", "warning", "notice"}
        newest = self.store.events.newest(run.id, kinds, attempt=run.attempt)
        return TrainerSummary.of([stored.record for stored in newest.records])


def _run_fields(
    run: RunRow,
    attempt: Attempt | None,
    latest: dict[str, LatestValue],
    step_time_s: float | None,
    summary: TrainerSummary,
    liveness: Liveness,
) -> dict[str, Any]:
    state = RunState(run.state)
    train, resources = run.spec.get("train"), run.stored.resources
    total = run.stored.total_steps
    step = _step(attempt, latest)
    left = None if total is None else max(0, total - (step or 0))
    moving = (
        state in {RunState.RUNNING, RunState.EXTERNAL}
        and liveness is Liveness.OK
        and step_time_s is not None
        and step is not None
    )
    before_first_step = state.active and (attempt is None or attempt.last_step is None)
    silent = state is RunState.EXTERNAL and liveness is Liveness.UNREACHABLE
    reason = _SILENT if silent else run.reason
    return {
        **shared_fields(run, RunView),
        "reason": reason or (summary.notice if before_first_step else None),
        "gpus": resources["gpus"],
        "nodes": resources["nodes"],
        "gpu_type": resources["gpu_type"],
        "device": _device(summary.device, resources["gpus"]),
        # A run that waits has none: its last attempt no longer holds those.
        "placement": gpu_refs(attempt) if attempt and (state.active or state.ended) else [],
        "step": step,
        "total_steps": total or 0,
        "tokens_per_step": run.stored.tokens_per_step,
        "tokens": None if step is None else run.stored.tokens_at(step),
        "total_tokens": run.stored.tokens_at(total) if total else 0,
        "stage": span_of(run.stored.spans, (step or 0) + 1).name or None,
        "parameters": summary.parameters,
        "flops_per_token": flops_per_token(train) if train else None,
        "latest": latest_values(latest),
        "eta_s": left * (step_time_s or 0.0) if moving and left is not None else None,
        "liveness": (liveness if state.reports else Liveness.OK).value,
        "training_over": _training_over(run, attempt) if state.active else None,
    }


def _training_over(run: RunRow, attempt: Attempt | None) -> str | None:
    if attempt is None or not attempt.finished or attempt.exited_at is not None:
        return None
    ended = finished_report(attempt.finished, program=bool(run.stored.program))
    ends = {"completed": "has completed", "stopped": "has stopped"}
    how = ends.get(attempt.finished["outcome"], "has failed") + " and saved" * has_saved(ended)
    step = f"{attempt.finished['step']:,}"
    return f"its training {how} at step {step}; its node has not reported its end yet"


def _device(summary: str | None, gpus: int) -> str | None:
    """Return the device. A rank on a CPU holds a logical GPU, unless its run requests none."""
    return "cpu (logical GPU)" if summary == "cpu" and gpus else summary


def _step(attempt: Attempt | None, latest: dict[str, LatestValue]) -> int | None:
    """Return the newest attempt's step; before its first, the last step of the run."""
    if attempt is not None and attempt.last_step is not None:
        return attempt.last_step
    return max((value.step for value in latest.values()), default=None)


def _explained(alerts: Iterable[Alert]) -> list[AlertView]:
    return [AlertView.model_validate(alert, from_attributes=True) for alert in alerts]


def finite_median(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return statistics.median(finite) if finite else None
