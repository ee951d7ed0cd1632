"""Forks: choose the checkpoint that a new run starts from, and build its spec."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from lehr.control.saved_points import SavedPoint
from lehr.errors import NotFound, SpecError, SpecProblem
from lehr.specs import load_spec
from lehr.specs.course import past_problem, stage_of
from lehr.specs.overrides import Overrides, parse_overrides
from lehr.specs.run import CLAIM, RunSpec
from lehr_trainer.configs.optimizer import optimizer_kind
from lehr_trainer.configs.schedule import lr_factor
from lehr_trainer.configs.shapes import ROTARY_FIELDS
from lehr_trainer.configs.train import TrainConfig

_SCHEDULE = "train.schedule"
_WARMUP = frozenset({f"{_SCHEDULE}.{name}" for name in ("warmup_steps", "warmup_ratio")})
_EITHER = (("warmup_steps", "warmup_ratio"), ("decay_steps", "decay_ratio"))
_MODEL_MAY_CHANGE = {
    "llama": ROTARY_FIELDS | {"norm_eps", "window", "logit_softcap"},
    "gpt2": frozenset({"norm_eps"}),
}
"""Fields of each kind that do not change the shape of weights: GPT-2 learns its positions."""
LONGEST_NAME = 100
_REHEATED = 1.05  # A rate that rises by less than this factor needs no warning.
_OF_PROGRAM = (
    "optimizer_state fresh is for Lehr's own trainer; a program loads its checkpoint by itself."
)

OptimizerState = Literal["keep", "fresh"]
"""What a fork does with the optimizer's state of its checkpoint."""


C = TypeVar("C", bound=SavedPoint)


def choose(name: str, checkpoints: Sequence[C], step: int | None) -> C:
    """Return the newest attempt's checkpoint at ``step``; without a step, the newest checkpoint.

    Raises:
        NotFound: there is none at that step; the nearest is named.
    """
    if not checkpoints:
        raise NotFound(
            f"{name} has no checkpoint to fork from.",
            hint=f"To save one while it runs: lehr checkpoints save {name}",
        )
    if step is None:
        return max(checkpoints, key=lambda c: (c.attempt, c.step))
    matching = [c for c in checkpoints if c.step == step]
    if matching:
        return max(matching, key=lambda c: c.attempt)
    raise no_such_step(name, [c.step for c in checkpoints], step)


def no_such_step(name: str, there: Sequence[int], step: int, of: str = "") -> NotFound:
    """Return the error about a step without a checkpoint; it names the nearest one that has one."""
    steps = sorted(set(there))
    near = min(steps, key=lambda s: (abs(s - step), s))
    listed = ", ".join(f"{s:,}" for s in steps[-10:])
    return NotFound(
        f"{name} has no checkpoint at step {step:,}{of}.",
        hint=f"The nearest is at step {near:,}. It has: {'..., ' * (len(steps) > 10)}{listed}.",
    )


def fork_spec(
    source: dict[str, Any],
    changes: Overrides,
    *,
    step: int,
    optimizer_state: OptimizerState = "keep",
) -> RunSpec:
    """Return the spec of a run that continues a run with the spec ``source`` from ``step``.

    Of a run with stages, the batches and the data until ``step`` stay: stages that begin later may
    be others. A changed warmup means a new warmup, so it starts the schedule at ``step``
    (``train.schedule.starts_after``) unless the changes set that, too. Of two fields that exclude
    each other, a changed one replaces the source's. Another optimizer begins with its defaults, and
    with ``optimizer_state`` fresh.

    Raises:
        SpecError: a change is wrong, needs other weights than the checkpoint's, or leaves no step.
    """
    old = RunSpec.model_validate(source)
    given = {path: value for path, value, _ in parse_overrides(changes)}
    data = copy.deepcopy({field: value for field, value in source.items() if field not in CLAIM})
    data["kind"] = "run"
    if "hypothesis" in given:
        message = "hypothesis: a fork makes no claim, since its seed cannot change."
        raise SpecError([SpecProblem("hypothesis", message)])
    if "name" not in given:
        ending = f"-fork-{step}"
        data["name"] = f"{old.name[: LONGEST_NAME - len(ending)]}{ending}"
    if old.trainer is not None:
        if optimizer_state == "fresh":
            raise SpecError([SpecProblem("optimizer_state", _OF_PROGRAM)])
        new = load_spec(data, changes)
        assert isinstance(new, RunSpec)
        if new.steps is not None and new.steps <= step:
            path = "trainer.steps"
            if new.trainer is not None and new.trainer.steps_arg is not None:
                path = f"trainer.args.{new.trainer.steps_arg}"
            message = (
                f"{path} is {new.steps:,}, but the checkpoint is at step {step:,}: nothing would "
                "be left to train."
            )
            raise SpecError([SpecProblem(path, message, f"Change it too: {path}={2 * step}")])
        return new  # Only the program determines what may change.
    if old.own.has_budget:
        # They follow from the budget, which a change of the batch leaves as it is.
        data["train"].pop("steps", None)
    if not given.get("train.stages", old.own.stages):
        # Stages count the tokens before the checkpoint themselves.
        data["train"]["forked_at"] = {"after_steps": step, "after_tokens": old.own.tokens_at(step)}
    data["train"]["optimizer_state"] = optimizer_state
    if given.get("train.optimizer.name", old.own.optimizer.name) != old.own.optimizer.name:
        data["train"]["optimizer"] = {}
    schedule = data["train"].setdefault("schedule", {})
    for one, other in _EITHER:
        for name, excluded in ((one, other), (other, one)):
            if f"{_SCHEDULE}.{name}" in given and f"{_SCHEDULE}.{excluded}" not in given:
                schedule[excluded] = None
    start = f"{_SCHEDULE}.starts_after"
    if given.keys() & _WARMUP and start not in given:
        if old.own.stages and step >= (end := _scheduled(old.own)):
            message = (
                f"{_SCHEDULE} ends with step {end:,}, and the checkpoint is at step {step:,}: a "
                "warmup would change nothing."
            )
            hint = "Set that of a stage: train.stages.NAME.schedule.warmup_steps."
            raise SpecError([SpecProblem(_SCHEDULE, message, hint)])
        # A change too: a schedule that is written as its name replaces the whole of the source's.
        if isinstance(changes, Mapping):
            changes = {**changes, start: step}
        else:
            changes = [*changes, f"{start}={step}"]
    new = load_spec(data, changes)
    assert isinstance(new, RunSpec)
    problems = _problems(old.own, new.own, step)
    if new.own.stages and step < new.own.steps and (past := past_problem(old.own, new.own, step)):
        problems.append(past)
    if problems:
        raise SpecError(problems)
    return new


def reheating(source: RunSpec, fork: RunSpec, step: int) -> str | None:
    """Return a warning if the fork's schedule raises the learning rate at the checkpoint.

    None for a new peak or a new schedule that begins there, which are what was asked for, and for
    programs of the user's own.
    """
    if source.trainer is not None or fork.trainer is not None:
        return None
    old, new = (stage_of(one.own.course, step + 1).config for one in (source, fork))
    if old.optimizer.lr != new.optimizer.lr or new.schedule.starts_after == step:
        return None
    peak, first = new.optimizer.lr, step + 1
    # The first step of the fork, as the source would have taken it.
    before = peak * lr_factor(old.schedule, min(first, old.steps), old.steps)
    after = peak * lr_factor(new.schedule, first, new.steps)
    if after <= _REHEATED * before:
        return None
    ends = [one.schedule.ends_after or one.steps for one in (old, new)]
    text = (
        f"at step {first:,} the learning rate rises from {before:.1e} to {after:.1e}, since "
        f"{new.schedule.name} spans all {ends[1]:,} steps (before: {old.schedule.name}, "
        f"{ends[0]:,} steps)."
    )
    if step >= _scheduled(fork.own):
        return text
    return (
        f"{text} To rise slowly from where it was: train.schedule.warmup_steps="
        f"{max(1, (ends[1] - step) // 50)} train.schedule.warmup_from={before / peak:.3g}"
    )


def _scheduled(train: TrainConfig) -> int:
    """Return the step at which ``train.schedule`` ends; a later stage may have its own."""
    own = train.course[0].config
    return own.schedule.ends_after or own.steps


def _problems(old: TrainConfig, new: TrainConfig, step: int) -> list[SpecProblem]:
    found = []
    if new.steps <= step:
        message = (
            f"train.steps is {new.steps:,}, but the checkpoint is at step {step:,}: "
            "nothing would be left to train."
        )
        hint = f"Change it too: train.steps={2 * step}"
        if new.stages:
            message = message.replace("train.steps is", "train.stages end with step")
            hint = f"Add a stage, or tokens to the last: train.stages.{len(new.stages) - 1}.tokens."
        found.append(SpecProblem("train.stages" if new.stages else "train.steps", message, hint))
    before, after = old.model.model_dump(), new.model.model_dump()
    may_change = _MODEL_MAY_CHANGE[old.model.kind]
    for name in sorted(before.keys() | after.keys()):
        if name in may_change or before.get(name) == after.get(name):
            continue
        path = f"train.model.{name}"
        message = f"{path} is {before.get(name)!r} in the checkpoint; a fork cannot change it."
        hint = (
            f"Submit a new run for another model; a fork may set {', '.join(sorted(may_change))}."
        )
        found.append(SpecProblem(path, message, hint))
    parts = [{} if config.parts is None else config.parts.named for config in (old, new)]
    was, is_now = (named.get("model") for named in parts)
    if was != is_now:
        path = "train.parts.model"
        message = (
            f"{path} is {was or 'not set'} in the checkpoint, which holds its state; "
            "a fork cannot change it."
        )
        found.append(SpecProblem(path, message))
    saved, own = (optimizer_kind(config.model_dump()) for config in (old, new))
    if saved != own and new.optimizer_state == "keep":
        same_name = old.optimizer.name == new.optimizer.name
        own_field = "library" if old.optimizer.name == "adamw8bit" else "normuon_beta"
        field = f"optimizer.{own_field if same_name else 'name'}"
        if parts[0].get("optimizer") != parts[1].get("optimizer"):
            field = "parts.optimizer"
        message = (
            f"train.{field}: the checkpoint holds the state of the optimizer {saved}, and {own} "
            "cannot go on from it."
        )
        hint = "To start it without state: lehr fork --optimizer-state fresh (optimizer_state)."
        found.append(SpecProblem(f"train.{field}", message, hint))
    return found
