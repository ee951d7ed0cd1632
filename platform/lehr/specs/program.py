"""``code`` and ``trainer`` of a spec: files that belong to the run, and a training program of the
user's own in place of Lehr's trainer.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from lehr.specs.prints import checked
from lehr_trainer.configs.train import Config

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

_MODULE = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
_ARGUMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,199}")
CHECKPOINT = "{checkpoint}"
"""In ``resume_args``: the folder of the checkpoint to resume from."""
COMMAND = "lehr_log.command"
"""The module that becomes any command, the words of which are its arguments."""
TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_UNLESS_EMPTY = Field(exclude_if=lambda value: not value)
"""Left out at its default: nodes with an older Lehr read the config as well."""


class Program(Config):
    """A script or a module that trains. It needs no change to run; `docs/your-code.md` describes
    how it logs, saves and stops.
    """

    external: Annotated[bool, _UNLESS_EMPTY] = False
    """A process that Lehr did not start reports the run: `lehr_log.init` makes it. Without a script
    or module; args are its config.
    """
    script: (
        Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[^/\\].*\.py$")] | None
    ) = None
    """Script, relative to code.root, e.g. train.py."""
    module: Annotated[str, Field(max_length=500, pattern=_MODULE)] | None = None
    """Module in place of a script, as in `python -m`."""
    launcher: Annotated[Literal["torchrun"] | None, _UNLESS_EMPTY] = None
    """torchrun: a single process, too, gets the variables of torchrun (RANK, WORLD_SIZE, ...). By
    default only the processes of several GPUs do.
    """
    data: Annotated[list[str], Field(max_length=20), _UNLESS_EMPTY] = []
    """Files or folders of the project that are linked into the working folder instead of sent: what
    git ignores, or what is large. Each node needs them at the same path.
    """
    data_files: Annotated[dict[str, str], _UNLESS_EMPTY] = {}
    """What data was at the submission; the command line and the client write it."""
    factors: Annotated[dict[str, float], _UNLESS_EMPTY] = {}
    """Factors from what the program logs to Lehr's unit, for names that show none: `mfu: 0.01` if
    it is in percent. Without it, such a metric is not taken for the one of Lehr.
    """
    prints: Annotated[
        list[Annotated[str, Field(max_length=500)]],
        Field(max_length=20),
        AfterValidator(checked),
        _UNLESS_EMPTY,
    ] = []
    """Patterns of the lines that the program prints, in place of any other log:
    `iter {step}: loss {train/loss}`. {name} is a number and {} any text. Without {step} in any
    pattern, lines of the first one are counted.
    """
    args: dict[str, Any] = {}
    """Arguments by name; null leaves one out. A sweep may vary any of them: trainer.args.lr."""
    argv: Annotated[list[str], Field(max_length=1000)] = []
    """Arguments that are passed first, as they are."""
    style: Literal["equals", "space", "hydra", "file"] = "equals"
    """How args are passed. equals: --key=value; space: --key value; hydra: key=value; file: as a
    YAML file, whose path is the value of file_arg.
    """
    flags: Annotated[list[str], Field(max_length=1000)] = []
    """Arguments without a value: --key if true, nothing if false."""
    file_arg: Annotated[str, Field(min_length=1, max_length=200)] = "--config"
    """For style file: the argument before the file's path."""
    resume_args: dict[str, Any] = {}
    """Arguments that are laid over args when an attempt resumes. {checkpoint} in a value is the
    folder of the checkpoint.
    """
    saves: Annotated[list[str], Field(max_length=20)] = []
    """Files or folders that the program saves as its checkpoint, as patterns below its working
    folder: `out/ckpt.pt`. Each change becomes a checkpoint; an attempt that resumes finds them
    where they were.
    """
    saves_newest: bool = False
    """Of all files and folders that saves matches, only the one that changed last is a checkpoint.
    For programs that give each one a new name: `out/*.ckpt`, `out/checkpoint-*`.
    """
    steps: Annotated[int, Field(ge=1, lt=2**40)] | None = None
    """Steps that it trains, or give steps_arg. Without both, progress is the step alone, and no end
    is estimated.
    """
    steps_arg: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Name of the argument that is the number of steps, e.g. max_iters."""
    tokens_per_step: Annotated[int, Field(ge=1, lt=2**40)] = 1
    """Tokens of a step, for axes in tokens. With 1, such an axis counts steps."""
    wandb: Literal["lehr", "records"] = "lehr"
    """What `import wandb` is in the program. lehr: the same calls, recorded at once, without W&B.
    records: the real package, offline; its records are read when it writes them, often
    only at the end.
    """
    keep: Annotated[int, Field(ge=2, le=1000)] = 2
    """Checkpoints to keep."""
    deterministic: Annotated[bool, _UNLESS_EMPTY] = False
    """The program trains bitwise the same each time. Then no attempt of the run resumes under other
    versions of Python, CUDA, the driver or any distribution.
    """
    stop_grace_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """Seconds that the program has to save after SIGTERM, before it is killed."""

    @field_validator("args", "resume_args", "argv", "file_arg")
    @classmethod
    def _possible(cls, given: Any) -> Any:
        for value in _leaves(given):
            if isinstance(value, str) and "\0" in value:
                raise ValueError(f"{value[:50]!r} contains a NUL, which no argument can")
        return given

    @field_validator("args", "resume_args")
    @classmethod
    def _named(cls, args: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        for name in [] if info.data.get("external") else args:
            if not _ARGUMENT.fullmatch(name):
                raise ValueError(f"{name[:50]!r} is not the name of an argument: leave out dashes")
        return args

    @field_validator("data")
    @classmethod
    def _of_project(cls, paths: list[str]) -> list[str]:
        found = [path.removeprefix("./").rstrip("/") for path in paths]
        for path in found:
            if "\0" in path or {"", ".", ".."} & set(path.split("/")):
                raise ValueError(f"{path!r} is not a path below the project's folder: data/books")
        return found

    @field_validator("saves")
    @classmethod
    def _inside(cls, patterns: list[str], info: ValidationInfo) -> list[str]:
        for pattern in patterns:
            if not pattern or pattern.startswith("/") or ".." in pattern.split("/"):
                raise ValueError(f"{pattern!r} is not a path below the program's working folder")
            parts = [part for part in pattern.split("/") if part not in {"", "."}]
            if not parts:
                raise ValueError(f"{pattern!r} is the whole working folder; name what is saved")
            if any(pattern.startswith(f"{path}/") for path in info.data.get("data", [])):
                raise ValueError(f"{pattern!r} is part of trainer.data, which is only read")
            if any("**" in part and part != "**" for part in parts):
                raise ValueError(f"{pattern!r}: ** stands for whole folders, as in out/**/*.pt")
        return patterns

    @model_validator(mode="after")
    def _one_entry(self) -> Self:
        if self.external:
            return self
        if (self.script is None) == (self.module is None):
            raise ValueError(
                "script and module are both given; keep one of them"
                if self.script is not None
                else "script or module is missing; give one of them"
            )
        if self.script is not None and ".." in self.script.split("/"):
            raise ValueError(f"script {self.script!r} is outside of the project")
        return self

    @model_validator(mode="after")
    def _length(self) -> Self:
        if self.steps_arg is not None:
            if self.steps is not None:
                raise ValueError("steps and steps_arg are both given; keep one of them")
            steps = self.args.get(self.steps_arg)
            if not isinstance(steps, int) or isinstance(steps, bool) or not 1 <= steps < 2**40:
                raise ValueError(
                    f"steps_arg is {self.steps_arg}, but args.{self.steps_arg} is {steps!r}, not a "
                    "number of steps"
                )
        return self

    @property
    def total_steps(self) -> int | None:
        return self.steps if self.steps_arg is None else int(self.args[self.steps_arg])

    @property
    def entry(self) -> str:
        if self.module == COMMAND:
            return " ".join(self.argv[:3])
        return self.script or self.module or "which Lehr did not start"


def _leaves(value: Any) -> Iterator[Any]:
    """Yield all keys, and all values that hold no others."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _leaves(one)
    else:
        yield value


def arguments(program: Program, *, file: str, checkpoint: str | None) -> list[str]:
    """Return the arguments of the program's command line.

    Args:
        program: what to run.
        file: for style file, the path of the file of arguments.
        checkpoint: the folder to resume from; None for a fresh start.
    """
    if program.style == "file":
        return [*program.argv, program.file_arg, file]
    found = list(program.argv)
    for name, value in effective_args(program, checkpoint).items():
        found += _rendered(program, name, value)
    return found


def effective_args(program: Program, checkpoint: str | None) -> dict[str, Any]:
    """Return the arguments of an attempt, with those of a resumption if it resumes."""
    given: dict[str, Any] = dict(program.args)
    if checkpoint is not None:
        given |= {name: _placed(value, checkpoint) for name, value in program.resume_args.items()}
    return {name: value for name, value in given.items() if value is not None}


def _placed(value: Any, checkpoint: str) -> Any:
    return value.replace(CHECKPOINT, checkpoint) if isinstance(value, str) else value


def _rendered(program: Program, name: str, value: Any) -> list[str]:
    if isinstance(value, dict):
        inner = [_rendered(program, f"{name}.{key}", one) for key, one in value.items()]
        return [word for words in inner for word in words]
    if name in program.flags:
        return [f"--{name}"] if value else []
    if program.style == "hydra":
        return [f"{name}={_hydra(value)}"]
    if isinstance(value, list):
        words = [_text(one) for one in value]
        if program.style == "space":
            return [f"--{name}", *words]
        return [f"--{name}={word}" for word in words]
    if program.style == "space":
        return [f"--{name}", _text(value)]
    return [f"--{name}={_text(value)}"]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _hydra(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(_hydra(one) for one in value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and re.search(r"[\s,=\[\]{}'\"()]", value):
        return json.dumps(value)
    return _text(value)


def _plain_pattern(pattern: str) -> str:
    if pattern.startswith("/") or ".." in pattern.split("/"):
        raise ValueError(f"{pattern!r} leads out of the project; patterns are relative to its root")
    if "\n" in pattern or (compiled([pattern]) is None):
        raise ValueError(f"{pattern!r} is not a pattern of .gitignore")
    return pattern


def compiled(lines: Sequence[str]) -> GitIgnoreSpec | None:
    """Return patterns of .gitignore, ready to match; None if one of them is not one."""
    from pathspec import GitIgnoreSpec

    with warnings.catch_warnings():
        # "[[a]" has the meaning that it has for git; only a later Python may read it otherwise.
        warnings.simplefilter("ignore", FutureWarning)
        try:
            return GitIgnoreSpec.from_lines(lines)
        except (ValueError, re.error):
            return None


def from_root(patterns: Sequence[str]) -> GitIgnoreSpec:
    """Return patterns that each begin at the project's root; ``.`` means all of it."""
    from pathspec import GitIgnoreSpec

    lines = []
    for pattern in patterns:
        path = pattern.removeprefix("!").removeprefix("./")
        lines.append("!" * pattern.startswith("!") + ("/*" if path in {"", "."} else f"/{path}"))
    return GitIgnoreSpec.from_lines(lines)


_Pattern = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_plain_pattern)]


def _environment_file(name: str) -> str:
    parts = name.split("/")
    if len(name) > 500 or "\0" in name or not all(parts) or {".", ".."} & set(parts):
        raise ValueError(f"{name[:50]!r} is not a file of the project, relative to its root")
    if parts[-1] != "uv.lock" and not parts[-1].endswith(".txt"):
        raise ValueError(f"{name!r} is neither a uv.lock nor a requirements.txt")
    return name


class Code(Config):
    root: Annotated[str, Field(min_length=1, max_length=4000)] = "."
    """Folder of the project: absolute, or relative to the spec's file."""
    include: Annotated[list[_Pattern], Field(max_length=1000)] = []
    """Files of the project that belong to the run, as patterns of .gitignore from the root on:
    `train.py`, `src/`, `*.py` (in the root alone), `**/*.py`. A file that .gitignore names is left
    out. Empty: Lehr's trainer alone; with trainer.script, what git tracks and what it imports.
    """
    exclude: Annotated[list[_Pattern], Field(max_length=1000)] = []
    """Files to leave out again."""
    environment: Annotated[str, AfterValidator(_environment_file)] | None = None
    """File of the project that names the packages to train with: requirements.txt or uv.lock. Each
    node builds it once, by uv. None: the packages of the node.
    """
    evaluation: Annotated[list[_Pattern], Field(max_length=100), _UNLESS_EMPTY] = []
    """Files that evaluate; claims against this run must have the same. Empty: those of
    lehr_trainer; with a program, all.
    """
    limit_mb: Annotated[int, Field(ge=1, le=1000)] = 100
    """Maximum size of the code, in megabytes."""
    send_secrets: Annotated[list[_Pattern], Field(max_length=100)] = []
    """Files that look like secrets and are sent all the same."""
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """The capsule: SHA-256 of the code that every attempt trains with. None: the code as it is when
    the run is submitted.
    """

    @property
    def sends_files(self) -> bool:
        return bool(self.include) or self.environment is not None
