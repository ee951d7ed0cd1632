"""The spec of a run, with ``tracking`` (mirrors in other tools) and ``alerts`` (what they do)."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticKnownError

from lehr.errors import UserError
from lehr.specs.evaluations import EXPORT, CheckpointEvaluation, distinct
from lehr.specs.gates import AlertCode
from lehr.specs.program import TORCHRUN, Code, Program
from lehr_trainer.configs.stages import sharing_problem
from lehr_trainer.configs.train import Config, TrainConfig

_KEY = re.compile(r"(?:local-)?[0-9a-f]{40}|wandb_v\d+_\S{20,}")
"""Pattern of W&B's API keys."""
_KEY_FIELDS = frozenset({"api_key", "apikey", "key", "token", "password", "secret"})
NO_KEY = (
    "a W&B key must not be in a spec, which everybody with access to the run can read; set it on "
    "the server: WANDB_API_KEY in its environment, or `wandb login`"
)


def refuse_key(text: str) -> str:
    """Return the text, unless it looks like a W&B API key.

    Raises:
        ValueError: it does. The message does not repeat the text.
    """
    if _KEY.fullmatch(text):
        raise ValueError(f"this looks like a W&B key: {NO_KEY}")
    return text


_Word = Annotated[
    str, Field(min_length=1, max_length=128, pattern=r"^[^/\\#?%:]+$"), AfterValidator(refuse_key)
]
_Project = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"), AfterValidator(refuse_key)
]
_Tag = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(refuse_key)]


class WandbTracking(Config):
    """A mirror of the run in Weights & Biases, made by the server."""

    mode: Literal["online", "offline", "off"] = "online"
    """online: send to W&B; offline: write files on the server's machine for `wandb sync`; off:
    no mirror.
    """
    project: _Project | None = None
    """Project in W&B. None: the run's project."""
    entity: _Word | None = None
    """Team or user in W&B. None: the default of the server's key."""
    group: _Word | None = None
    """Group in W&B. None: the sweep."""
    job_type: _Word | None = None
    """Job type in W&B, a word to filter by."""
    tags: list[_Tag] = []
    """Tags in W&B, in addition to the run's own."""

    @model_validator(mode="before")
    @classmethod
    def _no_key(cls, data: Any) -> Any:
        named = _KEY_FIELDS & data.keys() if isinstance(data, dict) else ()
        if named:
            raise ValueError(f"{min(named)}: {NO_KEY}")
        return data


class Tracking(Config):
    wandb: WandbTracking | None = None
    """Mirror in Weights & Biases. None: no mirror."""


SECRET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Letters, digits, dots, dashes and underscores; starts with a letter or digit."""
AlertAction = Literal["note", "warn", "pause", "rewind", "stop"]
_REWOUND = frozenset({"spikes", "diverging"})
"""Alerts that an earlier checkpoint can cure."""


class AlertActions(Config):
    """What an alert does, once for each alert of a run."""

    actions: dict[AlertCode, AlertAction] = {}
    """Action by the alert's name, e.g. {nan: stop, diverging: pause}. note: record it in the run's
    events. warn: also send a message. pause: also save a checkpoint and free the GPUs, until
    `lehr resume`. rewind (spikes, diverging): also restart from the newest checkpoint before it,
    and skip the data since then. stop: also cancel the run, without saving.
    """
    other: AlertAction = "warn"
    """Action of the alerts that ``actions`` does not name."""
    webhook: Annotated[str, Field(pattern=rf"^{SECRET_NAME.pattern}$")] | None = None
    """Name of the secret with the address that gets the messages, also when the run ends (`lehr
    admin secret set`). None: no messages.
    """

    rewinds: Annotated[int, Field(ge=1, le=1_000)] = 3
    """Number of rewinds of the run; at the next one it is stopped."""

    @model_validator(mode="after")
    def _rewinds_where_it_helps(self) -> Self:
        given = [*self.actions.items(), ("other", self.other)]
        odd = [name for name, action in given if action == "rewind" and name not in _REWOUND]
        if odd:
            raise ValueError(
                f"rewind is no action of {', '.join(odd)}: only of {', '.join(sorted(_REWOUND))}"
            )
        return self

    def action(self, code: AlertCode) -> AlertAction:
        return self.actions.get(code, self.other)


NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
Name = Annotated[str, Field(pattern=rf"^{NAME}$")]
"""Letters, digits, dots, dashes and underscores; starts with a letter or digit."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
CLAIM = {"hypothesis", "baseline"}
_DIRECTION = re.compile(r"\b(lowers|raises)\s+([\w/.-]*\w)")
_UNLESS_NONE = Field(exclude_if=lambda value: value is None)
_LEHRS_OWN = frozenset({*TORCHRUN, "CUDA_VISIBLE_DEVICES", "PYTHONPATH", "PYTHONSAFEPATH"})
"""Set by Lehr or torchrun for each process; another value would break the placement."""
_CHANGE_IMPORTS = frozenset({
    "PYTHONEXECUTABLE", "PYTHONHOME", "PYTHONNOUSERSITE", "PYTHONPLATLIBDIR",
    "PYTHONPYCACHEPREFIX", "PYTHONUSERBASE",
})  # fmt: skip
"""Python would import modules that are not of the run's code."""


def _check_variable(name: str) -> None:
    if not _VARIABLE.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of an environment variable")
    if name in _LEHRS_OWN or name.startswith("LEHR_"):
        raise ValueError(f"{name} is set by Lehr itself")
    if name in _CHANGE_IMPORTS:
        raise ValueError(
            f"{name} changes where Python finds modules; send files by code.include, and name "
            "packages by code.environment"
        )


LONGEST_NOTE = 10_000
"""Characters. Lists of runs show it, so it must stay a note."""
LARGEST_ENV = 100_000
"""Bytes. Linux starts no program with a variable of 128 KiB or more."""


def _check_env(env: dict[str, str]) -> dict[str, str]:
    for name, value in env.items():
        _check_variable(name)
        if name == "WANDB_API_KEY":
            raise ValueError(f"{name}: {NO_KEY}")
        if "\0" in value:
            raise ValueError(f"{name} contains a NUL character")
    size = sum(len(f"{name}={value}".encode()) + 1 for name, value in env.items())
    if size > LARGEST_ENV:
        raise ValueError(
            f"all variables together have {size:,} bytes, and at most {LARGEST_ENV:,} are "
            "allowed; put the text into a file"
        )
    return env


def _check_secrets(secrets: dict[str, str], info: ValidationInfo) -> dict[str, str]:
    for variable, name in secrets.items():
        _check_variable(variable)
        if not SECRET_NAME.fullmatch(name):
            # Without the text: somebody may have written the secret itself here.
            raise ValueError(
                f"{variable} must have the name of a secret, not its value: letters, digits, "
                "dots, dashes and underscores, at most 64; see lehr admin secret ls"
            )
        if variable in (info.data.get("env") or {}):
            raise ValueError(f"{variable} is also in env")
    return secrets


class Resources(Config):
    """What a run needs of the cluster. All of it is allocated together."""

    gpus: Annotated[int, Field(ge=0, le=1024)] = 1
    """Number of GPUs over all nodes, one rank on each. 0: one rank on a node's CPU, no GPU."""
    nodes: Annotated[int, Field(ge=1, le=128)] = 1
    """Nodes. Each has the same number of GPUs."""
    gpu_type: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """A word of the GPU's name, e.g. A100 or H100. None: any GPU."""

    @property
    def ranks(self) -> int:
        """Training processes: one per GPU, or one without GPUs."""
        return max(self.gpus, 1)

    @model_validator(mode="after")
    def _even(self) -> Self:
        if not self.gpus and self.nodes > 1:
            raise ValueError(f"nodes is {self.nodes}, but a run without GPUs uses one node")
        if not self.gpus and self.gpu_type is not None:
            raise ValueError(f"gpu_type is {self.gpu_type}, but gpus is 0")
        if self.gpus % self.nodes:
            each = self.gpus // self.nodes + 1
            raise ValueError(
                f"nodes {self.nodes} does not divide gpus {self.gpus}, the number over all nodes: "
                f"gpus {each * self.nodes} gives each node {each}"
            )
        return self


class Retries(Config):
    """How often a run may restart automatically, by cause.

    A run that fails from lack of memory, a wrong spec or bad data is never retried.
    """

    user: Annotated[int, Field(ge=0)] = 0
    """Errors of the training code."""
    infrastructure: Annotated[int, Field(ge=0)] = 3
    """Lost nodes and processes, NCCL timeouts, ECC errors of a GPU, full disks, data that cannot be
    reached. Counts again from 0 after an attempt that has saved a newer checkpoint.
    """
    preemption: Annotated[int, Field(ge=0)] = 10
    """Preemptions: the machine was taken back. A stop at the end of a node that lost work of the
    attempt counts, too. Counts again from 0 like ``infrastructure``.
    """


def _check_place(url: str) -> str:
    from lehr.specs.storage_url import normalised

    return normalised(url)


class CheckpointCopies(Config):
    upload: Annotated[str, AfterValidator(_check_place)] | None = None
    """Storage to which each checkpoint is copied once written, in a folder named after the run:
    s3://bucket/prefix, or the absolute path of a shared folder. Copies follow the retention of
    train.checkpoint. A run whose node is lost resumes from its copy. None: no copies.
    """


class RunSpec(Config):
    kind: Literal["run"] = "run"
    name: Name
    """Name of the run. Need not be unique: a name means the newest run that has it."""
    project: Name = "default"
    """Project of the run."""
    tags: list[str] = []
    """Tags, to find the run by."""
    notes: Annotated[str, Field(max_length=LONGEST_NOTE)] = ""
    """Notes in free text."""
    hypothesis: Annotated[str | None, Field(max_length=500), _UNLESS_NONE] = None
    """What the run claims: `qk-norm lowers val/loss`. `lehr judge` decides it."""
    baseline: Annotated[str | None, Field(max_length=100), _UNLESS_NONE] = None
    """Id of the run that hypothesis compares it with."""
    trainer: Program | None = None
    """A training program of your own, in place of train."""
    train: Annotated[TrainConfig | None, Field(validate_default=True)] = None
    """Configuration of Lehr's trainer."""
    evaluations: Annotated[
        list[CheckpointEvaluation],
        Field(max_length=20, exclude_if=lambda value: not value),
        AfterValidator(distinct),
    ] = []
    """Commands that evaluate each kept checkpoint beside the training, on GPUs that no training
    needs.
    """
    resources: Resources = Resources()
    retries: Retries = Retries()
    checkpoints: CheckpointCopies = CheckpointCopies()
    """Copies of its checkpoints."""
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    """Higher values start first; equal ones in order of submission."""
    preemptible: bool = False
    """Whether a run of a higher priority may pause this one when it lacks GPUs. It then saves, is
    queued again and resumes from there. Each time uses one of retries.preemption; without one left,
    it is not paused.
    """
    time_limit_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds of running after which the run saves a checkpoint and stops."""
    stall_limit_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds without a step after which the run is restarted from its last checkpoint. Counts
    after the first step. Must exceed the longest save or evaluation. None: only shown.
    """
    env: Annotated[dict[str, str], AfterValidator(_check_env)] = {}
    """Environment variables of the trainer."""
    secrets: Annotated[dict[str, str], AfterValidator(_check_secrets)] = {}
    """More variables of the trainer: each with the name of a secret of the server, whose value it
    gets (`lehr admin secret set NAME`). No value is stored with the run.
    """
    code: Code = Code()
    """The code that the run trains with."""
    tracking: Tracking = Tracking()
    """Mirrors of the run in other tools."""
    alerts: AlertActions = AlertActions()
    """What an alert about its curves does."""

    @field_validator("train", mode="before")
    @classmethod
    def _required_without_program(cls, train: Any, info: ValidationInfo) -> Any:
        # Reported as a field without a default: most specs are of Lehr's trainer.
        if train is None and "trainer" in info.data and info.data["trainer"] is None:
            raise PydanticKnownError("missing")
        return train

    @property
    def own(self) -> TrainConfig:
        """Return the configuration of Lehr's trainer.

        Raises:
            UserError: the run trains with a program of its own.
        """
        if self.train is None:
            entry = self.trainer.entry if self.trainer else ""
            raise UserError(
                f"{self.name} trains with a program of its own, {entry}. Its model, its "
                "memory and its data are not known."
            )
        return self.train

    @property
    def steps(self) -> int | None:
        return self.trainer.total_steps if self.trainer is not None else self.own.steps

    @property
    def claim(self) -> dict[str, Any] | None:
        """Return the claim of the hypothesis, as ``ClaimView`` has it."""
        words = _DIRECTION.search(self.hypothesis or "")
        given = self.model_dump(include=CLAIM)
        return {**given, "direction": words[1], "metric": words[2]} if words else None

    @model_validator(mode="after")
    def _whole_claim(self) -> Self:
        if (self.hypothesis or self.baseline) and not (self.claim and self.baseline):
            raise ValueError(
                "a claim needs a hypothesis with a direction and a metric, such as `qk-norm lowers "
                "val/loss`, and as its baseline the id of the run that it is compared with"
            )
        return self

    @model_validator(mode="after")
    def _one_trainer(self) -> Self:
        if self.train is not None and self.trainer is not None:
            raise ValueError(
                "train and trainer are both given; keep train for Lehr's trainer, or trainer for a "
                "program"
            )
        if self.trainer is not None and "rewind" in self.alerts.actions.values():
            raise ValueError(
                "alerts.actions: rewind is for Lehr's own trainer, and a program reads its data by "
                "itself; use pause or stop"
            )
        return self

    @property
    def sends_files(self) -> bool:
        script = self.trainer is not None and self.trainer.script is not None
        return script or self.code.sends_files

    @model_validator(mode="after")
    def _parts_are_sent(self) -> Self:
        parts = self.train.parts if self.train else None
        exports = any(EXPORT in " ".join(e.command) for e in self.evaluations)
        if exports and (self.train is None or (parts is not None and parts.model is not None)):
            own = "trainer" if parts is None else f"model, but parts.model is {parts.model}"
            raise ValueError(f"evaluations: {EXPORT} needs Lehr's {own}; use {{checkpoint}}")
        if parts is not None and not self.code.include and self.code.digest is None:
            raise ValueError(
                f"train.parts names {', '.join(parts.named.values())}, but code.include is empty: "
                'name the files of the project, e.g. code: {include: ["."]}'
            )
        return self

    @model_validator(mode="after")
    def _ranks_share_the_batch(self) -> Self:
        if self.train is None:
            return self
        gpus = self.resources.gpus
        if problem := sharing_problem(self.train.spans, self.resources.ranks):
            raise ValueError(f"resources.gpus {gpus}: {problem}")
        shard = self.train.parallel.shard
        if shard != "none" and self.resources.ranks == 1:
            raise ValueError(
                f"train.parallel.shard is {shard}, but resources.gpus is {gpus}: one process has "
                "nobody to share a model with; use 2 GPUs or more, or shard: none"
            )
        if not gpus and self.train.device == "cuda":
            raise ValueError("resources.gpus is 0, but train.device is cuda: make it cpu or auto")
        return self
