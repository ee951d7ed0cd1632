"""The course of a run by its steps: what was trained until a step, and a document cut there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lehr.errors import SpecProblem
from lehr_trainer.configs.stages import CourseStage
from lehr_trainer.configs.train import TrainConfig

_FREE = {"loss_mask", "loading", "workers", "prefetch"}
"""Fields of the data that do not change which tokens a step has."""


def stage_of(course: Sequence[CourseStage], step: int) -> CourseStage:
    """Return the stage of a step (the first is 1); the last one for steps after the end."""
    return next((stage for stage in course if step <= stage.span.last), course[-1])


def cut(config: TrainConfig, step: int) -> dict[str, Any]:
    """Return the changes, by path below ``train``, that end a run with stages at ``step``.

    What follows from the stages that are left out is written down, so that the others are trained
    as before: where their schedules end, and the blocks into which their corpora are cut.
    """
    begun = [
        (stage, span, own)
        for stage, (span, own) in zip(config.stages, config.course, strict=True)
        if span.first < step
    ]
    ends = [own.schedule.ends_after or own.steps for _, _, own in begun]
    has_blocks = any(own.batch.block for _, _, own in begun)
    stages: list[dict[str, Any]] = []
    left = config.tokens_at(step)
    for (stage, span, own), end in zip(begun, ends, strict=True):
        raw = stage.model_dump(mode="json")
        raw["tokens"] = stage.tokens if span.last < step else left
        left -= stage.tokens
        if has_blocks:
            raw["batch"] = {**stage.batch, "block": own.batch.block}
        if stage.schedule is not None and end > step:
            raw["schedule"]["ends_after"] = end
        stages.append(raw)
    own_end = {"schedule.ends_after": ends[0]} if ends[0] > step else {}
    return {"stages": stages, **own_end}


def past_problem(old: TrainConfig, new: TrainConfig, step: int) -> SpecProblem | None:
    """Return why ``new`` cannot go on from a checkpoint of ``old``: its past is another one.

    The batches and the data of all steps until ``step`` must be those that were trained. Rates,
    schedules and losses may differ. Blocks, too: what is left of an epoch is cut anew.
    """
    courses = old.course, new.course
    starts = {start for course in courses for stage in course for start in _starts(stage)}
    for start in sorted(start for start in starts if start < step):
        was, now = (_trained(stage_of(course, start + 1), start) for course in courses)
        what = next((name for name in was if was[name] != now[name]), None)
        if what is not None:
            return _another_past(old, start + 1, step, what, (was[what], now[what]))
    return None


def _starts(stage: CourseStage) -> tuple[int, ...]:
    return (stage.span.first, *stage.config.batch.changes(stage.config.steps))


def _trained(stage: CourseStage, step: int) -> dict[str, object]:
    """Return what decides which tokens the step after ``step`` has."""
    own = stage.config
    batch = own.batch.at(step, own.steps)
    return {
        "batch": f"{batch.sequences} sequences of {batch.sequence_length} tokens",
        "seed": own.seed,
        "data": own.data.model_dump(exclude=_FREE),
    }


def _another_past(
    old: TrainConfig, changed: int, step: int, what: str, values: tuple[object, object]
) -> SpecProblem:
    span = stage_of(old.course, changed).span
    number = next(n for n, stage in enumerate(old.course) if stage.span == span)
    name = f"stage {span.name}" if span.name else "the run"
    within = step < span.last
    shown = "" if what == "data" else f" ({values[0]}, not {values[1]})"
    message = (
        f"step {step:,} lies {'within' if within else 'after'} {name} (steps {span.first:,} to "
        f"{span.last:,}), whose {what} cannot change there{shown}."
    )
    ways = [f"fork at step {span.first:,}, where it begins"] if span.first else []
    if within:
        tokens = old.tokens_at(step) - sum(stage.tokens for stage in old.stages[:number])
        ways += [
            f"fork at step {span.last:,}, where it ends",
            f"end it here (train.stages.{number}.tokens={tokens}), and change the stage after it",
        ]
    hint = "; or ".join(ways) or "leave it as it was"
    return SpecProblem("train.stages", message, f"{hint[0].upper()}{hint[1:]}.")
