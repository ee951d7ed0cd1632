"""Load a spec from a file, a text or a dict: validated, or an error with all its problems."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lehr.errors import SpecError, SpecProblem, nearest
from lehr.specs import examples
from lehr.specs.campaign import CampaignSpec
from lehr.specs.ladder import sweep_of
from lehr.specs.overrides import Overrides, numbered, parse_overrides, replace_length, set_path
from lehr.specs.problems import Origin, check_plain, show, translate
from lehr.specs.rollout import RolloutSpec
from lehr.specs.run import RunSpec
from lehr.specs.stages import stage_problems
from lehr.specs.sweep import SweepSpec
from lehr.specs.sweep_expand import TrialSpec, check_trials
from lehr.specs.yaml12 import YamlDocument, read_json, read_yaml
from lehr_trainer.configs.tasks import SHIPPED

Spec = RunSpec | SweepSpec | RolloutSpec

KINDS: dict[str, type[Spec | CampaignSpec]] = {"run": RunSpec, "sweep": SweepSpec}
KINDS |= {"rollout": RolloutSpec, "campaign": CampaignSpec}
_RUN = {"sweep": "run", "rollout": "run", "campaign": "target"}
"""Kinds whose spec contains a run, and the field that it is."""
_SWEEP_ONLY = frozenset({"parameters", "method", "run", "metric", "points", "trials", "pruning"})
_PATHS = re.compile(
    r"((run|target)\.)?train\.(stages\.\d+\.)?data\.corpus(\.parts\.[^.]+\.corpus)?\.paths"
)
"""The paths of a corpus, or of a corpus of a mix."""


@dataclass(frozen=True)
class Loaded:
    """A valid spec."""

    spec: Spec
    trials: Sequence[TrialSpec] = ()
    """Of a sweep: its trials, as ``sweep_expand.expand`` returns them."""


def load_spec(source: Path | str | dict[str, Any], overrides: Overrides = ()) -> Spec:
    """Load a run, sweep or rollout from a YAML or JSON file, YAML text (several lines) or a dict.

    A campaign becomes the sweep that it is.

    Relative corpus paths are relative to the file's folder; in overrides, to the current folder.

    Raises:
        SpecError: with every problem found, each with its line when it came from a file.
    """
    return load_with_trials(source, overrides).spec


def load_with_trials(source: Path | str | dict[str, Any], overrides: Overrides = ()) -> Loaded:
    """Do what ``load_spec`` does, and return the trials too, which are made for the checks."""
    if isinstance(source, dict):
        document, folder = YamlDocument(data=source), None
    elif isinstance(source, str) and "\n" in source:
        document, folder = read_yaml(source), None
    else:
        path = Path(source)
        document, folder = _read_file(path), path.parent
    if document.data is None:
        raise SpecError([document.problem("", "it is empty; a spec is a mapping of fields.")])
    if not isinstance(document.data, dict):
        message = f"a spec is a mapping of fields, not {show(document.data)}."
        raise SpecError([document.problem("", message)])

    origin = Origin(document)
    data: dict[str, Any] = copy.deepcopy(document.data)
    if folder is not None:
        _make_absolute(data, folder)
        _anchor_code(data, folder)
    kind = _kind(data, origin)
    if kind == "campaign" and isinstance(data.get("target"), str):
        data["target"] = _target(data["target"], folder, origin)
    _apply(data, overrides, kind, origin)
    return _validate(data, kind, origin)


def _validate(data: dict[str, Any], kind: str, origin: Origin) -> Loaded:
    root = KINDS[kind]
    problems = check_plain(data, root, origin)
    reported = {problem.path for problem in problems}
    spec: Spec | CampaignSpec | None = None
    trials: Sequence[TrialSpec] = ()
    try:
        spec = root.model_validate(data)
    except ValidationError as error:
        found = translate(error, root, origin)
        problems += [problem for problem in found if problem.path not in reported]
    if isinstance(spec, CampaignSpec):
        problems, spec = (problems, None) if problems else sweep_of(spec, origin)
    if isinstance(spec, SweepSpec) and not problems:
        problems, trials = check_trials(spec, origin)
    if isinstance(spec, RolloutSpec) and not problems:
        problems += stage_problems(spec, origin)
    if problems or spec is None:
        raise SpecError(sorted(problems, key=lambda one: (one.line or 0, one.column or 0)))
    return Loaded(spec, trials)


def _target(name: str, folder: Path | None, origin: Origin) -> dict[str, Any]:
    """Return the run of a campaign's target, which is a file beside the campaign's own."""
    spec = None if folder is None else load_spec(Path(_absolute(name, folder)))
    if spec is None or isinstance(spec, SweepSpec):
        why = "and this spec is in none" if spec is None else "which is a sweep, not a run"
        raise SpecError([origin.problem("target", f"target names a file, {why}.")])
    run = spec.run if isinstance(spec, RolloutSpec) else spec
    return run.model_dump(mode="json", exclude_unset=True)


def _read_file(path: Path) -> YamlDocument:
    source = str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = None
        if path.parent.is_dir():
            near = nearest(path.name, (entry.name for entry in path.parent.iterdir()))
        shipped = examples.FOLDER / path.name
        hint = None
        if near:
            hint = f"Did you mean {path.parent / near}?"
        elif shipped.suffix == ".yaml" and shipped.is_file():
            hint = f"Lehr has an example of that name: cp {shipped} ."
        raise SpecError([SpecProblem("", "no such file.", hint, source=source)]) from None
    except UnicodeDecodeError as error:
        message = f"byte {error.start} is not UTF-8 text; is this a spec?"
        raise SpecError([SpecProblem("", message, source=source)]) from None
    except (OSError, ValueError) as error:
        # ValueError: the name contains a NUL.
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SpecError([SpecProblem("", f"it cannot be read: {reason}.", source=source)]) from None
    return read_json(text, source) if path.suffix == ".json" else read_yaml(text, source)


_WRAP = "Write name: NAME and train:, and indent these lines under train:."


def _kind(data: dict[str, Any], origin: Origin) -> str:
    """Return ``kind``, or derive it from the fields."""
    given = data.get("kind")
    if given is None:
        data.pop("kind", None)
        # The ``config.yaml`` of a run's folder.
        if {"model", "data", "batch"} <= data.keys() and not {"name", "train"} & data.keys():
            message = "this is the config of a training. A run has it under train: and has a name."
            raise SpecError([origin.problem("", message, _WRAP)])
        if "stages" in data:
            return "rollout"
        if "target" in data:
            return "campaign"
        return "sweep" if _SWEEP_ONLY & data.keys() else "run"
    if not isinstance(given, str) or given not in KINDS:
        near = nearest(str(given), KINDS)
        raise SpecError(
            [
                origin.problem(
                    "kind",
                    f"kind is {show(given)}; it must be one of {', '.join(KINDS)}.",
                    f"Did you mean {near}?" if near else None,
                )
            ]
        )
    return given


def _apply(data: dict[str, Any], overrides: Overrides, kind: str, origin: Origin) -> None:
    problems: list[SpecProblem] = []
    parsed = parse_overrides(overrides)
    run = data.get(_RUN[kind]) if kind in _RUN else data
    if isinstance(run, dict):
        replace_length(run, {path.removeprefix(f"{_RUN.get(kind)}.") for path, _, _ in parsed})
    for path, value, written in parsed:
        first = path.partition(".")[0]
        # In a sweep, `train.steps=200` can only mean the run that every trial starts from.
        inside = kind in _RUN and first not in KINDS[kind].model_fields
        full = f"{_RUN[kind]}.{path}" if inside and first in RunSpec.model_fields else path
        if full == "kind":
            message = "kind cannot be overridden; it decides how the file is read."
            problems.append(SpecProblem(full, message, source=f"override {written}"))
            continue
        try:
            full = numbered(data, full)
            set_path(data, full, copy.deepcopy(value))
        except ValueError as error:
            source = f"override {written[:200]}"
            problems.append(SpecProblem(full[:200], f"{error}.", source=source))
            continue
        origin.overrides[full] = written
        if _PATHS.fullmatch(full):
            _make_absolute(data, Path.cwd())
    if problems:
        raise SpecError(problems)


def _anchor_code(data: dict[str, Any], folder: Path) -> None:
    """Make the root of the code absolute, as long as the spec's folder is known."""
    inner = (data.get(name) for name in set(_RUN.values()))
    for spec in (data, *(run for run in inner if isinstance(run, dict))):
        program = spec.get("trainer")
        script = isinstance(program, dict) and program.get("script")
        code = spec.setdefault("code", {}) if script else spec.get("code")
        if isinstance(code, dict) and (script or code.get("include") or code.get("environment")):
            root = code.get("root", ".")
            if isinstance(root, str) and "\0" not in root:
                code["root"] = str((folder / root).resolve())


def _absolute(path: str, folder: Path) -> str:
    # Unlike pathlib's, it leaves the home of an unknown user as it is written.
    return str((folder / os.path.expanduser(path)).resolve())  # noqa: PTH111


def _make_absolute(data: dict[str, Any], folder: Path) -> None:
    """Make relative paths of corpora and tasks absolute, wherever the trainer runs."""
    run = data.get("run", data.get("target", data))
    train = run.get("train") if isinstance(run, dict) else None
    tasks = train.get("evals") if isinstance(train, dict) else None
    for task in tasks if isinstance(tasks, list) else ():
        path = task.get("path") if isinstance(task, dict) else None
        if isinstance(path, str) and path and path not in SHIPPED:
            task["path"] = _absolute(path, folder)
    staged = train.get("stages") if isinstance(train, dict) else None
    for holder in (train, *(staged if isinstance(staged, list) else ())):
        own = holder.get("data") if isinstance(holder, dict) else None
        corpus = own.get("corpus") if isinstance(own, dict) else None
        parts = corpus.get("parts") if isinstance(corpus, dict) else None
        of_parts = parts.values() if isinstance(parts, dict) else ()
        inner = [part.get("corpus") for part in of_parts if isinstance(part, dict)]
        for one in (corpus, *inner):
            if isinstance(one, dict) and isinstance(one.get("paths"), list):
                one["paths"] = [
                    _absolute(item, folder) if isinstance(item, str) and item else item
                    for item in one["paths"]
                ]
