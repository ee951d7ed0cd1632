"""Checks before a submission is recorded.

A submission that cannot work is rejected as a whole, with every reason that is known now. What can
only be known later (a corpus on another node, a GPU type that no node has yet) is not checked.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lehr.control.gpu_types import likely_meant
from lehr.errors import SpecError, SpecProblem, UserError
from lehr.specs import (
    PlannedStage,
    RolloutSpec,
    RunSpec,
    Spec,
    SweepSpec,
    expand,
    load_spec,
    stages,
)
from lehr.specs.overrides import parse_overrides
from lehr.specs.search import point_key
from lehr.specs.storage_url import missing_package
from lehr.specs.sweep_expand import trials_at
from lehr.specs.sweep_extend import extended
from lehr.wandb_mirror import preflight
from lehr_trainer.configs.train import FilesCorpus
from lehr_trainer.data.checks import check_data
from lehr_trainer.errors import TrainerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lehr_api.services import Services

Trials = list[tuple[dict[str, Any], RunSpec]]


def read_run(spec: dict[str, Any], overrides: Mapping[str, Any] | Sequence[str]) -> RunSpec:
    loaded = _read(spec, overrides)
    if not isinstance(loaded, RunSpec):
        raise _of_another_kind(loaded)
    return loaded


def read_sweep(
    spec: dict[str, Any], overrides: Mapping[str, Any] | Sequence[str]
) -> tuple[SweepSpec, Trials]:
    loaded = _read(spec, overrides)
    if not isinstance(loaded, SweepSpec):
        raise _of_another_kind(loaded)
    return loaded, expand(loaded)


def read_rollout(
    spec: dict[str, Any], overrides: Mapping[str, Any] | Sequence[str]
) -> tuple[RolloutSpec, list[PlannedStage]]:
    loaded = _read(spec, overrides)
    if not isinstance(loaded, RolloutSpec):
        raise _of_another_kind(loaded)
    return loaded, stages(loaded)


def _of_another_kind(spec: Spec) -> UserError:
    return UserError(
        f"this is the spec of a {spec.kind}.", hint=f"Send it to /api/v1/{spec.kind}s."
    )


def _read(spec: dict[str, Any], overrides: Mapping[str, Any] | Sequence[str]) -> Spec:
    refuse_relative_paths(overrides)
    return load_spec(spec, overrides)


def refuse_relative_paths(overrides: Mapping[str, Any] | Sequence[str]) -> None:
    """Reject relative paths: in overrides they mean the current folder, which here is the
    server's.
    """
    for path, value, _ in parse_overrides(overrides):
        if path.endswith("data.corpus.paths") and isinstance(value, list):
            _refuse(p for item in value for p in _corpus_path(str(item), path, look=False))


def read_extension(
    spec: SweepSpec,
    known: Sequence[dict[str, Any]],
    *,
    parameters: Mapping[str, Sequence[Any]] | None,
    points: Sequence[Mapping[str, Any]] | None,
    trials: int | None,
) -> tuple[SweepSpec, Trials]:
    """Return the extended spec, and its trials that ``known`` lacks."""
    made = extended(spec, parameters=parameters, points=points, trials=trials)
    there = {point_key(point) for point in known}
    fresh = [point for point in made.all_points() if point_key(point) not in there]
    return made, trials_at(made, fresh, first=len(known) + 1)


def check_run(spec: RunSpec, services: Services) -> None:
    """Raise SpecError when this cluster can never run it, or its corpus is missing."""
    _refuse(_problems([spec], services, prefix=""))


def check_sweep(trials: Trials, services: Services) -> None:
    """Check every trial; a problem that several trials share is reported once."""
    _refuse(_problems([spec for _, spec in trials], services, prefix="run."))


def check_rollout(planned: Sequence[PlannedStage], services: Services) -> None:
    """Check every stage, including the last one, before the first starts."""
    specs = [spec for stage in planned for spec in stage.runs.values()]
    _refuse(_problems(specs, services, prefix="run."))


def _refuse(problems: Iterable[SpecProblem]) -> None:
    found = list(dict.fromkeys(problems))
    if found:
        raise SpecError(found)


def _problems(
    specs: Sequence[RunSpec], services: Services, *, prefix: str
) -> Iterator[SpecProblem]:
    for resources in {spec.resources: None for spec in specs}:
        reason = services.dispatcher.can_ever_place(resources)
        if reason is not None:
            path = f"{prefix}resources.gpus"
            yield SpecProblem(path, f"{path}: {reason}.", _cure_without_gpus(services))
    yield from _gpu_type_problems(specs, services, prefix)
    yield from _mirror_problems(specs, prefix)
    for url in {spec.checkpoints.upload: None for spec in specs if spec.checkpoints.upload}:
        assert url is not None
        package = missing_package(url)
        if package is not None:
            path = f"{prefix}checkpoints.upload"
            message = f"{path}: {url} cannot be opened on the server: a package is missing."
            yield SpecProblem(
                path, message, f"Install it there and on the nodes: pip install '{package}'"
            )
    one_machine = services.settings.ray_address is None
    corpora = [spec.train.data.corpus for spec in specs]
    wrong_paths = [
        problem
        for path in dict.fromkeys(p for c in corpora if isinstance(c, FilesCorpus) for p in c.paths)
        for problem in _corpus_path(path, f"{prefix}train.data.corpus.paths", look=one_machine)
    ]
    yield from wrong_paths
    if one_machine and not wrong_paths:
        for spec in specs:
            yield from _data_problems(spec, prefix)


def _cure_without_gpus(services: Services) -> str | None:
    """Return how a cluster without GPUs gets some."""
    cluster = services.dispatcher.cluster()
    if cluster.message is None or any(node.gpus for node in cluster.nodes):
        return None
    return f"{cluster.message[0].upper()}{cluster.message[1:]}"


def _mirror_problems(specs: Sequence[RunSpec], prefix: str) -> Iterator[SpecProblem]:
    """Return problems of a W&B mirror that this server cannot make."""
    asked = [spec.tracking.wandb for spec in specs if spec.tracking.wandb is not None]
    for mode in dict.fromkeys(wandb.mode for wandb in asked):
        lack = preflight.lack(mode)
        if lack is not None:
            path = f"{prefix}tracking.wandb.mode"
            yield SpecProblem(path, f"{path} is {mode}, but {lack[0]}.", lack[1])


def _gpu_type_problems(
    specs: Sequence[RunSpec], services: Services, prefix: str
) -> Iterator[SpecProblem]:
    """Return likely misspellings of GPU types. A type that no node has is accepted, since such a
    node may join.
    """
    wanted = {spec.resources.gpu_type: None for spec in specs if spec.resources.gpu_type}
    if not wanted:
        return
    there = {gpu.name for node in services.dispatcher.cluster().nodes for gpu in node.gpus}
    for kind in wanted:
        meant = likely_meant(kind or "", there)
        if meant is not None:
            path = f"{prefix}resources.gpu_type"
            yield SpecProblem(
                path,
                f"{path}: no node has a GPU of type {kind!r}, and none of that name is known.",
                f"Did you mean {meant}? A GPU newer than this Lehr is taken by the name that "
                f"nvidia-smi gives it: NVIDIA {kind}.",
            )


def _data_problems(spec: RunSpec, prefix: str) -> Iterator[SpecProblem]:
    """Run the trainer's own checks: an empty folder, a tokenizer that is missing or too large
    for the model.
    """
    try:
        check_data(spec.train.data, spec.train.model.vocab_size)
    except TrainerError as error:
        end = "" if str(error).endswith("?") else "."
        yield SpecProblem(f"{prefix}train.data", f"{prefix}train.{error}{end}")


def _corpus_path(path: str, field: str, *, look: bool) -> Iterator[SpecProblem]:
    """Check a corpus path. ``look``: trainings run on this machine, so its files can be checked."""
    if not Path(path).is_absolute():
        yield SpecProblem(
            field,
            f"{field}: {path} is a relative path, which the server cannot resolve.",
            "Give an absolute path. The command line and the client resolve paths themselves.",
        )
    elif "\0" in path:
        yield SpecProblem(field, f"{field}: a path cannot hold a NUL character.")
    elif look and not _matches(path):
        matched = "no file matches" if glob.has_magic(path) else "there is no"
        yield SpecProblem(field, f"{field}: {matched} {path} on the server's machine.")


def _matches(pattern: str) -> bool:
    # pathlib's globs begin at a folder; these are complete paths, as the trainer reads them.
    return next(glob.iglob(pattern, recursive=True), None) is not None  # noqa: PTH207
