"""Carry the learning rate of a sweep to a larger training."""

from __future__ import annotations

import textwrap
from typing import Any

import yaml

from lehr.analysis.lr_fit import LrFit, to_try
from lehr.analysis.lr_rules import DEFAULT, RULES, Setting, setting_of
from lehr.analysis.lr_transfer import DOUBTS, LrTransfer, transfer
from lehr.analysis.next_trials import next_trials, untried
from lehr.analysis.sweep_result import lower_rates, outcome, sweep_fit
from lehr.app.services.context import Context
from lehr.base.formats import amount, scientific
from lehr.base.names import is_rate, is_seed
from lehr.errors import UserError, nearest
from lehr.schemas.sweeps import ChangeView, SweepDetail, TransferView
from lehr.specs import RolloutSpec, RunSpec, SweepSpec, load_spec
from lehr.specs.overrides import Overrides
from lehr.store.tables import SweepRow
from lehr_trainer.configs.train import TrainConfig

SAME = (
    "model.kind",
    "model.tie_embeddings",
    "data.corpus",
    "data.tokenizer",
    "schedule.name",
    "schedule.min_lr_ratio",
    "optimizer.weight_decay",
    "optimizer.betas",
    "grad_clip",
)
"""Fields of ``train`` that no rule reads, and that move the best rate."""
_WIDTH = 98


def transfer_rate(
    context: Context,
    sweep: SweepRow,
    spec: dict[str, Any],
    overrides: Overrides = (),
    *,
    rule: str | None = None,
) -> TransferView:
    """Return the learning rate for ``spec``, a run or a rollout, by the sweep's verdict. Nothing is
    recorded. Without ``rule`` the one with the least regret is taken.

    Raises:
        UserError: the sweep has no verdict on a learning rate, or no rule reaches the target.
        SpecError: the target is not a valid spec.
    """
    name = rule or DEFAULT
    if name not in RULES:
        near = nearest(name, RULES)
        raise UserError(
            f"there is no rule {name!r}.",
            hint=(f"Did you mean {near}? " if near else "") + f"Rules: {', '.join(RULES)}",
        )
    target = load_spec(spec, overrides)
    if isinstance(target, SweepSpec):
        raise UserError(
            f"{target.name} is a sweep; a learning rate can be transferred to a run or a rollout "
            "only.",
            hint="Name the file of a run or of a rollout.",
        )
    detail = context.presenter.sweeps.outline(sweep)
    fit = _fit(detail)
    trial = SweepSpec.model_validate(sweep.spec).run.own
    aim = target.own if isinstance(target, RunSpec) else target.run.own
    _require_reachable(detail, trial, aim)
    source = setting_of(trial, None if detail.state == "finished" else detail.compared_at_tokens)
    goal = setting_of(aim)
    found = transfer(fit, source, goal, name)
    warnings = [*_progress(detail), *found.warnings, *_differences(trial, aim)]
    return _view(sweep, target, fit, source, goal, found, warnings)


def _fit(detail: SweepDetail) -> LrFit:
    """Return the verdict on the learning rate.

    Raises:
        UserError: there is none.
    """
    name = f"sweep {detail.name}"
    rates = [path for path in detail.parameters if is_rate(path)]
    if not rates:
        raise UserError(
            f"{name} does not vary a learning rate; it varies {', '.join(detail.parameters)}.",
            hint="Sweep train.optimizer.lr first.",
        )
    others = [p for p in detail.parameters if p not in rates[:1] and not is_seed(p)]
    if others:
        raise UserError(
            f"{name} varies {', '.join(others)} besides {rates[0]}, so its best rate is not one "
            "number.",
            hint="Carry the rate of a sweep that varies the rate alone (and seeds).",
        )
    if detail.goal != "minimize":
        raise UserError(
            f"{name} maximizes {detail.metric}; only a metric that is minimized can carry a rate.",
            hint="Sweep with metric: {name: val/loss, goal: minimize}",
        )
    if detail.held_out == "different":
        raise UserError(f"{name} has no best rate. {detail.held_out_note}")
    fit = sweep_fit(detail, rates[0])
    if fit is None:
        diverged = sum(outcome(trial) == "diverged" for trial in detail.trials)
        why = (
            f"all {diverged} trials with a result diverged"
            if diverged
            else "no trial has a value yet"
        )
        raise UserError(
            f"{name} has no trial with a finite {detail.metric}: {why}.",
            hint=_lower(detail, rates[0]) if diverged else f"Wait for it: lehr watch {detail.name}",
        )
    tried = {trial.parameters.get(rates[0]) for trial in detail.trials}
    if len(tried) < 2:
        raise UserError(
            f"{name} tried one learning rate, {fit.best:g}: nothing shows that it is a good one.",
            hint=f"Add others: lehr extend {detail.name} {rates[0]}=[{fit.best / 2:g}, "
            f"{fit.best * 2:g}]",
        )
    return fit


def _lower(detail: SweepDetail, parameter: str) -> str:
    """Return the advice to try lower rates, with the command that adds them."""
    rates = untried(detail, lower_rates(detail, parameter), parameter)
    more = next_trials(detail, rates, parameter)
    if more is None:
        return f"Try lower rates: lehr extend {detail.name} {parameter}=[...]"
    return to_try(rates, more.command)


def _require_reachable(detail: SweepDetail, trial: TrainConfig, aim: TrainConfig) -> None:
    """Check that a rate of the trials means the same to the target.

    Raises:
        UserError: another optimizer or parametrization.
    """
    mine, theirs = trial.optimizer.name, aim.optimizer.name
    if trial.optimizer.lr_family != aim.optimizer.lr_family:
        raise UserError(
            f"train.optimizer.name is {theirs} in the target and {mine} in sweep {detail.name}; "
            "their learning rates do not compare.",
            hint=f"Sweep with optimizer {theirs}, or set train.optimizer.name={mine}",
        )
    here, there = trial.model, aim.model
    if there.parametrization == "standard":
        if here.parametrization == "mup":
            raise UserError(
                f"sweep {detail.name} trained under muP, but the target's "
                "train.model.parametrization is standard.",
                hint="Set train.model.parametrization=mup "
                f"train.model.base_width={here.base_width}",
            )
        return
    base = here.hidden_size if here.parametrization == "standard" else here.base_width
    if there.base_width != base:
        raise UserError(
            f"train.model.base_width is {there.base_width} in the target; the rate of sweep "
            f"{detail.name} is of base width {base}.",
            hint=f"Set train.model.base_width={base}",
        )


def _progress(detail: SweepDetail) -> list[str]:
    if detail.state == "finished":
        return []
    at = detail.compared_at_tokens
    return [
        f"The sweep is {detail.state}: its trials are compared "
        + (f"at {at:,} tokens" if at is not None else "early")
        + ", before their schedules end. The best rate may still move."
    ]


def _differences(trial: TrainConfig, aim: TrainConfig) -> list[str]:
    """Return what else differs, and moves the best rate by an unknown factor."""
    differing = [path for path in SAME if at(trial, path) != at(aim, path)]
    found = []
    if differing:
        found.append(
            f"No rule covers these differences from the sweep: {', '.join(differing)}. Each may "
            "move the best rate."
        )
    if aim.optimizer.lr_family != "adamw":
        name = aim.optimizer.name
        found.append(f"The rules were measured on runs with AdamW; none with {name} are known.")
    here, there = trial.model, aim.model
    if there.parametrization == "mup" and here.parametrization == "standard":
        head = here.head_size
        if (there.base_head_size or 64) != head:
            found.append(
                f"The sweep's heads have a size of {head}: set train.model.base_head_size={head}, "
                "so that attention scores are as in the sweep."
            )
        if there.tie_embeddings:
            found.append(
                "The target's head is tied: under muP its first weights are not those of the "
                "sweep's. Sweep with train.model.parametrization=mup "
                f"train.model.base_width={there.base_width}, or set train.model.tie_embeddings to "
                "false in both."
            )
    return found


def at(train: TrainConfig, path: str) -> Any:
    value: Any = train
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def _view(
    sweep: SweepRow,
    target: RunSpec | RolloutSpec,
    fit: LrFit,
    source: Setting,
    goal: Setting,
    found: LrTransfer,
    warnings: list[str],
) -> TransferView:
    parts = {part.quantity: part for part in RULES[found.chosen.name].parts}
    rate = float(f"{found.rate:.3g}")
    view = TransferView(
        sweep_id=sweep.id,
        sweep=sweep.name,
        target=target.name,
        rule=found.chosen.name,
        rate=rate,
        likely=found.likely,
        sure=found.sure,
        doubt=found.doubt,
        from_rate=fit.best if fit.recommended is None else fit.recommended,
        from_likely=fit.likely,
        from_sure=fit.sure,
        changes=[
            ChangeView(
                quantity=name,
                source=getattr(source, name),
                target=getattr(goal, name),
                ratio=source.ratio(goal, name),
                factor=parts[name].factor(source, goal) if name in parts else None,
                formula=parts[name].formula if name in parts else None,
                source_of_rule=parts[name].source if name in parts else None,
                doubt=parts[name].doubt if name in parts else None,
            )
            for name in DOUBTS
        ],
        rules=list(found.answers),
        warnings=warnings,
        yaml="",
    )
    return view.model_copy(update={"yaml": carried_yaml(target, view)})


def carried_yaml(spec: RunSpec | RolloutSpec, view: TransferView) -> str:
    """Return YAML that ``load_spec`` reads: the spec's given fields, and the new rate."""
    data: dict[str, Any] = {"kind": spec.kind, **spec.model_dump(mode="json", exclude_unset=True)}
    run = data if spec.kind == "run" else data["run"]
    run["train"].setdefault("optimizer", {})["lr"] = view.rate
    verb = "submit" if spec.kind == "run" else "rollout"
    lines = [*reasons(view), "", f"Launch it: lehr {verb} FILE"]
    comments = [
        part
        for line in lines
        for part in textwrap.wrap(
            line, _WIDTH - 2, subsequent_indent=" " * (len(line) - len(line.lstrip()) + 2)
        )
        or [""]
    ]
    head = "".join(f"# {line}".rstrip() + "\n" for line in comments)
    return head + yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def reasons(view: TransferView) -> list[str]:
    """Return why the rate is what it is, line by line."""
    rate, start = scientific(view.rate, 3), scientific(view.from_rate, 3)
    origin = f"sweep {view.sweep} ({view.sweep_id})"
    wrong = f"The rule alone may be wrong by a factor of {view.doubt:.2g}."
    lines = [
        f"Learning rate {rate}, carried from {origin} by rule {view.rule}.",
        f"{_interval(view.likely, view.sure)} {wrong}",
        "",
        f"The sweep's best rate is {start}. {_interval(view.from_likely, view.from_sure)}",
    ]
    lines += [
        f"  {one.quantity} {amount(one.source)} -> {amount(one.target)} (x {one.ratio:.3g}): "
        + (
            "the rule does not use it"
            if one.factor is None
            else f"factor {one.factor:.3g}, {one.formula} ({one.source_of_rule}). "
            f"Doubt: {one.doubt}."
        )
        for one in view.changes
    ]
    lines += ["", "Other rules, for comparison:"]
    lines += [
        f"  {one.name}: {scientific(one.rate, 3)}, {one.formula} ({one.source})"
        + (f" - outside its domain: {one.outside}" if one.outside else "")
        for one in view.rules
        if not one.chosen
    ]
    if view.warnings:
        lines += ["", *(f"! {warning}" for warning in view.warnings)]
    return [" ".join(line.splitlines()) for line in lines]


def _interval(likely: tuple[float, float] | None, sure: tuple[float, float] | None) -> str:
    if likely is None or sure is None:
        return "There is no interval: the trials bracket no minimum."
    near, far = (f"{scientific(low, 2)} and {scientific(high, 2)}" for low, high in (likely, sure))
    return f"The best is between {near} with 68 %, and {far} with 95 %."
