"""Typed views of recorded specs: of a run for Lehr's trainer or a program, and of a sweep."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lehr.base.names import ARGUMENTS, seed_path
from lehr_trainer.configs.budget import ForkedAt
from lehr_trainer.configs.schedule import ScheduleConfig
from lehr_trainer.configs.stages import StageConfig, StageSpan, span_of, spans
from lehr_trainer.configs.train import BatchConfig, CheckpointConfig


@dataclass(frozen=True, slots=True)
class StoredSpec:
    values: Mapping[str, Any]

    @property
    def train(self) -> dict[str, Any]:
        """The config of Lehr's trainer; empty for a program."""
        return self.values.get("train") or {}

    @property
    def program(self) -> dict[str, Any]:
        """A program of the user's own; empty for Lehr's trainer."""
        return self.values.get("trainer") or {}

    @property
    def external(self) -> bool:
        """Whether a process reports it that Lehr did not start."""
        return bool(self.program.get("external"))

    @property
    def config(self) -> dict[str, Any]:
        return self.train or self.program

    @property
    def resources(self) -> dict[str, Any]:
        return dict(self.values["resources"])

    @property
    def gpus(self) -> int:
        return int(self.values["resources"]["gpus"])

    @property
    def gpu_type(self) -> str | None:
        gpu_type: str | None = self.values["resources"]["gpu_type"]
        return gpu_type

    @property
    def time_limit_s(self) -> float | None:
        return self.values.get("time_limit_s")

    @property
    def stall_limit_s(self) -> float | None:
        return self.values.get("stall_limit_s")

    @property
    def env(self) -> dict[str, str]:
        return dict(self.values["env"])

    @property
    def code_digest(self) -> str | None:
        return (self.values.get("code") or {}).get("digest")

    @property
    def upload(self) -> str | None:
        return (self.values.get("checkpoints") or {}).get("upload")

    @property
    def total_steps(self) -> int | None:
        if self.train:
            return int(self.train["steps"])
        named = self.program["steps_arg"]
        steps = self.program["steps"] if named is None else self.program["args"][named]
        return None if steps is None else int(steps)

    @property
    def spans(self) -> list[StageSpan]:
        """The steps of its stages; a program has one."""
        train = [self.train.get(name) for name in ("batch", "stages", "forked_at")]
        return spans_of(json.dumps([*train, self.program.get("tokens_per_step")]))

    @property
    def tokens_per_step(self) -> int:
        """Of its last stage."""
        return self.spans[-1].batch.tokens_per_step

    def tokens_at(self, step: int) -> int:
        """Return the tokens trained on after ``step`` steps, those before a fork included."""
        return span_of(self.spans, step).tokens_at(step)

    @property
    def changes(self) -> tuple[int, ...]:
        """Steps after which another stage or sequence length begins, so the loss may jump."""
        batch = BatchConfig.model_validate(self.train["batch"])
        later = (span.first for span in self.spans[1:])
        return (*later, *batch.changes(self.train["steps"]))

    @property
    def warmup_steps(self) -> int:
        """Of the first schedule, of Lehr's trainer."""
        schedules = [stage.get("schedule") for stage in self.train.get("stages") or [{}]]
        later = zip(self.spans[1:], schedules[1:], strict=True)
        end = next((span.first for span, own in later if own), self.train["steps"])
        first = schedules[0] or self.train["schedule"]
        return ScheduleConfig.model_validate(first).warmup(end)

    @property
    def seed(self) -> int | None:
        """The seed; None for a program without an argument of such a name."""
        if self.train:
            return int(self.train["seed"])
        args = self.program["args"]
        path = seed_path(args)
        seed = None if path is None else args[path.removeprefix(ARGUMENTS)]
        return seed if isinstance(seed, int) else None

    @property
    def checkpoint_policy(self) -> CheckpointConfig:
        if self.train:
            return CheckpointConfig.model_validate(self.train["checkpoint"])
        return program_policy(self.program["keep"])

    @property
    def stop_grace_s(self) -> float | None:
        """Seconds that a program has to save when it is stopped; None for Lehr's trainer."""
        return float(self.program["stop_grace_s"]) if self.program else None

    @property
    def saves_when_stopped(self) -> bool:
        """Whether it saves when it is stopped: Lehr's trainer does, and a program that names what
        it saves.
        """
        return not self.program or bool(self.program.get("saves"))


@dataclass(frozen=True, slots=True)
class StoredSweep:
    values: Mapping[str, Any]

    @property
    def run(self) -> StoredSpec:
        """Its trials' spec, before their parameters."""
        return StoredSpec(self.values["run"])

    @property
    def metric(self) -> str:
        return str(self.values["metric"]["name"])

    @property
    def goal(self) -> Any:
        return self.values["metric"]["goal"]

    @property
    def method(self) -> Any:
        return self.values["method"]

    @property
    def max_concurrent(self) -> int | None:
        return self.values.get("max_concurrent")


@lru_cache(maxsize=1024)
def spans_of(course: str) -> list[StageSpan]:
    """Return the steps of the stages of a recorded run.

    ``course`` is JSON: a list of batch, stages, forked_at of ``train``, and a program's tokens per
    step. The last span of a run without stages has no end.
    """
    batch, stages, forked_at, declared = json.loads(course)
    shape = batch or {"sequences": declared, "sequence_length": 1}
    if not stages:  # Nothing else counts, and a spec of another version may have other fields.
        shape = {name: shape[name] for name in ("sequences", "sequence_length")}
    return spans(
        [StageConfig.model_validate(stage) for stage in stages or []],
        BatchConfig.model_validate(shape),
        None if forked_at is None else ForkedAt.model_validate(forked_at),
    )


def program_policy(keep: int) -> CheckpointConfig:
    """Return the policy of a program's run: its newest checkpoints stay."""
    return CheckpointConfig(keep_last=keep, keep_best=False)
