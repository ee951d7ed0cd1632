"""Checks before a submission is recorded.

A submission that cannot work is rejected as a whole, with every reason that is known now. What can
only be known later (a corpus on another node) is not checked. A GPU type that no node has yet is a
warning: such a node may join.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from lehr.analysis.curve_files.names import UNITLESS
from lehr.app.services import code
from lehr.app.services.context import Context
from lehr.app.wandb_mirror.controller import lack
from lehr.control.queue_entries import CURE, separate_folders
from lehr.control.resources import Need, likely_meant
from lehr.errors import SpecError, SpecProblem
from lehr.specs import RunSpec
from lehr.specs.evaluations import OF_TASKS, evaluations_of
from lehr.specs.overrides import Overrides, parse_overrides
from lehr.specs.run import Resources
from lehr.specs.storage_url import missing_package
from lehr.store.secret_store import SecretStore, unknown
from lehr_trainer.configs.corpus import PathsCorpus, corpora
from lehr_trainer.configs.stages import corpus_places
from lehr_trainer.configs.tasks import SHIPPED
from lehr_trainer.data.checks import problems
from lehr_trainer.data.first_file import GaveUp, Looks
from lehr_trainer.extras import install


def check_specs(
    context: Context,
    specs: Sequence[RunSpec],
    *,
    prefix: str = "run.",
    code_sent: bool = True,
    metric: str | None = None,
) -> None:
    """Raise SpecError when this cluster can never run one of them, or its corpus is missing.

    Args:
        context: the objects that the services use.
        specs: of a run, of each trial or of each stage; a problem that several share is reported
            once.
        prefix: the path of a run's fields in the submitted spec.
        code_sent: their capsule is here; else its files are not checked.
        metric: what the trials of a new sweep are ranked by.
    """
    problems = _run_problems(context, specs, code_sent=code_sent)
    _refuse([*_unit_problems(specs, metric), *(_below(prefix, problem) for problem in problems)])


def refuse_relative_paths(overrides: Overrides) -> None:
    """Refuse relative paths in overrides: the server's current folder is not the user's.

    Raises:
        SpecError: an override has a relative path.
    """
    for path, value, _ in parse_overrides(overrides):
        if (
            ".data.corpus." in f".{path}"
            and path.endswith("corpus.paths")
            and isinstance(value, list)
        ):
            _refuse(p for item in value for p in _path_problems(str(item), path, None))


def _refuse(problems: Iterable[SpecProblem]) -> None:
    found = list(dict.fromkeys(problems))
    if found:
        raise SpecError(found)


def _below(prefix: str, problem: SpecProblem) -> SpecProblem:
    path, message = f"{prefix}{problem.path}", f"{prefix}{problem.message}"
    return SpecProblem(path, message, problem.hint)


def _run_problems(
    context: Context, specs: Sequence[RunSpec], *, code_sent: bool
) -> Iterator[SpecProblem]:
    if any(spec.trainer is not None and spec.trainer.external for spec in specs):
        yield SpecProblem.of(
            "trainer.external",
            "Lehr cannot start it.",
            "To log from your own process: lehr_log.init(). To have Lehr start it: trainer.script",
        )
    yield from _placement_problems(context, specs)
    yield from _gpu_type_problems(context, specs)
    yield from _resume_problems(context, specs)
    yield from _mirror_problems(specs)
    yield from _upload_problems(specs)
    yield from _secret_problems(context, specs)
    yield from code.problems(context, specs, sent=code_sent)
    looks = Looks() if context.one_machine else None
    missing = list(_corpus_problems(specs, looks))
    yield from missing
    if looks is not None and not missing:
        yield from _data_problems(specs, looks)


def _unit_problems(specs: Sequence[RunSpec], metric: str | None) -> Iterator[SpecProblem]:
    programs = [spec.trainer for spec in specs if spec.trainer is not None]
    if metric is None or UNITLESS.get(metric) != metric:
        return
    if any(metric not in map(UNITLESS.get, program.factors) for program in programs):
        yield SpecProblem.of(
            "metric.name",
            f"{metric!r} of a script has no known unit: it is recorded as program/{metric}.",
            f"Name program/{metric}, or declare the unit: trainer.factors: {{{metric}: 0.01}} for "
            "percent.",
        )


def _placement_problems(context: Context, specs: Sequence[RunSpec]) -> Iterator[SpecProblem]:
    wanted = [("resources.gpus", spec.resources) for spec in specs]
    for spec in specs:
        for number, one in enumerate(evaluations_of(spec)):
            path = "train.evals" if one.name == OF_TASKS else f"evaluations.{number}.gpus"
            wanted.append((path, Resources(gpus=one.gpus)))
    for path, resources in dict.fromkeys(wanted):
        reason = context.dispatcher.can_ever_place(resources)
        if reason is not None:
            yield SpecProblem.of(path, f"{reason}.", _hint_without_gpus(context))


def _secret_problems(context: Context, specs: Sequence[RunSpec]) -> Iterator[SpecProblem]:
    wanted = {
        (f"secrets.{one}", name): None for spec in specs for one, name in spec.secrets.items()
    }
    wanted |= {("alerts.webhook", name): None for spec in specs if (name := spec.alerts.webhook)}
    if not wanted:
        return
    known = {one.name: one for one in SecretStore(context.home).all()}
    for path, name in wanted:
        if name not in known:
            error = unknown(name, known)
            yield SpecProblem.of(path, str(error), error.hint)


def _hint_without_gpus(context: Context) -> str | None:
    cluster = context.cluster_views.cluster()
    if cluster.message is None or any(node.gpus for node in cluster.nodes):
        return None
    return f"{cluster.message[0].upper()}{cluster.message[1:]}"


def _gpu_type_problems(context: Context, specs: Sequence[RunSpec]) -> Iterator[SpecProblem]:
    """Find likely misspellings of GPU types.

    A type that no node has is accepted, since such a node may join.
    """
    wanted = {spec.resources.gpu_type: None for spec in specs if spec.resources.gpu_type}
    if not wanted:
        return
    there = {gpu.name for node in context.cluster_views.cluster().nodes for gpu in node.gpus}
    for kind in wanted:
        meant = likely_meant(kind or "", there)
        if meant is not None:
            yield SpecProblem.of(
                "resources.gpu_type",
                f"no node has a GPU of type {kind!r}, and none of that name is known.",
                f"Did you mean {meant}? For a GPU that this version does not list, give the name "
                f"that nvidia-smi shows: NVIDIA {kind}.",
            )


def _resume_problems(context: Context, specs: Sequence[RunSpec]) -> Iterator[SpecProblem]:
    """Find runs on several nodes that could never resume, not even on the same nodes.

    Only the first node writes checkpoints, and every node reads them. A run on one node is
    accepted with a warning (``resume_warning``).
    """
    gangs = [spec for spec in specs if spec.resources.nodes > 1 and not spec.checkpoints.upload]
    for resources in {spec.resources: None for spec in gangs}:
        names = separate_folders(Need(**resources.model_dump()), context.dispatcher.nodes())
        if names:
            yield SpecProblem.of(
                "resources.nodes",
                f"{resources.nodes} nodes requested, but the nodes ({', '.join(names)}) do "
                "not share the folder of runs. Only the first would have the run's checkpoints, so "
                "it could never resume.",
                CURE,
            )


def _mirror_problems(specs: Sequence[RunSpec]) -> Iterator[SpecProblem]:
    mirrored = [spec.tracking.wandb for spec in specs if spec.tracking.wandb is not None]
    for mode in dict.fromkeys(wandb.mode for wandb in mirrored):
        missing = lack(mode)
        if missing is not None:
            path = "tracking.wandb.mode"
            yield SpecProblem(path, f"{path} is {mode}, but {missing[0]}.", missing[1])


def _upload_problems(specs: Sequence[RunSpec]) -> Iterator[SpecProblem]:
    for url in dict.fromkeys(spec.checkpoints.upload for spec in specs):
        package = missing_package(url) if url else None
        if package is not None:
            yield SpecProblem.of(
                "checkpoints.upload",
                f"{url} cannot be opened on the server: a package is missing.",
                f"Install it there and on the nodes: {install(package)}",
            )


def _corpus_problems(specs: Sequence[RunSpec], looks: Looks | None) -> Iterator[SpecProblem]:
    fields = (
        (path, f"{field}.paths")
        for spec in specs
        if spec.train is not None
        for place, own in corpus_places(spec.own)
        for field, corpus in corpora(own.data.corpus, f"train.{place}data.corpus").items()
        if isinstance(corpus, PathsCorpus)
        for path in corpus.paths
    )
    files = (
        (task.path, f"train.evals.{number}.path")
        for spec in specs
        if spec.train is not None
        for number, task in enumerate(spec.own.evals)
        if task.path not in SHIPPED
    )
    for path, field in dict.fromkeys((*fields, *files)):
        yield from _path_problems(path, field, looks)


def _path_problems(path: str, field: str, looks: Looks | None) -> Iterator[SpecProblem]:
    """Check a corpus path; with ``looks`` also its files, since trainings run on this machine."""
    if not Path(path).is_absolute():
        yield SpecProblem.of(
            field,
            f"{path} is a relative path, which the server cannot resolve.",
            "Give an absolute path. The command line and the client resolve paths themselves.",
        )
    elif "\0" in path:
        yield SpecProblem.of(field, "a path cannot hold a NUL character.")
    elif looks is not None and not _may_match(path, looks):
        matched = "no file matches" if glob.has_magic(path) else "there is no"
        yield SpecProblem.of(field, f"{matched} {path} on the server's machine.")


def _may_match(path: str, looks: Looks) -> bool:
    try:
        return looks.matches(path)
    except GaveUp:
        return True


def _data_problems(specs: Sequence[RunSpec], looks: Looks) -> Iterator[SpecProblem]:
    """Run the trainer's own checks: is a folder empty, is the tokenizer missing or too large?"""
    own = [spec.own for spec in specs if spec.train is not None]
    # Trials of a sweep often have the same data.
    for one in {
        repr((x.data, x.model.vocab_size, x.validation.share, x.batch, x.stages)): x for x in own
    }.values():
        for error in problems(one, looks):
            end = "" if str(error).endswith("?") else "."
            yield SpecProblem("train.data", f"train.{error}{end}")
