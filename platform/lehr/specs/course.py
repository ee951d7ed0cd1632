"""The course of a run by its steps: what was trained until a step, a document cut there, and the
trunk of a sweep over one stage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import ValidationError

from lehr.errors import SpecProblem
from lehr.specs.overrides import replace_length, set_path
from lehr.specs.run import RunSpec
from lehr.specs.sweep import SweepSpec
from lehr_trainer.configs.stages import READING, CourseStage, StageSpan
from lehr_trainer.configs.train import TrainConfig


def stage_of(course: Sequence[CourseStage], step: int) -> CourseStage:
    """Return the stage of a step (the first is 1); the last one for steps after the end."""
    return next((stage for stage in course if step <= stage.span.last), course[-1])


def cut(config: TrainConfig, step: int) -> dict[str, Any]:
    """Return the changes, by path below ``train``, that end a run with stages at ``step``.

    What follows from the stages that are left out is written down, so that the others are trained
    as before: where their schedules end, and the blocks into which their corpora are cut.
    """
    begun = [stage for stage in config.course if stage.span.first < step]
    has_blocks = any(own.batch.block for _, own in begun)
    changes: dict[str, Any] = {"stages": []}
    left = config.tokens_at(step)
    for stage, (span, own) in zip(config.stages, begun, strict=False):
        raw = stage.model_dump(mode="json")
        raw["tokens"] = stage.tokens if span.last < step else left
        left -= stage.tokens
        if has_blocks:
            raw["batch"] = {**stage.batch, "block": own.batch.block}
        if (end := own.schedule.ends_after or own.steps) > step:
            if stage.schedule is not None:
                raw["schedule"]["ends_after"] = end
            if not span.first:
                changes["schedule.ends_after"] = end
        changes["stages"].append(raw)
    return changes


def past_problem(old: TrainConfig, new: TrainConfig, step: int) -> SpecProblem | None:
    """Return why ``new`` cannot go on from a checkpoint of ``old``: its past is another one.

    The batches and the data of all steps until ``step`` must be those that were trained. Rates,
    schedules and losses may differ. Blocks, too: what is left of an epoch is cut anew.
    """
    courses = old.course, new.course
    starts = {
        start
        for course in courses
        for span, own in course
        for start in (span.first, *own.batch.changes(own.steps))
        if start < step
    }
    for start in sorted(starts):
        was, now = (_trained(stage_of(course, start + 1).config, start) for course in courses)
        for what in was:
            if was[what] != now[what]:
                shown = "" if what == "data" else f" ({was[what]}, not {now[what]})"
                return _another_past(old, stage_of(courses[0], start + 1).span, step, what, shown)
    return None


def _trained(own: TrainConfig, step: int) -> dict[str, object]:
    """Return what decides which tokens the step after ``step`` has."""
    batch = own.batch.at(step, own.steps)
    return {
        "batch": f"{batch.sequences} sequences of {batch.sequence_length} tokens",
        "seed": own.seed,
        "data": own.data.model_dump(exclude=READING),
    }


def _another_past(
    old: TrainConfig, span: StageSpan, step: int, what: str, shown: str
) -> SpecProblem:
    within = step < span.last
    message = (
        f"step {step:,} lies {'within' if within else 'after'} "
        f"{f'stage {span.name}' if span.name else 'the run'} (steps {span.first:,} to "
        f"{span.last:,}), whose {what} cannot change there{shown}."
    )
    ways = [f"fork at step {span.first:,}, where it begins"] if span.first else []
    if within:
        number = old.spans.index(span)
        tokens = old.tokens_at(step) - sum(stage.tokens for stage in old.stages[:number])
        ways += [
            f"fork at step {span.last:,}, where it ends",
            f"end it here (train.stages.{number}.tokens={tokens}), and change the stage after it",
        ]
    hint = "; or ".join(ways) or "leave it as it was"
    return SpecProblem("train.stages", message, f"{hint[0].upper()}{hint[1:]}.")


# --- sweeps over a stage: a trunk trains the stages before it, which the trials share ----------


_STAGE = re.compile(r"train\.stages\.(\d+)(\..+)?")
_WAYS = {
    "schedule": ", or give the swept stage a schedule of its own",
    "batch": ", or set run.train.batch.block to the longest sequence",
}
_ALONE = "Let each trial train all of it: share_stages: false"


def shared_stages(sweep: SweepSpec) -> int:
    """Return how many stages the trials share: those before the first that the sweep varies."""
    if not sweep.share_stages or sweep.run.train is None:
        return 0
    swept = [_STAGE.fullmatch(sweep.spec_path(path)) for path in sweep.paths]
    return min((int(stage[1]) if stage else 0 for stage in swept), default=0)


def trunk_of(sweep: SweepSpec) -> RunSpec | None:
    """Return the run that trains the shared stages for all trials; None if there are none."""
    number = shared_stages(sweep)
    if not number:
        return None
    train = sweep.run.own
    names = [stage.span.name for stage in train.course[:number]]
    data = sweep.run.model_dump(mode="json", exclude_unset=True)
    replace_length(data, ["train.stages"])
    for path, value in cut(train, train.course[number].span.first).items():
        set_path(data, f"train.{path}", value)
    set_path(data, "train.checkpoint.save_last", value=True)
    data |= {
        "name": f"{sweep.name}-trunk",
        "project": sweep.project,
        "tags": list(dict.fromkeys([*sweep.tags, *sweep.run.tags])),
        "notes": f"Trains what the trials of {sweep.name} share: {', '.join(names)}.",
    }
    return RunSpec.model_validate(data)


def share_problem(sweep: SweepSpec, trials: Iterable[RunSpec]) -> tuple[str, str] | None:
    """Return why these trials cannot share the stages before the swept one, and a way out."""
    number = shared_stages(sweep)
    if not number:
        return None
    try:
        trunk_of(sweep)
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        message = f"the stages before the swept one cannot be trained alone: {reason}."
        return message, _ALONE
    shared = sweep.run.own.course[:number]
    for run in trials:
        for (span, expected), stage in zip(shared, run.own.course, strict=False):
            was, now = expected.model_dump(), stage.config.model_dump()
            for field in was:
                if was[field] != now[field]:
                    message = (
                        f"stage {span.name} would be trained once for all trials, but its {field} "
                        "depends on the swept values."
                    )
                    return message, f"{_ALONE}{_WAYS.get(field, '')}"
    return None
