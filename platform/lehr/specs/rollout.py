"""The spec of a rollout: a run brought up in stages, each followed by gates.

The stages go from a tiny model on a CPU over one GPU and two to the whole run, so that a bug costs
only the smallest stage that shows it. Only ``kind``, ``name`` and ``run`` are required.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from lehr.specs.gates import CpuGates, Gates, LastGates
from lehr.specs.overrides import name_the_run
from lehr.specs.run import LONGEST_NOTE, Name, RunSpec
from lehr_trainer.configs.base import Config, PositiveInt

StageName = Literal["cpu", "one_gpu", "two_gpus", "all"]
STAGES: tuple[StageName, ...] = ("cpu", "one_gpu", "two_gpus", "all")
"""In order."""


Gpus = Annotated[
    int, Field(ge=0, le=1024, description="Number of GPUs over all nodes; 0: train on the CPU.")
]
Steps = Annotated[
    int,
    Field(
        ge=2,  # With fewer there is no middle checkpoint to resume from.
        description="Optimizer steps, at most those of the run. The schedule is shortened in "
        "proportion.",
    ),
]
Scale = Annotated[
    Literal["tiny", "run"],
    Field(
        description="run: the run's model, and its batch on each GPU. tiny: the same kind of model "
        "with two narrow layers, at most [8, 256] tokens, fp32, not compiled: any CPU trains it in "
        "minutes. AdamW's learning rate rises as the width shrinks (muP). Data, tokenizer, "
        "optimizer and seed are those of the run in both cases."
    ),
]


class Stage(Config):
    """A small version of the run: fewer GPUs, fewer steps, the same batch on each GPU."""

    enabled: bool = True
    """false: leave the stage out."""
    gpus: Gpus = 1
    nodes: Annotated[int, Field(ge=1, le=128)] = 1
    """Nodes. Each has the same number of GPUs."""
    steps: Steps = 250
    scale: Scale = "run"
    set: dict[str, Any] = {}
    """Values by dotted path that replace those of the run, e.g. ``train.batch.sequences: 64``."""
    gates: Gates = Gates()


class CpuStage(Stage):
    gpus: Gpus = 0
    steps: Steps = 60
    scale: Scale = "tiny"
    gates: CpuGates = CpuGates()


class TwoGpuStage(Stage):
    gpus: Gpus = 2
    steps: Steps = 100


class LastStage(Config):
    """The run itself, as written."""

    judge_after: PositiveInt = 100
    """Step at which the gates are judged while the run continues; at most the last step.
    Failures that show earlier (first loss, NaN, too much memory) stop the run at once.
    """
    gates: LastGates = LastGates()


class Stages(Config):
    """Stages in order. A stage that needs more GPUs than the run itself is left out."""

    cpu: CpuStage = CpuStage()
    """A tiny model on a CPU: finds errors in code, data and configuration."""
    one_gpu: Stage = Stage()
    """One GPU: kernels, memory, speed."""
    two_gpus: TwoGpuStage = TwoGpuStage()
    """Two GPUs: communication between ranks."""
    all: LastStage = LastStage()
    """The run itself."""


class RolloutSpec(Config):
    kind: Literal["rollout"] = "rollout"
    name: Name
    """Name of the rollout. Its runs are ``<name>-cpu``, ``<name>-one-gpu``, ..."""
    project: Name = "default"
    """Project of the rollout and its runs."""
    tags: list[str] = []
    """Tags of the rollout and its runs."""
    notes: Annotated[str, Field(max_length=LONGEST_NOTE)] = ""
    """Notes in free text."""
    run: RunSpec
    """The run to roll out: the last stage. It takes name and project from the rollout."""
    stages: Stages = Stages()

    _named = model_validator(mode="before")(name_the_run)
