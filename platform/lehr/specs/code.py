"""``code`` of a spec: the files that belong to the run besides Lehr's own trainer."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from lehr_trainer.configs.train import Config

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec


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
        """Return whether files of the project belong to the run."""
        return bool(self.include) or self.environment is not None
