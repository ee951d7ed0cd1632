"""Cooldowns: forks that end a run early, by a decay of its learning rate over so many tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lehr.control.forks import LONGEST_NAME, choose, fork_spec
from lehr.control.saved_points import SavedPoint
from lehr.errors import UserError
from lehr.specs.course import cut, stage_of
from lehr.specs.run import RunSpec
from lehr_trainer.configs.budget import parse_tokens
from lehr_trainer.configs.schedule import lr_factor
from lehr_trainer.configs.train import TrainConfig

Shape = Literal["linear", "sqrt"]
_UNITS = (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3))


@dataclass(frozen=True)
class Cooldown:
    step: int  # Of the checkpoint.
    changes: dict[str, Any]  # Of the fork, by dotted path.
    spec: RunSpec  # Of the fork.
    rate: float  # Learning rate of the trunk at ``step``.
    share: float  # The same as a share of the trunk's peak.
    last_rate: float

    @property
    def steps(self) -> int:
        return self.spec.own.steps - self.step

    @property
    def tokens(self) -> int:
        return self.steps * self._stage.tokens_per_step

    @property
    def alone(self) -> RunSpec:
        """Return a run of its steps only, to plan it without those of the trunk."""
        own = self._stage
        last = own.batch.at(own.steps - 1, own.steps).model_dump() | {"stages": []}
        train = own.model_dump(mode="json", exclude={"tokens", "forked_at", "schedule"})
        train |= {"steps": self.steps, "batch": last}
        return self.spec.model_copy(update={"train": TrainConfig.model_validate(train)})

    @property
    def _stage(self) -> TrainConfig:
        return self.spec.own.course[-1].config


def cooldown(
    trunk: RunSpec,
    points: Sequence[SavedPoint],
    tokens: int | str,
    *,
    at: int | None = None,
    to: float = 0.0,
    shape: Shape = "linear",
    name: str | None = None,
    below_peak: bool = False,
) -> Cooldown:
    """Return the fork that cools ``trunk`` down: the arguments are those of ``Run.cooldown``.

    Raises:
        NotFound: there is no such checkpoint.
        UserError: another argument is wrong, or ``trunk`` is of a program of the user's own.
    """
    if trunk.trainer is not None:
        raise UserError(
            f"{trunk.name} trains with a program of its own, and Lehr does not set its learning "
            "rate.",
            hint="Fork it, with the argument that decays the rate: "
            "lehr fork RUN trainer.args.NAME=VALUE",
        )
    budget = parse_tokens(tokens)
    if not 0.0 <= to < 1.0:
        raise UserError(
            f"to is {to:g}; it must be at least 0 and below 1: the last rate as a share of the "
            "rate at the checkpoint."
        )
    step = choose(trunk.name, points, at).step
    train = stage_of(trunk.own.course, step).config
    if not isinstance(budget, int) or isinstance(budget, bool) or budget < train.tokens_per_step:
        raise UserError(
            f"tokens is {tokens}; a cooldown of {trunk.name} needs at least the "
            f"{train.tokens_per_step:,} tokens of a step.",
            hint="Write e.g. 2B, 300M or 1.5e9.",
        )
    shares = {point.step: _share(trunk.own, point.step) for point in points}
    share, peak = shares[step], train.optimizer.lr
    decayed = not math.isclose(share, 1.0)
    if share == 0.0 or (decayed and not below_peak):
        at_peak = [step for step, share in shares.items() if math.isclose(share, 1.0)]
        hint = f"at the peak is at step {max(at_peak):,}." if at_peak else "is below the peak, too."
        if share > 0.0:
            hint += f" To cool down from {peak * share:.2g} all the same: --yes (below_peak)."
        raise UserError(
            f"at step {step:,} the learning rate of {trunk.name} is {peak * share:.2g}, "
            f"{share:.0%} of its peak {peak:.2g}, by its schedule {train.schedule.name}.",
            hint=f"Its last checkpoint {hint}",
        )
    schedule = {
        "name": "wsd",
        "warmup_steps": 0,
        "decay_ratio": 1.0,
        "decay_shape": shape,
        "min_lr_ratio": to,
    }
    rates = {
        field: value * share
        for field, value in train.optimizer.model_dump().items()
        if decayed and (field == "lr" or field.endswith("_lr")) and isinstance(value, float)
    }
    unit, size = next((one for one in _UNITS if budget >= one[1]), ("", 1))
    ending = f"-cooldown-{budget / size:g}{unit}"
    default = f"{trunk.name[: LONGEST_NAME - len(ending)]}{ending}"
    changes: dict[str, Any] = {"name": name or default}
    if trunk.own.stages:
        past = cut(trunk.own, step)
        names = {stage.get("name") for stage in past["stages"]}
        last = {
            "name": f"cooldown-{step}" if "cooldown" in names else "cooldown",
            "tokens": budget,
            "schedule": schedule,
        }
        past["stages"].append({**last, "optimizer": rates} if rates else last)
        changes |= {f"train.{path}": value for path, value in past.items()}
    else:
        changes["train.tokens"] = train.tokens_at(step) + budget
        changes["train.schedule"] = {**schedule, "starts_after": step}
        changes |= {f"train.optimizer.{field}": value for field, value in rates.items()}
    if train.batch.stages:
        # They are shares of all steps, whose number changes: their steps stay.
        steps = step + -(-budget // train.tokens_per_step)
        changes["train.batch.stages"] = [
            {**stage.model_dump(), "after": stage.after * train.steps / steps}
            for stage in train.batch.stages
            if stage.after * train.steps < steps
        ]
    spec = fork_spec(trunk.model_dump(mode="json"), changes, step=step)
    return Cooldown(step, changes, spec, peak * share, share, peak * share * to)


def _share(train: TrainConfig, step: int) -> float:
    """Return the rate of a step as a share of the peak of its stage."""
    own = stage_of(train.course, step).config
    return lr_factor(own.schedule, step, own.steps)
