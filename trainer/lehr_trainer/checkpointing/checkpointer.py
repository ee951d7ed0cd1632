"""Saving a run: every rank takes part, rank 0 writes, says so, and removes what is not kept.

Weights and optimizer are the same on all ranks, so rank 0 alone writes them. In the background,
unless told otherwise: then the loop waits only for a copy of the state to be taken. What is
written is the same, by the same code, either way.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lehr_trainer.checkpointing import checkpoint, retention, state
from lehr_trainer.checkpointing.background import Background
from lehr_trainer.checkpointing.staging import (
    HostCopy,
    Layout,
    Tensors,
    TooLittleMemory,
    layout_of,
)
from lehr_trainer.checkpointing.state import TrainProgress
from lehr_trainer.contract import layout
from lehr_trainer.contract.orders import read_orders
from lehr_trainer.contract.records import Checkpoint, CheckpointRemoved, Warning_
from lehr_trainer.data import PreparedData
from lehr_trainer.errors import DiskFull
from lehr_trainer.runtime import environment
from lehr_trainer.runtime.context import RunContext
from lehr_trainer.update_step import UpdateStep

WAIT_WHEN_FAILING_S = 15.0
"""How long a process that fails waits for a save under way: torchrun kills it after 30 s."""


@dataclass(frozen=True)
class _Save:
    """All there is to one save, but for the tensors."""

    manifest: checkpoint.Manifest
    state: dict[str, Any]
    began: float
    waited_s: float


class Checkpointer:
    def __init__(
        self,
        session: RunContext,
        data: PreparedData,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        updates: UpdateStep,
    ) -> None:
        self._session, self._data = session, data
        self._model, self._optimizer, self._updates = model, optimizer, updates
        self._policy = session.config.checkpoint
        self._asynchronous = self._policy.asynchronous
        self._background = Background(session.ranks.device)
        self._copy = HostCopy(session.ranks.device)
        self._attended = False

    # --- for the loop ------------------------------------------------------------------------

    def attend(self) -> bool:
        """Between two steps: whether a save has failed in the background (known to rank 0 alone).

        After the first step, when all state exists, the memory for its copies is made ready.
        """
        if not self._attended:
            self._attended = True
            if self._asynchronous and self._will_save and self._session.ranks.is_main:
                wanted = layout_of(self._tensors())
                self._background.start(lambda: self._make_room(wanted))
        return self._background.failed

    def save(
        self, progress: TrainProgress, reason: str, val_loss: float | None, *, final: bool = False
    ) -> None:
        """Save the run as it is now. Every rank has to call it.

        Returns when the checkpoint is complete if saves are not asynchronous or this is the
        ``final`` one; else once the state is copied, which waits for a save under way.

        Raises:
            DiskFull: on every rank, for this save or the one before.
        """
        began, ranks = time.perf_counter(), self._session.ranks
        generators = ranks.gather_text(state.save_generators())
        ranks.on_rank0(
            lambda: self._save(progress, reason, val_loss, generators, began, final=final)
        )

    def wait(self) -> None:
        """Wait for the save in progress, if any. Every rank must call it.

        Raises:
            DiskFull: on every rank, where that save met it.
        """
        self._session.ranks.on_rank0(self._background.wait)

    def discard_pending_save(self) -> None:
        """Wait for the save in progress, if any. Every rank must call it.

        A failure is logged, not raised: the run is being discarded.
        """
        try:
            self.wait()
        except DiskFull as error:
            self._session.say(f"warning: {error}")
            self._session.events.write(
                Warning_(time=time.time(), code="save_failed", message=str(error))
            )

    def end(self) -> None:
        """For a process that is failing of something else: a save under way may come to its end."""
        problem = self._background.end_within(WAIT_WHEN_FAILING_S)
        if problem is not None:
            self._session.say(f"warning: the save in progress failed: {problem}")

    @property
    def saving(self) -> bool:
        """Whether a save is under way in the background (known to rank 0 alone)."""
        return self._background.busy

    @property
    def copy_bytes(self) -> int:
        """Of host memory that the state's copy takes; 0 before there is one."""
        return self._copy.nbytes

    # --- rank 0 ------------------------------------------------------------------------------

    @property
    def _will_save(self) -> bool:
        policy = self._policy
        return policy.every > 0 or (policy.keep_best and self._session.config.validation.every > 0)

    def _save(
        self,
        progress: TrainProgress,
        reason: str,
        val_loss: float | None,
        generators: list[str],
        began: float,
        *,
        final: bool,
    ) -> None:
        before = time.perf_counter()
        self._background.wait()
        save = _Save(
            checkpoint.Manifest(
                step=progress.step, tokens=progress.tokens, val_loss=val_loss, reason=reason
            ),
            state.describe(
                progress, self._session.config, self._data, environment.versions(), generators
            ),
            began,
            waited_s=time.perf_counter() - before,
        )
        tensors = self._tensors()
        if final or not self._asynchronous or not self._make_room(layout_of(tensors)):
            self._complete(save, tensors)
            return
        copied = self._copy.take(tensors)
        blocked_s = time.perf_counter() - began
        self._background.start(lambda: self._complete(save, copied, blocked_s))

    def _tensors(self) -> Tensors:
        return state.all_tensors(self._model, self._optimizer, self._updates)

    def _make_room(self, wanted: Layout) -> bool:
        """Whether there is room for a copy; where there is none, saves block from now on."""
        try:
            self._copy.reserve(wanted)
        except TooLittleMemory as error:
            self._asynchronous = False
            message = (
                f"{error}, so the loop waits for each save until it is written; "
                "checkpoint.asynchronous: false does the same without this warning"
            )
            self._session.say(f"warning: {message}")
            self._session.events.write(
                Warning_(time=time.time(), code="saves_block", message=message)
            )
            return False
        return True

    def _complete(self, save: _Save, tensors: Tensors, blocked_s: float | None = None) -> None:
        """Write it and say so; then what need not be kept any longer goes.

        Args:
            save: what it is of.
            tensors: its state, which nobody may change meanwhile.
            blocked_s: how long the loop waited for it; None while it waits.
        """
        run_dir = self._session.place.run_dir
        written = checkpoint.write_checkpoint(
            layout.checkpoint_dir(self._session.place.attempt_dir, save.manifest.step),
            tensors=tensors,
            documents={"state": save.state},
            manifest=save.manifest,
        )
        seconds = time.perf_counter() - save.began
        manifest = written.manifest
        path = str(written.directory.relative_to(run_dir))
        self._session.events.write(
            Checkpoint(
                time=time.time(),
                step=manifest.step,
                path=path,
                size_bytes=manifest.size_bytes,
                digest=written.digest,
                reason=manifest.reason,
                val_loss=manifest.val_loss,
                seconds=seconds,
                blocked_s=seconds if blocked_s is None else blocked_s,
                waited_s=save.waited_s,
            )
        )
        self._session.events.fsync()
        beside = "" if blocked_s is None else f"; training waited {blocked_s:.2f} s"
        self._session.say(
            f"step {manifest.step}  saved {path} ({manifest.reason}, {seconds:.2f} s{beside})"
        )
        self._prune()

    def _prune(self) -> None:
        place = self._session.place
        spare = read_orders(place.attempt_dir / layout.ORDERS).keep
        for gone in retention.prune(place.run_dir, place.attempt, self._policy, spare=spare):
            self._session.events.write(
                CheckpointRemoved(
                    time=time.time(),
                    step=gone.step,
                    path=str(gone.path.relative_to(place.run_dir)),
                )
            )
