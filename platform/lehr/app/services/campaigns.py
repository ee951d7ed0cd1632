"""Campaigns: what they begin with, what they know now, and the rollout that they end with."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import yaml

from lehr.analysis.laws.question import CampaignAnswer
from lehr.app.presenters import campaign_course as shown
from lehr.app.services.budget import planned_hours
from lehr.app.services.context import Context
from lehr.base.formats import dollars, gpu_hours
from lehr.cluster.group_loader import campaign_trials
from lehr.control import campaign_record as record
from lehr.control.campaign_record import TrialState
from lehr.control.lifecycle import RunState
from lehr.control.sweeps import decide
from lehr.errors import NotFound, SpecError, SpecProblem
from lehr.schemas.campaigns import BudgetUse, CampaignView
from lehr.specs import RunSpec, SweepSpec
from lehr.specs.overrides import with_changes
from lehr.specs.sweep_expand import TrialSpec, trials_at
from lehr.store.tables import SweepRow
from lehr_trainer.planning.counts import predicted_first_loss

_MORE = {"with what is left": 0.0, "a tenth more": 0.1, "half more": 0.5}  # Of the budget.


def first_trial(context: Context, spec: SweepSpec) -> list[TrialSpec]:
    """Return the first trial of a campaign, unless its budget holds none that says enough."""
    runs = trials_at(spec, spec.rung_points())
    record.refuse(spec, [planned_hours(context, run) or None for _, run in runs])
    first = decide(spec, (), stopped=False)
    if first.stop is not None:
        raise SpecError([SpecProblem("budget", f"no trial can be started: {first.stop}")])
    return trials_at(spec, first.points, **first.changes)


def campaign_view(context: Context, sweep: SweepRow, steps: int = 0) -> CampaignView:
    """Return what a campaign was asked, has tried and believes, from its record.

    ``steps``: at how many trials to tell what was believed then, each a fit.
    """
    spec = SweepSpec.model_validate(sweep.spec)
    campaign, metric = spec.campaign, spec.metric.name
    if campaign is None:
        raise NotFound(f"{sweep.name} ({sweep.id}) is a {spec.method} sweep, not a campaign.")
    trials = campaign_trials(context.store, spec, sweep.id)
    notes = {run.id: run.note for run in context.store.runs.by_ids([t.run_id for t in trials])}
    use, now = record.ledger(campaign, trials), record.next_trial(spec, trials)
    answer = now.answer and shown.answer_view(spec, now.answer)
    ladder = campaign.model_copy(update={"rungs": [*campaign.rungs, campaign.target]})
    hours, views = record.costs(ladder, trials), shown.trial_views(spec, trials, notes)
    course = shown.course(spec, trials, views, steps)
    rollout = now.answer and rollout_yaml(context, spec, now.answer, trials)
    view = CampaignView(
        sweep_id=sweep.id, name=sweep.name, metric=metric, target=campaign.target,
        decide=campaign.decide, enough=campaign.answer, published=campaign.published,
        rungs=campaign.rungs, hours=hours and hours[:-1], trials=views,
        rung_table=shown.rung_table(spec, views), course=course,
        figures=shown.drawn_course(metric, course, views),
        budget=BudgetUse(**use._asdict(), left=use.left, dollars_per_gpu_hour=campaign.price),
        answer=answer, why=now.why, stopped=sweep.stopped, rollout=rollout,
        cost=hours and _cost(hours[-1], campaign.price),
        rollout_spec=rollout and yaml.safe_load(rollout),
    )  # fmt: skip
    stopped = sweep.stopped is not None
    more = _more(spec, trials, hours[:-1], stopped=stopped) if hours else []
    return view.model_copy(update={"facts": [*_facts(view), *more]})


def _cost(hours: float, price: float | None) -> str:
    return gpu_hours(hours) + (f", {dollars(hours * price)}" if price else "")


def _facts(view: CampaignView) -> list[tuple[str, str]]:
    """Return a campaign in words."""
    use, answer = view.budget, "too little is known yet"
    if view.answer is not None:
        answer = view.answer.text
        answer += f"; estimated for the run itself: {view.cost}" if view.cost else ""
        answer += f". {view.answer.outside or ''}"
    left = f"{use.reserved:.2f} reserved for trials, {use.left:.2f} left"
    spent = _cost(use.spent, use.dollars_per_gpu_hour)
    facts = [("answer", answer), ("spent", f"{spent} of {gpu_hours(use.total)}; {left}")]
    return [*facts, ("stopped" if view.stopped else "next", view.stopped or view.why)]


def _more(
    spec: SweepSpec, trials: Sequence[TrialState], hours: Sequence[float], *, stopped: bool
) -> list[tuple[str, str]]:
    """Return what more GPU-hours are expected to do to the intervals, in words."""
    from lehr.control.campaign_choice import prospects

    use = record.ledger(record.campaign_of(spec), trials)
    more = {name: share * use.total for name, share in _MORE.items() if share or not stopped}
    question, told, _ = record.asked(spec, hours, trials)
    hours_left = tuple(max(use.left, 0.0) + own for own in more.values())
    found = prospects(question, tuple(told), hours_left)
    names, parts = [*(f.path.rpartition(".")[2] for f in question.fields), "loss"], []
    for (name, own), (used, left) in zip(more.items(), found, strict=False):
        falls = ", ".join(f"{of} by {1 - kept:.0%}" for of, kept in zip(names, left, strict=True))
        text = falls if used else "no trial would be worth it"
        parts.append(f"{name} ({gpu_hours(own or use.left)}): {text}")
    text = f"{'; '.join(parts)}. On average, by the law's losses of possible trials."
    return [("expected to narrow", text)] if parts else []


def rollout_yaml(
    context: Context, spec: SweepSpec, answer: CampaignAnswer, trials: Sequence[TrialState]
) -> str:
    """Return the target with the recommended values as a rollout, with criteria that stop it."""
    train = spec.run.own
    unit = (train.batch.micro_batch or 1) * spec.run.resources.ranks
    values = record.rounded(spec, answer.values, unit)
    run = with_changes(spec.run.model_dump(mode="json", exclude_unset=True), values)
    alerts = run.setdefault("alerts", {})
    alerts["actions"] = {"nan": "stop", "diverging": "stop", **alerts.get("actions", {})}
    lines = [f"What campaign {spec.name} recommends: lehr rollout FILE", ""]
    for path, own in shown.answer_view(spec, answer).best.items():
        lines.append(f"{path}: {values[path]:g}, {_span(own.likely)} with 68 %.")
    ends = f"{_span(answer.likely)} with 68 %, {_span(answer.sure)} with 95 %"
    lines += [f"{spec.metric.name} at the end: {answer.loss:.3f}, {ends}.", answer.outside or ""]
    name = f"{spec.name[:93]}-target"
    data: dict[str, Any] = {"kind": "rollout", "name": name, "project": spec.project}
    left_out = {"name", "project", "kind"}
    aim = RunSpec.model_validate(run).model_dump(mode="json", exclude_none=True, exclude=left_out)
    if train.has_budget:
        del aim["train"]["steps"]  # They follow from it.
    data["run"] = aim
    excess, first = _excess(context, trials), predicted_first_loss(train.model)
    if excess is not None and 0.0 < (limit := answer.sure[1] + excess) < first:
        gates = {"falling_loss": {"by": float(f"{1.0 - limit / first:.3f}")}}
        data["stages"] = {"all": {"judge_after": max(train.steps // 4, 1), "gates": gates}}
        text = f"above {limit:.2f} after a quarter of its steps: the upper end of 95 %, and"
        lines.append(f"It stops if the loss is {text} {excess:.2f} more, as in the longest trial.")
    parts = [part for line in lines for part in textwrap.wrap(line, 96) or [""]]
    head = "".join(f"# {part}".rstrip() + "\n" for part in parts)
    return head + yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def _span(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]:.4g} to {bounds[1]:.4g}"


def _excess(context: Context, trials: Sequence[TrialState]) -> float | None:
    """Return how far the loss of the longest trial was above its end after a quarter of it."""
    whole = (RunState.COMPLETED, True)
    done = [one for one in trials if one.reports and (one.state, bool(one.total_steps)) == whole]
    if not done:
        return None
    longest = max(done, key=lambda trial: trial.hours)
    try:
        curve = context.store.series.read(longest.run_id, "train/loss", points=40)
    except NotFound:  # It was deleted.
        return None
    quarter = (longest.total_steps or 0) / 4
    early = [y for x, y in zip(curve.step, curve.y, strict=True) if x <= quarter]
    return max(early[-1] - curve.y[-1], 0.0) if early else None
