"""Export of a run's model for ``transformers``: download the weights, let the trainer convert them.

The conversion needs torch, so it runs in a process of its own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lehr import __version__
from lehr.errors import Conflict, LehrError, NotFound, UserError
from lehr.faces.client import checkpoints
from lehr.schemas.checkpoints import CheckpointView
from lehr.schemas.runs import RunDetail
from lehr_trainer.extras import install

if TYPE_CHECKING:
    from lehr.faces.client.transport import Transport

Step = int | Literal["best", "last"]
_KINDS = frozenset({"model", "state"})
_EXPORT = (sys.executable, "-P", "-m", "lehr_trainer", "export")


def export_model(
    transport: Transport,
    run: RunDetail,
    known: Sequence[CheckpointView],
    folder: Path,
    step: Step,
    *,
    attempt: int | None = None,
    tokenizer: str | None = None,
    overwrite: bool = False,
    progress: checkpoints.DownloadProgress | None = None,
) -> Path:
    """Export a checkpoint of ``run``, one of the ``known``, to ``folder``.

    Raises:
        NotFound: there is no such checkpoint.
        Conflict: ``folder`` is not empty, or the checkpoint cannot be read.
        UserError: the model or its tokenizer cannot be exported.
    """
    if find_spec("torch") is None:
        raise LehrError(
            "the trainer is not installed on this machine, so it cannot export models.",
            hint=f"Install it: {install('lehr[trainer]')}",
        )
    folder = folder.absolute()
    if not overwrite and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Conflict(
            f"{folder} is not empty.",
            hint="Choose a new folder, or replace an earlier export with --overwrite "
            "(overwrite=True).",
        )
    if not isinstance(step, int):
        chosen = choose(run, known, step)
        step, attempt = chosen.step, attempt or chosen.attempt
    draft = folder.with_name(f".{folder.name}-step-{step}")
    shutil.rmtree(draft, ignore_errors=True)
    checkpoints.download(
        transport, run.id, step, draft, attempt=attempt, kinds=_KINDS, progress=progress
    )
    options = [f"--tokenizer={tokenizer}"] if tokenizer is not None else []
    options += ["--overwrite"] * overwrite
    try:
        _convert(draft, folder, _facts(run), options)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def choose(
    run: RunDetail, known: Sequence[CheckpointView], which: Literal["best", "last"]
) -> CheckpointView:
    """Return the best or the newest checkpoint.

    Raises:
        NotFound: there is none.
    """
    there = [one for one in known if one.removed_at is None or one.copy_state == "there"]
    found = [one for one in there if (one.best if which == "best" else one.latest)]
    if not found:
        steps = ", ".join(f"{one.step:,}" for one in there)
        raise NotFound(
            f"{run.name} ({run.id}) has no {which} checkpoint.",
            hint=f"It has the steps {steps}." if steps else "It has none at all.",
        )
    return found[0]


def _facts(run: RunDetail) -> dict[str, Any]:
    """Collect the facts of the model card; neither host nor user, since it is published."""
    git = run.provenance.get("git") or {}
    return {
        "run": {
            "id": run.id,
            "name": run.name,
            "project": run.project,
            "forked_from": run.forked_from,
        },
        "lehr_version": __version__,
        "provenance": {"git": {"commit": git.get("commit"), "dirty": git.get("dirty")}},
    }


def _convert(
    checkpoint: Path,
    folder: Path,
    facts: dict[str, Any],
    options: Sequence[str],
) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="lehr-export-") as scratch,
        tempfile.TemporaryFile() as errors,
    ):
        file = Path(scratch) / "facts.json"
        file.write_text(json.dumps(facts), encoding="utf-8")
        process = subprocess.Popen(
            [*_EXPORT, str(checkpoint), str(folder), f"--facts={file}", *options],
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        try:
            process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        errors.seek(0)
        lines = errors.read().decode("utf-8", "replace").splitlines()
    last = lines[-1] if lines else f"exit {process.returncode}"
    if process.returncode == 2:
        raise UserError(last.removeprefix("export: ") + ".")
    if process.returncode != 0:
        raise LehrError(f"the export failed: {last}")
