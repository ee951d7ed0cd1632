"""The trunk of a sweep over one stage: the stages before it, which its trials share."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pydantic import ValidationError

from lehr.specs.course import cut
from lehr.specs.overrides import replace_length, set_path
from lehr.specs.run import RunSpec
from lehr.specs.sweep import SweepSpec

_STAGE = re.compile(r"train\.stages\.(\d+)(\..+)?")
_WAYS = {
    "schedule": "Give the swept stage a schedule of its own",
    "batch": "Set run.train.batch.block to the longest sequence",
}
_ALONE = "let each trial train all of it: share_stages: false"


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
        message = f"the stages before the swept one cannot be trained alone: {reason}"
        return f"{message}.", f"{_ALONE[0].upper()}{_ALONE[1:]}"
    shared = sweep.run.own.course[:number]
    for run in trials:
        for (span, expected), stage in zip(shared, run.own.course, strict=False):
            was, now = expected.model_dump(), stage.config.model_dump()
            other = next((field for field in was if was[field] != now[field]), None)
            if other is not None:
                message = (
                    f"stage {span.name} would be trained once for all trials, but its {other} "
                    "depends on the swept values."
                )
                ways = [*([_WAYS[other]] if other in _WAYS else []), _ALONE]
                hint = ", or ".join(ways)
                return message, f"{hint[0].upper()}{hint[1:]}"
    return None
