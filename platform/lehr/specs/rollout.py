"""What a person asks for when they want a run brought up in stages, with a gate after each.

From a tiny model on a CPU over one GPU and two to the whole run: a bug should cost the smallest
stage that shows it. A newcomer writes ``kind``, ``name`` and ``run``; all else has defaults.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from lehr.specs.gates import CpuGates, Gates, LastGates
from lehr.specs.run import Name, RunSpec
from lehr_trainer.configs.train import Config, PositiveInt

StageName = Literal["cpu", "one_gpu", "two_gpus", "all"]
STAGES: tuple[StageName, ...] = ("cpu", "one_gpu", "two_gpus", "all")
"""In their order."""


Steps = Annotated[int, Field(ge=2)]
"""A run of fewer has no middle to go on from."""


class Stage(Config):
    """A rehearsal of the run: fewer GPUs, fewer steps, each GPU's share of the batch the same."""

    enabled: bool = True
    """false leaves the stage out."""
    gpus: Annotated[int, Field(ge=0, le=1024)] = 1
    """GPUs in all; 0 trains on the CPU and holds none."""
    nodes: Annotated[int, Field(ge=1, le=128)] = 1
    """Nodes that share the GPUs evenly."""
    steps: Steps = 250
    """Optimizer steps, at most the run's own. The schedule is the run's, in proportion."""
    scale: Literal["tiny", "run"] = "run"
    """run: the run's model, and its batch for each GPU. tiny: the same kind of model with two
    narrow layers, [8, 256] tokens at most, fp32 and no compiler: what any CPU trains in minutes;
    AdamW's rate grows as the width shrinks (muP). The data, the tokenizer, the optimizer and the
    seed are the run's either way."""
    set: dict[str, Any] = {}
    """Values by dotted path, laid over the stage's run, e.g. ``train.batch.sequences: 64``."""
    gates: Gates = Gates()


class CpuStage(Stage):
    gpus: Annotated[int, Field(ge=0, le=1024)] = 0
    """GPUs in all; 0 trains on the CPU and holds none."""
    steps: Steps = 60
    """Optimizer steps, at most the run's own. The schedule is the run's, in proportion."""
    scale: Literal["tiny", "run"] = "tiny"
    """run: the run's model, and its batch for each GPU. tiny: the same kind of model with two
    narrow layers, [8, 256] tokens at most, fp32 and no compiler: what any CPU trains in minutes;
    AdamW's rate grows as the width shrinks (muP). The data, the tokenizer, the optimizer and the
    seed are the run's either way."""
    gates: CpuGates = CpuGates()


class TwoGpuStage(Stage):
    gpus: Annotated[int, Field(ge=0, le=1024)] = 2
    """GPUs in all; 0 trains on the CPU and holds none."""
    steps: Steps = 100
    """Optimizer steps, at most the run's own. The schedule is the run's, in proportion."""


class LastStage(Config):
    """The run itself, whole, as it was written."""

    judge_after: PositiveInt = 100
    """The step at which its gates are judged, while it goes on; at most its last. What can be told
    before (the first loss, NaN, too much memory) stops it before."""
    gates: LastGates = LastGates()


class Stages(Config):
    """One after another; one that asks for more GPUs than the run itself is left out."""

    cpu: CpuStage = CpuStage()
    """On a CPU, with a tiny model: the bugs of the code, of the data and of the configuration."""
    one_gpu: Stage = Stage()
    """The first on a GPU: kernels, memory, speed."""
    two_gpus: TwoGpuStage = TwoGpuStage()
    """The first with ranks that have to agree."""
    all: LastStage = LastStage()
    """The run itself."""


class RolloutSpec(Config):
    kind: Literal["rollout"] = "rollout"
    name: Name
    """What the rollout is called; its runs are ``<name>-cpu``, ``<name>-one-gpu``, ..."""
    project: Name = "default"
    """The project that the rollout and its runs belong to."""
    tags: list[str] = []
    """Words to find it by; its runs carry them too."""
    notes: str = ""
    """Free text, for people."""
    run: RunSpec
    """The run that is rolled out: the last stage. Its name and project are the rollout's."""
    stages: Stages = Stages()

    @model_validator(mode="before")
    @classmethod
    def _name_the_run(cls, data: Any) -> Any:
        """``run.name`` need not be given: its stages are named after the rollout anyway."""
        if isinstance(data, dict) and isinstance(data.get("run"), dict) and "name" in data:
            return {**data, "run": {"name": data["name"], **data["run"]}}
        return data
