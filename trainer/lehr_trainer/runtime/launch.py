"""Find the attempt, redirect output and read the config, before torch is imported.

Standard library and Pydantic only, so that a wrong path or config is reported at once.
"""

from __future__ import annotations

import difflib
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from lehr_trainer.configs.fields import field_names, locate
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract import layout
from lehr_trainer.contract.orders import LaunchNote
from lehr_trainer.errors import BadConfig

_RANK_0_SPEAKS_WITHIN_S = 60


@dataclass(frozen=True)
class RunPaths:
    """The folders that this process writes in."""

    run_dir: Path
    attempt_dir: Path
    note: LaunchNote
    standalone: bool
    """Whether it runs without the platform: rank 0 made the attempt's folder."""

    @property
    def attempt(self) -> int:
        return layout.attempt_number(self.attempt_dir) or 1


def wait_for_rank0_report() -> None:
    """Wait to be ended by torchrun, for a rank that failed before it met the others.

    Rank 0 fails of the same cause and records it. If this rank exited first, torchrun would
    end rank 0 before it has recorded the failure.
    """
    ending = {signal.SIGTERM, signal.SIGINT}
    for number in ending:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    signal.sigtimedwait(ending, _RANK_0_SPEAKS_WITHIN_S)


def find_place(path: Path, *, make_attempt: bool) -> RunPaths | None:
    """Return the attempt's folder if ``path`` is one; else the next attempt of the run ``path``.

    Where another process makes that attempt (not ``make_attempt``), None; the folder comes later.

    Raises:
        BadConfig: ``path`` is not a run, or its attempt was used before.
    """
    path = path.absolute()
    if layout.attempt_number(path) is not None and (path.parent / layout.CONFIG).is_file():
        # The stream may have notices already: of the environment that a node has built.
        if layout.rank_log(path, 0).exists() and make_attempt:
            raise BadConfig(f"{path} was already used; each launch needs its own attempt directory")
        return RunPaths(path.parent, path, _read_note(path / layout.LAUNCH), standalone=False)
    if not (path / layout.CONFIG).is_file():
        raise BadConfig(
            f"{path} is not a run directory: it has no {layout.CONFIG}. Write one there, or choose "
            "a folder that has one"
        )
    if not make_attempt:
        return None
    number = max((layout.attempt_number(p) or 0 for p in layout.attempts(path)), default=0) + 1
    attempt_dir = layout.attempt_dir(path, number)
    attempt_dir.mkdir()
    return RunPaths(path, attempt_dir, LaunchNote(attempt=number), standalone=True)


def _read_note(path: Path) -> LaunchNote:
    if not path.is_file():
        return LaunchNote()
    try:
        return LaunchNote.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise BadConfig(f"{path} is not a launch note: {error.errors()[0]['msg']}") from None


def redirect_output(log: Path) -> int:
    """Send this process's stdout and stderr to ``log``; returns the old stdout's descriptor."""
    terminal = os.dup(1)
    sys.stdout.flush()
    sys.stderr.flush()
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    # The platform reads the log while it grows.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    return terminal


# --- config.yaml ---------------------------------------------------------------------------


def read_config(path: Path, *, or_spec: bool = False) -> TrainConfig:
    """Read the run's config. ``or_spec``: accept a spec as well, and read its part ``train``.

    Raises:
        BadConfig: every problem, with its field, its value and the nearest valid name.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise BadConfig(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise BadConfig(f"{path} holds {type(raw).__name__}, not a mapping of fields")
    if or_spec and isinstance(raw.get("train"), dict):
        raw = raw["train"]
    try:
        return TrainConfig.model_validate(raw)
    except ValidationError as error:
        problems = [_problem(dict(one)) for one in error.errors(include_url=False)]
        raise BadConfig(f"{path}: " + "; ".join(problems)) from None


def _problem(error: dict[str, Any]) -> str:
    path, where = locate(TrainConfig, error["loc"])
    field = path or "the config"
    if error["type"] == "extra_forbidden":
        valid = sorted(field_names(where.owners))
        near = difflib.get_close_matches(path.rpartition(".")[2], valid, n=1, cutoff=0.7)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"{field} is not a field{hint} (there are: {', '.join(valid)})"
    if error["type"] == "missing":
        return f"{field} is missing"
    value = error["input"]
    # The message of a check of several fields names them; their mapping would hide it.
    shown = "" if isinstance(value, dict) else f" (it is {value!r})"
    return f"{field}: {error['msg'].removeprefix('Value error, ')}{shown}"
