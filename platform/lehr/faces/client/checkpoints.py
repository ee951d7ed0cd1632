"""A run's checkpoints over HTTP: verify, download, delete."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from lehr.errors import Conflict, ServerUnavailable, UserError
from lehr.schemas.checkpoints import (
    CheckpointDeletion,
    CheckpointFiles,
    CheckpointVerdict,
    FileView,
)
from lehr_trainer.contract.layout import file_kind

if TYPE_CHECKING:
    from lehr.faces.client.transport import Transport

LONG_S = 3600.0
"""Reading 15 GB from slow storage takes minutes."""
_TRIES = 5
_MANIFEST = "manifest.json"
_PIECE = 1 << 20

DownloadProgress = Callable[[int, int], None]
"""Bytes so far, and total bytes."""


def verify(transport: Transport, run_id: str, step: int, attempt: int | None) -> CheckpointVerdict:
    answer = transport.post(
        f"{_path(run_id, step)}/verify", params={"attempt": attempt}, within_s=LONG_S
    )
    return CheckpointVerdict.model_validate_json(answer)


def deletion(
    transport: Transport, run_id: str, step: int, attempt: int | None
) -> CheckpointDeletion:
    answer = transport.get(f"{_path(run_id, step)}/deletion", {"attempt": attempt})
    return CheckpointDeletion.model_validate_json(answer)


def delete(transport: Transport, run_id: str, step: int, attempt: int | None) -> CheckpointDeletion:
    answer = transport.delete(_path(run_id, step), {"attempt": attempt}, within_s=LONG_S)
    return CheckpointDeletion.model_validate_json(answer)


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
    ``model`` and ``state``.

    Raises:
        Conflict: ``folder`` exists and is not empty, or the checkpoint cannot be read completely.
        UserError: ``folder`` cannot be written.
    """
    answer = transport.get(f"{_path(run_id, step)}/files", {"attempt": attempt})
    listed = CheckpointFiles.model_validate_json(answer)
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
