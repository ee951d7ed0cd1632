"""A run's checkpoints over HTTP: download them, export their models for ``transformers``."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from lehr import __version__
from lehr.errors import Conflict, LehrError, NotFound, ServerUnavailable, UserError
from lehr.faces.client.transport import Transport
from lehr.schemas.checkpoints import CheckpointFiles, CheckpointView, FileView
from lehr.schemas.runs import RunDetail
from lehr_trainer.contract.layout import file_kind
from lehr_trainer.extras import install

LONG_S = 3600.0
"""Reading 15 GB from slow storage takes minutes."""
_TRIES = 5
_MANIFEST = "manifest.json"
_PIECE = 1 << 20

DownloadProgress = Callable[[int, int], None]
"""Bytes so far, and total bytes."""


def download(
    transport: Transport,
    run_id: str,
    step: int,
    folder: Path,
    *,
    attempt: int | None = None,
    kinds: Collection[str] | None = None,
    progress: DownloadProgress | None = None,
) -> CheckpointFiles:
    """Download a checkpoint's files into ``folder`` and check every digest.

    Continues an interrupted download from ``<folder>.part``. With ``kinds``, only these files, e.g.
    ``model`` and ``state``. Raises what ``Run.download_checkpoint`` does.
    """
    listed = transport.read(CheckpointFiles, f"{_path(run_id, step)}/files", {"attempt": attempt})
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Conflict(f"{folder} already exists.", hint="Choose a folder that does not exist yet.")
    draft = folder.with_name(f"{folder.name}.part")
    params = {"attempt": listed.attempt}
    files = [file for file in listed.files if kinds is None or file_kind(file.name) in kinds]
    total = sum(file.size_bytes for file in files)
    done = 0

    def came(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    try:
        draft.mkdir(parents=True, exist_ok=True)
        for file in files:
            path = f"{_path(run_id, step)}/files/{quote(file.name, safe='')}"
            _file(transport, path, params, draft / file.name, file, came)
        manifest = b"".join(transport.pieces(f"{_path(run_id, step)}/files/{_MANIFEST}", params))
        if hashlib.sha256(manifest).hexdigest() != listed.digest:
            raise Conflict(f"the checkpoint at step {step:,} changed while it was read; try again.")
        (draft / _MANIFEST).write_bytes(manifest)
        with contextlib.suppress(FileNotFoundError):
            folder.rmdir()
        draft.rename(folder)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}.") from error
    return listed


def _file(
    transport: Transport,
    url: str,
    params: dict[str, int],
    path: Path,
    expected: FileView,
    came: Callable[[int], None],
) -> None:
    hashed = hashlib.sha256()
    with path.open("a+b") as file:
        file.seek(0)
        received = 0
        while piece := file.read(_PIECE):
            hashed.update(piece)
            received += len(piece)
        came(min(received, expected.size_bytes))
        for attempt in range(1, _TRIES + 1):
            if received >= expected.size_bytes:
                break
            try:
                for piece in transport.pieces(url, params, first=received):
                    file.write(piece)
                    hashed.update(piece)
                    received += len(piece)
                    came(len(piece))
            except ServerUnavailable:
                if attempt == _TRIES:
                    raise
        file.flush()
        os.fsync(file.fileno())
    if received != expected.size_bytes or hashed.hexdigest() != expected.sha256:
        shutil.rmtree(path.parent, ignore_errors=True)
        raise Conflict(
            f"{expected.name} arrived damaged: {received:,} bytes of {expected.size_bytes:,}, "
            f"SHA-256 {hashed.hexdigest()[:12]} for {expected.sha256[:12]}.",
            hint="Check it: lehr checkpoints verify",
        )


def _path(run_id: str, step: int) -> str:
    return f"/runs/{run_id}/checkpoints/{step}"


Step = int | Literal["best", "last"]
KINDS = frozenset({"model", "state"})
"""Kinds of a checkpoint's files that an export reads."""
_TRAINER = (sys.executable, "-P", "-m", "lehr_trainer")


def convert(
    transport: Transport,
    points: Sequence[tuple[str, int, int | None]],
    folder: Path,
    arguments: Sequence[str],
    facts: Mapping[str, Any] | None,
    *,
    kinds: Collection[str] = KINDS,
    tokenizer: str | None = None,
    overwrite: bool = False,
    progress: DownloadProgress | None = None,
) -> None:
    """Download checkpoints, each by run, step and attempt, and let the trainer write ``folder``.

    ``arguments`` are those of the trainer's command line; the paths follow the first one. Raises
    what ``Run.export_model`` does.
    """
    if find_spec("torch") is None:
        raise LehrError(
            "the trainer is not installed on this machine, so it cannot export models.",
            hint=f"Install it: {install('lehr[trainer]')}",
        )
    if not overwrite and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Conflict(
            f"{folder} is not empty.",
            hint="Choose a new folder, or replace an earlier export with --overwrite "
            "(overwrite=True).",
        )
    draft = folder.with_name(f".{folder.name}-checkpoints")
    shutil.rmtree(draft, ignore_errors=True)
    options = [f"--tokenizer={tokenizer}"] if tokenizer is not None else []
    options += ["--overwrite"] * overwrite
    places: list[Path] = []
    try:
        for run_id, step, attempt in points:
            place = draft / str(len(places))
            places.append(place)
            download(
                transport, run_id, step, place, attempt=attempt, kinds=kinds, progress=progress
            )
        _convert([arguments[0], *map(str, places), *arguments[1:], *options], facts)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def choose(run: RunDetail, known: Sequence[CheckpointView], which: Step) -> CheckpointView:
    """Return the best or the newest checkpoint, or the newest attempt's of a step.

    Raises:
        NotFound: there is none.
    """
    there = [one for one in known if one.exists]
    if isinstance(which, int):
        of_step = [one for one in there if one.step == which]
        found = sorted(of_step, key=lambda one: one.attempt, reverse=True)
    else:
        found = [one for one in there if (one.best if which == "best" else one.latest)]
    if not found:
        steps = ", ".join(f"{one.step:,}" for one in there)
        what = f"checkpoint of step {which:,}" if isinstance(which, int) else f"{which} checkpoint"
        raise NotFound(
            f"{run.name} ({run.id}) has no {what}.",
            hint=f"It has the steps {steps}." if steps else "It has none at all.",
        )
    return found[0]


def facts(run: RunDetail) -> dict[str, Any]:
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


def _convert(arguments: Sequence[str], facts: Mapping[str, Any] | None) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="lehr-export-") as scratch,
        tempfile.TemporaryFile() as errors,
    ):
        file = Path(scratch) / "facts.json"
        file.write_text(json.dumps(facts), encoding="utf-8")
        process = subprocess.Popen(
            [*_TRAINER, *arguments, *([] if facts is None else [f"--facts={file}"])],
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
        raise UserError(last.removeprefix(f"{arguments[0]}: ") + ".")
    if process.returncode != 0:
        raise LehrError(f"the export failed: {last}")
