"""Saving of a run: every rank takes part; rank 0 records it, and applies retention.

Where weights and optimizer are the same on all ranks, rank 0 alone writes them. Of a sharded model
each rank writes its part. By default they write in the background: the loop waits only until the
state is copied. The same code writes the same files either way.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lehr_trainer.checkpointing import checkpoint, optimizer_state, retention, state
from lehr_trainer.checkpointing.saved_tensors import RankPart
from lehr_trainer.checkpointing.staging import (
    Background,
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
from lehr_trainer.course import Course
from lehr_trainer.errors import DiskFull
from lehr_trainer.runtime import environment, sharding
from lehr_trainer.runtime.environment import RunContext
from lehr_trainer.update_step import UpdateStep
from lehr_trainer.weight_average import WeightAverage

WAIT_WHEN_FAILING_S = 15.0
"""Longest that a failing process waits for a save in progress: torchrun kills it after 30 s."""


@dataclass(frozen=True)
class _Save:
    """Everything about one save except the tensors."""

    manifest: checkpoint.Manifest
    state: dict[str, Any]
    began: float
    waited_s: float


class Checkpointer:
    def __init__(
        self,
        context: RunContext,
        course: Course,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        update_step: UpdateStep,
        average: WeightAverage | None = None,
    ) -> None:
        self._context, self._course = context, course
        self._model, self._optimizer, self._update_step = model, optimizer, update_step
        self._average = average
        self._shards = sharding.shards_of(model)
        self._writes = context.ranks.is_main or self._shards is not None
        # Of its own: a save in the background must not meet what the loop exchanges.
        self._exchange = None if self._shards is None else context.ranks.another_exchange()
        self._policy = context.config.checkpoint
        self._asynchronous = self._policy.asynchronous
        self._background = Background(context.ranks.device)
        self._copy = HostCopy(context.ranks.device)
        self._reserved = False
        self._warned_of_pages = False

    # --- for the loop ------------------------------------------------------------------------

    def poll(self) -> bool:
        """Return whether a save of this rank has failed in the background.

        The loop calls this after each step. After the first one, when all state exists, memory for
        its copy is reserved.
        """
        if not self._reserved:
            self._reserved = True
            if self._asynchronous and self._policy.every > 0 and self._writes:
                copy_layout = layout_of(self._tensors())
                self._background.start(lambda: self._make_room(copy_layout))
        return self._background.failed

    def save(
        self, progress: TrainProgress, reason: str, val_loss: float | None, *, final: bool = False
    ) -> None:
        """Save the run as it is now. Every rank must call it.

        A blocking save, or a ``final`` one, returns when the checkpoint is complete. An
        asynchronous save returns once the state is copied, after waiting for an earlier save in
        progress.

        Raises:
            DiskFull: on every rank, for this save or the one before.
        """
        began, ranks = time.perf_counter(), self._context.ranks
        generators = ranks.gather_text(state.save_generators())
        self._on_writers(
            lambda: self._save(progress, reason, val_loss, generators, began, final=final)
        )

    def wait(self) -> None:
        """Wait for the save in progress, if any. Every rank must call it.

        Raises:
            DiskFull: on every rank, where that save met it.
        """
        with self._context.pulse.lasting("save"):
            self._on_writers(self._background.wait)

    def _on_writers(self, act: Callable[[], None]) -> None:
        ranks = self._context.ranks
        (ranks.on_rank0 if self._shards is None else ranks.on_each)(act)

    def discard_pending_save(self) -> None:
        """Wait for the save in progress, if any. Every rank must call it.

        A failure is logged, not raised: the run is being discarded.
        """
        try:
            self.wait()
        except DiskFull as error:
            self.warn_of(error)

    def warn_of(self, error: DiskFull) -> None:
        """Record a failed save that does not end the run."""
        self._context.log(f"warning: {error}")
        self._context.events.write(
            Warning_(time=time.time(), code="save_failed", message=str(error))
        )

    def end(self) -> None:
        """Wait a limited time for the save in progress; the process fails for another reason."""
        problem = self._background.end_within(WAIT_WHEN_FAILING_S)
        if problem is not None:
            self._context.log(f"warning: the save in progress failed: {problem}")

    # --- ranks that write ----------------------------------------------------------------------

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
                step=progress.step,
                tokens=progress.tokens,
                val_loss=_finite(val_loss),
                score=_finite(progress.scores.get(progress.step)),
                reason=reason,
                code=layout.code_digest(),
            ),
            state.describe(
                progress,
                *self._course.at(progress.step),
                self._course.data[0],
                environment.versions(),
                generators,
            )
            | self._course.described()
            | {"optimizer": optimizer_state.capture(self._model, self._optimizer)[0]}
            | ({} if self._average is None else {"average": self._average.describe(progress.step)}),
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
        tensors = state.all_tensors(self._model, self._optimizer, self._update_step)
        return tensors if self._average is None else {**tensors, "average": self._average.tensors()}

    def _make_room(self, copy_layout: Layout) -> bool:
        """Reserve memory for a copy; returns False if there is too little, and then saves block."""
        try:
            self._copy.reserve(copy_layout)
        except TooLittleMemory as error:
            self._asynchronous = False
            self._warn(
                "saves_block",
                f"{error}, so the loop waits for each save until it is written; "
                "checkpoint.asynchronous: false does the same without this warning",
            )
            return False
        if self._copy.pin_refusal is not None and not self._warned_of_pages:
            self._warned_of_pages = True
            self._warn(
                "copies_are_slow",
                f"the memory for copies of the state cannot be pinned ({self._copy.pin_refusal}), "
                "so training waits longer for each copy; allow it by `ulimit -l unlimited`, in a "
                "container by `--ulimit memlock=-1`",
            )
        return True

    def _warn(self, code: str, message: str) -> None:
        self._context.log(f"warning: {message}")
        self._context.events.write(Warning_(time=time.time(), code=code, message=message))

    def _complete(self, save: _Save, tensors: Tensors, blocked_s: float | None = None) -> None:
        """Write the checkpoint, record it, and remove checkpoints that are no longer kept.

        ``save`` has all but the tensors, which must not change meanwhile; ``blocked_s`` is how long
        the loop waited for it, None while it waits.
        """
        run_dir = self._context.place.run_dir
        written = checkpoint.write_checkpoint(
            layout.checkpoint_dir(self._context.place.attempt_dir, save.manifest.step),
            tensors=tensors,
            documents={"state": save.state},
            manifest=save.manifest,
            part=self._part(tensors),
        )
        if not self._context.ranks.is_main:
            return
        seconds = time.perf_counter() - save.began
        manifest = written.manifest
        path = str(written.directory.relative_to(run_dir))
        self._context.events.write(
            Checkpoint(
                time=time.time(),
                step=manifest.step,
                path=path,
                size_bytes=manifest.size_bytes,
                digest=written.digest,
                reason=manifest.reason,
                val_loss=manifest.val_loss,
                score=manifest.score,
                seconds=seconds,
                blocked_s=seconds if blocked_s is None else blocked_s,
                waited_s=save.waited_s,
            )
        )
        self._context.events.fsync()
        beside = "" if blocked_s is None else f"; training waited {blocked_s:.2f} s"
        self._context.log(
            f"step {manifest.step}  saved {path} ({manifest.reason}, {seconds:.2f} s{beside})"
        )
        self._prune()

    def _part(self, tensors: Tensors) -> RankPart | None:
        """Return which of the tensors this rank writes; None if it alone writes all."""
        if self._shards is None or self._exchange is None:
            return None
        names: dict[str, sharding.Rows] = {}
        for named in tensors.values():
            names |= sharding.rows_of_state(self._model, named)
        return RankPart(
            self._context.ranks.rank, names, self._shards.writes, self._exchange.gather_text
        )

    def _prune(self) -> None:
        place = self._context.place
        spare = read_orders(place.attempt_dir / layout.ORDERS).keep
        for gone in retention.prune(place.run_dir, place.attempt, self._policy, spare=spare):
            self._context.events.write(
                CheckpointRemoved(
                    time=time.time(), step=gone.step, path=str(gone.path.relative_to(place.run_dir))
                )
            )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
