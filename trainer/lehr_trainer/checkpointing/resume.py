"""Choice of the checkpoint to resume from: the newest that verifies; skipped ones are listed."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from lehr_trainer.checkpointing.checkpoint import read_document, verify
from lehr_trainer.contract import layout
from lehr_trainer.contract.orders import LaunchNote
from lehr_trainer.errors import BadCheckpoint, MissingCheckpoint


@dataclass(frozen=True)
class ResumeChoice:
    directory: Path | None
    """None: start at step 0."""
    skipped: tuple[str, ...] = ()
    """Newer checkpoints that did not verify, each with the reason."""


def choose_checkpoint(run_dir: Path, attempt_dir: Path, note: LaunchNote) -> ResumeChoice:
    """Choose the first candidate that verifies.

    Raises:
        MissingCheckpoint: one was pinned, and its folder is not on this machine.
        BadCheckpoint: one was pinned, and neither it nor an older one verifies.
    """
    skipped: list[str] = []
    for path in _candidates(run_dir, attempt_dir, note):
        try:
            verify(path)
        except BadCheckpoint as error:
            skipped.append(str(error).replace(f"{run_dir}/", ""))
        else:
            return ResumeChoice(path, tuple(skipped))
    if note.resume == "pinned" and note.resume_from is not None:
        if not (run_dir / note.resume_from).is_dir():
            raise MissingCheckpoint(
                f"cannot resume: {run_dir / note.resume_from} is not on this machine. Set "
                "checkpoints.upload, or put LEHR_RUNS on storage that all nodes share"
            )
        raise BadCheckpoint(
            f"cannot resume from {note.resume_from}, nor from an older checkpoint of this run: "
            + "; ".join(skipped)
        )
    return ResumeChoice(None, tuple(skipped))


def trained_on(run_dir: Path, attempt_dir: Path, note: LaunchNote) -> str | None:
    """Return the digest of the data in the newest readable checkpoint of this run, if it resumes.

    It is only read: whether the checkpoint verifies is decided later.
    """
    for path in _candidates(run_dir, attempt_dir, note):
        with contextlib.suppress(BadCheckpoint, LookupError, TypeError):
            if path.resolve().is_relative_to(run_dir.resolve()):
                return str(read_document(path, "state")["data"]["digest"])
    return None


def _candidates(run_dir: Path, attempt_dir: Path, note: LaunchNote) -> list[Path]:
    """List checkpoints, newest first: by attempt, then by step."""
    if note.resume == "never" or (note.resume == "pinned" and note.resume_from is None):
        return []
    this = layout.attempt_number(attempt_dir) or 0
    earlier = [
        path
        for folder in layout.attempts(run_dir)
        if (layout.attempt_number(folder) or 0) < this
        for path in layout.checkpoints(folder)
    ][::-1]
    if note.resume == "auto" or note.resume_from is None:
        return earlier
    pinned = (run_dir / note.resume_from).resolve()
    places = [path.resolve() for path in earlier]
    older = earlier[places.index(pinned) + 1 :] if pinned in places else earlier
    return [pinned, *older]
