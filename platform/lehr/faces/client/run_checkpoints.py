"""Checkpoints of a run: list, verify, download, export, delete."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from lehr.faces.client import checkpoints, model_export
from lehr.faces.client.run_state import RunStateMethods
from lehr.schemas.checkpoints import CheckpointDeletion, CheckpointVerdict, CheckpointView


class RunCheckpointMethods(RunStateMethods):
    """A part of ``lehr.faces.client.runs.Run``: its checkpoints."""

    def checkpoints(self) -> list[CheckpointView]:
        """Return its checkpoints by step; deleted ones stay listed, with ``removed_at``."""
        return self._list("/checkpoints", CheckpointView)

    def verify_checkpoint(self, step: int, *, attempt: int | None = None) -> CheckpointVerdict:
        """Have the server read a checkpoint completely, in every location, and check its
        digests.
        """
        return checkpoints.verify(self._transport, self.id, step, attempt)

    def download_checkpoint(
        self,
        step: int,
        folder: Path | str,
        *,
        attempt: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Path:
        """Download a checkpoint into a new folder and check every digest.

        Args:
            step: step of the checkpoint.
            folder: folder for its files.
            attempt: number of the attempt. Default: the newest that saved at this step.
            progress: called with the bytes so far, and the total.

        Raises:
            NotFound: there is no checkpoint at that step; the nearest is named.
            Conflict: the folder exists, or no location of the checkpoint can be read.
        """
        target = Path(folder)
        checkpoints.download(
            self._transport, self.id, step, target, attempt=attempt, progress=progress
        )
        return target

    def export_model(
        self,
        folder: Path | str,
        step: int | Literal["best", "last"] = "last",
        *,
        attempt: int | None = None,
        tokenizer: str | None = None,
        overwrite: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Path:
        """Write the model of a checkpoint to a folder that ``transformers`` loads.

        The folder gets weights, config, tokenizer and a model card with the run's provenance. It
        appears once it is complete. The weights are downloaded from the run's directory or its
        copy, and converted on this machine, which needs ``lehr[trainer]``.

        Args:
            folder: folder to make.
            step: step of the checkpoint; ``best`` has the lowest val/loss.
            attempt: number of the attempt. Default: the newest that saved at this step.
            tokenizer: where the run's tokenizer is on this machine, if not where the run found it;
                ``none`` leaves it out.
            overwrite: replace an earlier export.
            progress: called with the bytes downloaded so far, and the total.

        Raises:
            NotFound: there is no such checkpoint.
            Conflict: the folder is not empty, or no location of the checkpoint can be read.
            UserError: the model or its tokenizer cannot be exported.
        """
        return model_export.export_model(
            self._transport,
            self.detail,
            self.checkpoints(),
            Path(folder),
            step,
            attempt=attempt,
            tokenizer=tokenizer,
            overwrite=overwrite,
            progress=progress,
        )

    def checkpoint_deletion(self, step: int, *, attempt: int | None = None) -> CheckpointDeletion:
        """Return what ``delete_checkpoint`` would free."""
        return checkpoints.deletion(self._transport, self.id, step, attempt)

    def delete_checkpoint(self, step: int, *, attempt: int | None = None) -> CheckpointDeletion:
        """Delete one checkpoint and its copy, unless a run still needs it."""
        return checkpoints.delete(self._transport, self.id, step, attempt)
