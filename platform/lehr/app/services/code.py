"""Capsules: receive, pin to a submission, show, compare, and remove what no run needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from io import FileIO
from pathlib import Path

from lehr.app.services.context import Context
from lehr.code import archive
from lehr.code.archive import BadArchive
from lehr.code.capsule_store import CapsuleStore, InstalledTrainer
from lehr.code.changes import changes_between
from lehr.code.collect import (
    refuse_missing_environment,
    refuse_missing_parts,
    refuse_missing_script,
)
from lehr.errors import NotFound, SpecError, SpecProblem, StoreUnavailable, UserError
from lehr.node.attempt_code import FILE, LONGEST, problem
from lehr.schemas.checkpoints import CapsuleFile, CapsuleView, CodeDiff, FileChange
from lehr.specs import RunSpec, Spec, SweepSpec
from lehr.specs.sweep_expand import TrialSpec
from lehr.store.streams import limits
from lehr.store.tables import RunRow
from lehr_trainer.contract import protocol

_SHOWN = 12


def pin(context: Context, spec: Spec) -> Spec:
    """Return the spec with the capsule that its runs train with.

    A submission without a capsule gets one of the installed trainer, as it is now.
    """
    run = spec if isinstance(spec, RunSpec) else spec.run
    if run.code.digest is None:
        run = _with_digest(run, installed(context.home).digest())
    return run if isinstance(spec, RunSpec) else spec.model_copy(update={"run": run})


def pin_trials(sweep: SweepSpec, trials: Sequence[TrialSpec]) -> Sequence[TrialSpec]:
    """Return the trials with the capsule of their sweep, which ``pin`` has returned."""
    digest = sweep.run.code.digest
    return [
        (point, run if run.code.digest is not None else _with_digest(run, digest))
        for point, run in trials
    ]


def _with_digest(run: RunSpec, digest: str | None) -> RunSpec:
    return run.model_copy(update={"code": run.code.model_copy(update={"digest": digest})})


@lru_cache(maxsize=8)
def installed(home: Path) -> InstalledTrainer:
    return InstalledTrainer(CapsuleStore(home))


def problems(
    context: Context, specs: Sequence[RunSpec], *, sent: bool = True
) -> Iterator[SpecProblem]:
    """Find capsules that are missing, and code that this server does not accept.

    ``sent``: the capsules are here; else only those that are here are looked into.
    """
    capsules = CapsuleStore(context.home)
    path = "code.digest"
    for spec in {_code_of(spec): spec for spec in specs}.values():
        digest = spec.code.digest
        if spec.sends_files and digest in {None, installed(context.home).digest()}:
            name = "include" if spec.code.include else "environment"
            yield SpecProblem.of(
                f"code.{name}" if spec.code.sends_files else "trainer.script",
                "the project's files were not sent with the spec, or none is included.",
                "Submit it by the command line or the client, which send them.",
            )
        if spec.trainer is not None and spec.trainer.data_files.keys() != {*spec.trainer.data}:
            hint = "Submit it by the command line or the client, which look at the data."
            yield SpecProblem.of("trainer.data", "sizes and digests of it are missing.", hint)
        yield from _refused_program(context, spec)
        yield from _loader_variables(context, spec)
        if digest is None or not (sent or capsules.has(digest)):
            continue
        if not capsules.has(digest):
            message = f"this server has no capsule {digest[:_SHOWN]}."
            hint = "Leave code.digest out to train with the code as it is now."
            yield SpecProblem.of(path, message, hint)
            continue
        if digest != installed(context.home).digest():
            yield from _other_protocol(capsules, digest)
        script = spec.trainer.script if spec.trainer is not None else None
        parts = spec.train.parts if spec.train is not None else None
        file = spec.code.environment
        if script is not None or parts is not None or file is not None:
            names = [m.name for m in archive.members(capsules.path(digest), digests=False)]
            try:
                if script is not None:
                    refuse_missing_script(script, names)
                if parts is not None:
                    refuse_missing_parts(parts.named, names)
                if file is not None:
                    refuse_missing_environment(file, names)
            except SpecError as error:
                yield error.problems[0]
        if context.code == "installed" and digest != installed(context.home).digest():
            yield SpecProblem.of(
                path,
                "this server trains with its own installed trainer only, and capsule "
                f"{digest[:_SHOWN]} differs from it.",
                "Leave code out of the spec. The administrator allows code by LEHR_CODE=any.",
            )


def _other_protocol(capsules: CapsuleStore, digest: str) -> Iterator[SpecProblem]:
    """Find code of a Lehr that is too old or too new for this server."""
    content = archive.read_files(capsules.path(digest), [FILE], most=LONGEST).get(FILE, b"")
    found = problem(content.decode(errors="replace"), (protocol.OLDEST, protocol.VERSION))
    if found is not None:
        message, _, hint = found.partition(". ")
        yield SpecProblem.of("code.digest", f"{message}.", f"{hint}.")


def _loader_variables(context: Context, spec: RunSpec) -> Iterator[SpecProblem]:
    """Find environment variables that load code, on a server that accepts none."""
    if context.code == "any":
        return
    for field, names in (("env", spec.env), ("secrets", spec.secrets)):
        for name in names:
            if name.startswith("LD_"):
                yield SpecProblem.of(
                    f"{field}.{name}",
                    f"this server accepts no code, and {name} loads code.",
                    "The administrator may set it on the nodes, or allow code by LEHR_CODE=any.",
                )


def _code_of(spec: RunSpec) -> tuple[object, ...]:
    """Return the parts of a spec on which the checks of its code depend."""
    trainer = (spec.trainer.module, spec.trainer.script) if spec.trainer is not None else None
    parts = spec.train.parts if spec.train is not None else None
    loader = [name for name in (*spec.env, *spec.secrets) if name.startswith("LD_")]
    own = (trainer, parts and parts.model_dump_json(), bool(spec.evaluations))
    return spec.code.model_dump_json(), *own, *loader


def _refused_program(context: Context, spec: RunSpec) -> Iterator[SpecProblem]:
    if spec.evaluations and context.code != "any":
        message = "this server does not run commands of users."
        hint = "The administrator allows them by LEHR_CODE=any."
        yield SpecProblem.of("evaluations", message, hint)
    if context.code == "any" or spec.trainer is None or spec.trainer.module in context.trainers:
        return
    named = ", ".join(context.trainers)
    yield SpecProblem.of(
        "trainer",
        "this server does not run programs of users"
        f"{f', except the modules {named}' if named else ''}.",
        "The administrator allows modules by LEHR_TRAINERS, and everything by LEHR_CODE=any.",
    )


def receive(context: Context, draft: Path, digest: str) -> CapsuleView:
    """Keep an archive that was sent; sending it again changes nothing.

    Raises:
        UserError: this server accepts no code, or the archive is not a capsule.
    """
    refuse_if_closed(context)
    capsules = CapsuleStore(context.home)
    try:
        if not capsules.has(digest):
            capsules.adopt(draft, digest)
    except BadArchive as error:
        raise UserError(f"the capsule was rejected: {error}.") from error
    context.store.collect_capsules()
    return view(context, digest)


def draft(context: Context) -> AbstractContextManager[Path]:
    """Return the path of a new file for an archive that is being received."""
    return CapsuleStore(context.home).draft()


def append(context: Context, draft: FileIO, piece: bytes) -> None:
    """Write a piece of an archive that is being received.

    Raises:
        StoreUnavailable: the disk has no room for it besides the reserve of the database.
    """
    limits.require_room(context.home)
    try:
        left = memoryview(piece)
        while left:
            left = left[draft.write(left) :]
    except OSError as error:
        raise StoreUnavailable(f"The capsule could not be written: {error.strerror}.") from error


def refuse_if_closed(context: Context) -> None:
    if context.code == "installed":
        raise UserError(
            "this server accepts no code: it trains with its own installed trainer only.",
            hint="The administrator allows code by LEHR_CODE=any.",
        )


def refuse_unsent(context: Context, run: RunSpec) -> None:
    """Raise UserError if the run's capsule is not here, and this server would not receive it."""
    digest = run.code.digest
    if digest is not None and not CapsuleStore(context.home).has(digest):
        refuse_if_closed(context)


def find(context: Context, ref: str) -> str:
    """Return the digest of a capsule: given as a digest, a prefix of one, or a run.

    Raises:
        NotFound: no capsule matches, or several begin with that prefix.
    """
    capsules = CapsuleStore(context.home)
    if archive.DIGEST.fullmatch(ref) and capsules.has(ref):
        return ref
    matching = [digest for digest in capsules.digests() if len(ref) >= 6 and digest.startswith(ref)]
    if len(matching) == 1:
        return matching[0]
    if len(matching) > 1:
        raise NotFound(f"{len(matching)} capsules begin with {ref}.", hint="Give more characters.")
    try:
        run = context.store.runs.find(ref)
    except NotFound:
        raise NotFound(
            f"{ref!r} is neither a run nor a capsule.",
            hint="Give a run's id or name, or at least 6 characters of a capsule's digest.",
        ) from None
    return of_run(context, run)


def of_run(context: Context, run: RunRow) -> str:
    """Return the capsule of a run.

    Raises:
        NotFound: it was submitted before there were capsules, or the capsule is gone.
    """
    digest: str | None = run.stored.code_digest
    if digest is None:
        raise NotFound(f"{run.name} ({run.id}) has no capsule: an older Lehr recorded it.")
    if not CapsuleStore(context.home).has(digest):
        raise NotFound(f"capsule {digest[:_SHOWN]} of {run.name} is gone.")
    return digest


def path(context: Context, digest: str) -> Path:
    capsules = CapsuleStore(context.home)
    if not archive.DIGEST.fullmatch(digest) or not capsules.has(digest):
        raise NotFound(f"this server has no capsule {digest[:_SHOWN]}.")
    return capsules.path(digest)


def view(context: Context, digest: str) -> CapsuleView:
    file = path(context, digest)
    return CapsuleView(
        digest=digest,
        bytes=file.stat().st_size,
        installed=digest == installed(context.home).digest(),
        files=[
            CapsuleFile(name=m.name, bytes=m.size) for m in archive.members(file, digests=False)
        ],
    )


def diff(context: Context, one: str, other: str) -> CodeDiff:
    """Return what changed from one capsule to another; each is a capsule or a run."""
    first, second = find(context, one), find(context, other)
    found = changes_between(path(context, first), path(context, second))
    return CodeDiff(
        first=first,
        second=second,
        changes=[FileChange(name=c.name, change=c.change, patch=c.patch) for c in found],
    )
