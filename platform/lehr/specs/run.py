"""What a person asks for when they ask for one run."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from lehr.specs.tracking import NO_KEY, Tracking
from lehr_trainer.configs.train import Config, TrainConfig

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
"""Letters, digits, dots, dashes and underscores; begins with a letter or digit."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LEHRS_OWN = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "PYTHONPATH",
        "PYTHONSAFEPATH",
    }
)
"""Set by the platform or by torchrun for each process; another value would break the placement."""


def _check_env(env: dict[str, str]) -> dict[str, str]:
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of an environment variable")
        if name in _LEHRS_OWN or name.startswith("LEHR_"):
            raise ValueError(f"{name} is set by Lehr itself")
        if name == "WANDB_API_KEY":
            raise ValueError(f"{name}: {NO_KEY}")
        if "\0" in value:
            raise ValueError(f"{name} holds a NUL character")
    return env


class Resources(Config):
    """What a run needs of the cluster. All of it is granted at once, or none."""

    gpus: Annotated[int, Field(ge=0, le=1024)] = 1
    """GPUs in all. One rank runs on each; 0 runs one rank on a node's CPU and holds no GPU."""
    nodes: Annotated[int, Field(ge=1, le=128)] = 1
    """Nodes that share the GPUs evenly."""
    gpu_type: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """E.g. A100 or H100: a word of the GPU's name. None takes any."""

    @property
    def ranks(self) -> int:
        """Processes that train: one a GPU, or one without any."""
        return max(self.gpus, 1)

    @model_validator(mode="after")
    def _even(self) -> Self:
        if not self.gpus and self.nodes > 1:
            raise ValueError(f"nodes is {self.nodes}, but without GPUs a run is one rank on one")
        if not self.gpus and self.gpu_type is not None:
            raise ValueError(f"gpu_type is {self.gpu_type}, but gpus is 0")
        if self.gpus % self.nodes:
            raise ValueError(f"nodes {self.nodes} does not divide gpus {self.gpus}")
        return self


class Retries(Config):
    """How often a run may start again, by the kind of cause.

    Out of memory, a bad spec and bad data never retry.
    """

    user: Annotated[int, Field(ge=0)] = 0
    """The training code failed."""
    infrastructure: Annotated[int, Field(ge=0)] = 3
    """A node or process was lost, NCCL timed out, a GPU had an ECC error."""
    preemption: Annotated[int, Field(ge=0)] = 10
    """The run was put aside for another one."""


def _check_place(url: str) -> str:
    from lehr.specs.storage_url import normalised

    return normalised(url)


class CheckpointCopies(Config):
    upload: Annotated[str, AfterValidator(_check_place)] | None = None
    """Where each checkpoint is copied as soon as it is written, under the run's id:
    s3://bucket/prefix, or the whole path of a shared folder. Copies follow the retention of
    train.checkpoint, and a run whose node has vanished goes on from them. None copies nothing."""


class RunSpec(Config):
    kind: Literal["run"] = "run"
    name: Name
    """What the run is called; need not be unique, the newest of a name wins."""
    project: Name = "default"
    """The project that it belongs to."""
    tags: list[str] = []
    """Words to find it by."""
    notes: str = ""
    """Free text, for people."""
    train: TrainConfig
    """The training run itself."""
    resources: Resources = Resources()
    retries: Retries = Retries()
    checkpoints: CheckpointCopies = CheckpointCopies()
    """Copies of its checkpoints."""
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    """Higher goes first; within a priority, first come first served."""
    time_limit_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds of running after which it is stopped (with a checkpoint)."""
    stall_limit_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds without a step, once it has made one, after which it is ended and begun again from
    its last checkpoint; more than its longest save or evaluation takes. None: only shown."""
    env: Annotated[dict[str, str], AfterValidator(_check_env)] = {}
    """Environment variables of the trainer."""
    tracking: Tracking = Tracking()
    """Where else the run is to be seen."""

    @model_validator(mode="after")
    def _ranks_share_the_batch(self) -> Self:
        gpus = self.resources.gpus
        problem = self.train.batch.sharing_problem(self.resources.ranks)
        if problem is not None:
            raise ValueError(f"resources.gpus {gpus}: {problem}")
        if not gpus and self.train.device == "cuda":
            raise ValueError("resources.gpus is 0, but train.device is cuda: make it cpu or auto")
        return self
