"""The law of the final loss of runs in the record, and what it predicts of a larger training."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from lehr.analysis.batches import is_measured
from lehr.analysis.forecast import planned
from lehr.analysis.laws import Observation, fit_law, model
from lehr.analysis.laws.law import quantiles
from lehr.analysis.laws.question import Field
from lehr.analysis.lr_rules import DEFAULT, RULES, Setting, setting_of
from lehr.app.services.transfer import SAME, at
from lehr.base.formats import amount, counted, listed, parameter, scientific
from lehr.cluster.group_loader import reports_of
from lehr.control.campaign_record import TrialState, ending
from lehr.control.lifecycle import RunState
from lehr.errors import NotFound, UserError
from lehr.schemas.laws import Believed, LawRunView, LawView, PredictionView
from lehr.specs import RunSpec, SweepSpec, load_spec

if TYPE_CHECKING:
    from lehr.analysis.laws import Law, Observation
    from lehr.analysis.laws.model import Array
    from lehr.app.services.context import Context
    from lehr.store.tables import RunRow
    from lehr_trainer.configs.train import TrainConfig

    Told = list[tuple[RunRow, TrainConfig, Observation]]

_RATE = "train.optimizer.lr"
_RUNS, _SIZES = 4, 2  # With a finite loss, without which there is no law.
_BY_SIZE = attrgetter("non_embedding", "tokens")
_MOST = 300  # A fit of so many takes 20 s.
_RANGE = 8.0  # How far beyond the rates tried, carried to the target, its best one may lie.


def law_of(
    context: Context,
    refs: Sequence[str],
    *,
    spec: dict[str, Any] | None = None,
    parameters: float | None = None,
    tokens: float | None = None,
    published: bool = True,
) -> LawView:
    """Fit the law of sweeps and runs, and predict a target by it. Nothing is recorded.

    The target is ``spec``, a run or a rollout, or has the shape of the largest run, with other
    ``parameters`` (without embeddings) or ``tokens``; of a campaign alone by default its own.

    Raises:
        UserError: the runs have no common law, or too few have ended.
    """
    from lehr.analysis.laws.figure import between, drawn_law

    metric, runs, sweep = _named(context, refs)
    told, notes = _told(context, runs, metric)
    observations = tuple(end for _, _, end in told)
    measured = sorted((o.setting for o in observations if math.isfinite(o.loss)), key=_BY_SIZE)
    sizes = len(set(map(_BY_SIZE, measured)))
    least = (_RUNS, _SIZES) if sweep is None else (_RUNS - 1, 1)  # The prior knows its ladder.
    if len(measured) < least[0] or sizes < least[1]:
        few = f"there are {len(measured)} of {counted(sizes, 'size')}. {' '.join(notes)}"
        raise UserError(
            f"a law needs at least {least[0]} finished runs with a finite {metric}, of at least "
            f"{counted(least[1], 'size')} (parameters or tokens); {few}",
            hint="Name more sweeps or runs, or train smaller and shorter ones.",
        )
    if len(told) > _MOST:
        raise UserError(f"{len(told)} runs are too many for a law; name at most {_MOST}.")
    largest, trains = measured[-1], [train for _, train, _ in told]
    goal, name = _scaled(largest, parameters, tokens), "the target"
    aim = load_spec(spec) if spec is not None else sweep and sweep.run
    if isinstance(aim, SweepSpec) or (spec is not None and (parameters or tokens)):
        raise UserError("give the spec of a run or a rollout, or parameters and tokens.")
    if aim is not None and not (parameters or tokens):
        trains.append(aim.own if isinstance(aim, RunSpec) else aim.run.own)
        goal, name = setting_of(trains[-1]), aim.name if spec else name
    kinds = {f"{one.optimizer.lr_family} ({one.model.parametrization})" for one in trains}
    if len(kinds) > 1:
        raise UserError(f"learning rates do not compare: {' and '.join(sorted(kinds))}.")
    if others := [p for p in SAME if any(at(one, p) != at(trains[0], p) for one in trains)]:
        notes.append(f"The law does not know what else differs: {', '.join(others)}.")
    # Where the target's best rate may lie, by what was tried.
    rates = [RULES[DEFAULT].rate(one.values[0], one.setting, goal) for one in observations]
    low, high = min(rates) / _RANGE, max(rates) * _RANGE
    if sweep is not None and sweep.campaign is not None:
        published = published and sweep.campaign.published
        if aim is sweep.run and (decided := sweep.campaign.decide.get(_RATE)):
            low, high = decided.min, decided.max
    fields = (Field(_RATE, "rate", low, high, log=True),)
    beyond = _scaled(largest, 2 * largest.non_embedding, 2 * largest.tokens)
    path = between(measured[0], max(goal, largest, key=_BY_SIZE))
    law = fit_law(observations, fields, goal, published=published, others=(*path, beyond))
    if law is None:
        raise UserError(f"no law explains {metric} of these runs; name fewer of them.")
    target = _prediction(law, name if goal != largest else "the largest run", goal)
    views = []
    for (run, _, end), off in zip(told, law.residuals, strict=True):
        known = f", {off:+.1f} standard deviations off the law" if math.isfinite(off) else ""
        size, length, rate = end.setting.non_embedding, end.setting.tokens, end.values[0]
        known = (f" ± {end.doubt:.2g} by its forecast" if end.doubt else "") + known
        text = f"{_size(size, length)}, rate {scientific(rate, 3)}: {metric} {end.loss:.4g}{known}"
        views.append(LawRunView(
            run_id=run.id, name=run.name, parameters=size, tokens=length, values={_RATE: rate},
            loss=end.loss, off=off if math.isfinite(off) else None, text=text,
        ))  # fmt: skip
    view = LawView(
        metric=metric, published=published, numbers=_numbers(law), domain=law.domain, runs=views,
        target=target, beyond=_prediction(law, "twice the largest run's size and tokens", beyond),
        facts=[], figures=drawn_law(law, path, target, metric, views),
    )  # fmt: skip
    return view.model_copy(update={"facts": [*_facts(view), *(("note", one) for one in notes)]})


def _named(context: Context, refs: Sequence[str]) -> tuple[str, list[RunRow], SweepSpec | None]:
    """Return the loss, each run once as they ended, and the spec of a campaign alone."""
    campaign = None
    metrics: dict[str, str] = {}
    runs: dict[str, RunRow] = {}
    for ref in refs:
        try:
            sweep = context.store.sweeps.find(ref)
        except NotFound:
            some = [context.store.runs.find(ref)]
        else:
            metrics[sweep.stored.metric] = sweep.stored.goal
            if sweep.stored.method == "campaign" and len(refs) == 1:
                campaign = SweepSpec.model_validate(sweep.spec)
            some = context.store.sweeps.runs(sweep.id)
        runs |= {run.id: run for run in some}
    goals = ", ".join(f"{metric} ({goal})" for metric, goal in metrics.items())
    if len(metrics) > 1 or "maximize" in metrics.values():
        raise UserError(f"a law is one of one loss; the sweeps have {goals}; name their runs.")
    return (
        next(iter(metrics), "val/loss"),
        sorted(runs.values(), key=lambda run: run.ended_at or math.inf),
        campaign,
    )


def _told(context: Context, runs: Sequence[RunRow], metric: str) -> tuple[Told, list[str]]:
    """Return the runs that a law can use, and notes on others."""
    told, left_out = [], Counter[str]()
    for run in runs:
        done = run.state == RunState.COMPLETED
        if run.stored.program:
            left_out["train with a program of their own, whose size is not known"] += 1
        elif (end := _ending(context, run, metric)) is None:
            left_out[f"have no {metric}" if done else "have not completed"] += 1
        else:
            train = RunSpec.model_validate(run.spec).own
            told.append((run, train, Observation(setting_of(train), (train.optimizer.lr,), *end)))
    notes = [f"{n} of {counted(len(runs), 'run')} {why}." for why, n in left_out.items()]
    if is_measured(metric):
        held_out = context.store.events.held_out([run.id for run, _, _ in told], metric)
        sets = {held_out[run.id]: run.name for run, _, _ in told[::-1]}
        known = [f"{digest[:8]} ({name})" for digest, name in sets.items() if digest]
        if len(known) > 1:
            raise UserError(f"{metric} is of held-out sets that do not compare: {listed(known)}.")
        if None in sets:
            notes.append(f"Some, such as {sets[None]}, have no digest of their held-out set.")
    return told, notes


def _ending(context: Context, run: RunRow, metric: str) -> tuple[float, float] | None:
    """Return the loss at a run's end, and its doubt, as of a trial."""
    state, steps = RunState(run.state), run.stored.total_steps
    reports, plan = reports_of(context.store, run.id, metric), planned(run.stored)
    trial = TrialState(0, {}, run.id, state, cause=run.cause, total_steps=steps, reports=reports)
    return ending(replace(trial, planned=plan))


def _size(parameters: float, tokens: float) -> str:
    return f"{amount(parameters)} parameters without embeddings, {amount(tokens)} tokens"


def _scaled(setting: Setting, size: float | None, tokens: float | None) -> Setting:
    """Return a setting with other parameters, at the same shape, or other tokens."""
    size, length = size or setting.non_embedding, tokens or setting.tokens
    by = (size / setting.non_embedding) ** (1 / 3)
    width, depth = setting.width * by, setting.depth * by
    return replace(setting, width=width, depth=depth, non_embedding=size, tokens=length)


def _believed(draws: Array) -> Believed:
    low, lower, value, higher, high = quantiles(draws)
    return Believed(value=value, likely=(lower, higher), sure=(low, high))


def _prediction(law: Law, name: str, setting: Setting) -> PredictionView:
    best = {f.path: _believed(b) for f, b in zip(law.fields, law.best_at(setting).T, strict=True)}
    values = [one.value for one in best.values()]
    loss, likely, sure = law.predict(setting, values)
    return PredictionView(
        name=name, parameters=setting.non_embedding, tokens=setting.tokens, best=best,
        loss=Believed(value=loss, likely=likely, sure=sure),
        outside=law.caveats(setting, values, likely[0]),
    )  # fmt: skip


def _numbers(law: Law) -> dict[str, Believed]:

    top, by_size, by_tokens = law.draws[:, law.model.stop :][:, : model.LINEAR].T
    alpha, beta = np.exp(law.draws[:, [model.ALPHA, model.BETA]]).T
    powers = law.draws[:, [model.PER_WIDTH, model.PER_DEPTH, model.PER_TOKENS, model.PER_BATCH]].T
    draws = (top - by_size - by_tokens, alpha, beta, *powers)
    names = ("E", "alpha", "beta", "width", "depth", "tokens", "batch")
    return {name: _believed(own) for name, own in zip(names, draws, strict=True)}


def _facts(view: LawView) -> list[tuple[str, str]]:
    facts = []
    for one in (view.target, view.beyond):
        facts.append((one.name, f"{_size(one.parameters, one.tokens)}. {one.outside or ''}"))
        loss, *of = (f"{each:.3f}" for each in (one.loss.value, *one.loss.likely, *one.loss.sure))
        text = f"{loss} ({of[0]} to {of[1]} with 68 %, {of[2]} to {of[3]} with 95 %)"
        facts.append((f"{view.metric} at its end", text))
        for path, own in one.best.items():
            figures = (own.value, *own.likely, *own.sure)
            best, *of = (parameter(float(f"{each:.2g}"), path) for each in figures)
            text = f"{best} ({of[0]} to {of[1]} with 68 %, {of[2]} to {of[3]} with 95 %)"
            facts.append((f"best {path}", text))
    numbers = [
        f"{name} {own.value:.2f} ({own.likely[0]:.2f} to {own.likely[1]:.2f})"
        for name, own in view.numbers.items()
    ]
    span = {name: dict.fromkeys(map(amount, both)) for name, both in view.domain.items()}
    spans = [f"{name} {' to '.join(texts)}" for name, texts in span.items()]
    off = sorted((-abs(run.off or 0), f"{run.name} {run.off:+.1f}") for run in view.runs if run.off)
    return [
        *facts,
        ("best loss, E + A parameters^-alpha + B tokens^-beta", ", ".join(numbers[:3])),
        ("powers of the best rate", f"{', '.join(numbers[3:])}; batch up to the critical one"),
        ("measured", f"{counted(len(view.runs), 'run')}: {', '.join(spans)}"),
        ("farthest off it, in standard deviations", listed([text for _, text in off])),
        ("published runs", "count as a weak prior" if view.published else "do not count"),
    ]
