"""Keep what a program saves as checkpoints of its run, and remove old ones."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from lehr.programs.recorder import Recorder
from lehr.programs.saves import Declared, Kept, ProgramSave, StillChanging, keep, saved_in
from lehr.programs.workplace import Workplace
from lehr.specs.program import Program
from lehr.specs.stored import program_policy
from lehr_trainer.checkpointing.retention import prune
from lehr_trainer.contract import layout
from lehr_trainer.contract.orders import read_orders
from lehr_trainer.contract.records import MOST, Checkpoint, CheckpointRemoved
from lehr_trainer.runtime.event_stream import EventStream


class Keeper:
    def __init__(
        self, place: Workplace, program: Program, events: EventStream, recorder: Recorder
    ) -> None:
        self._place, self._events, self._recorder = place, events, recorder
        self._tokens_per_step = program.tokens_per_step
        self._policy = program_policy(program.keep)
        self._declared = Declared(place.folder, program.saves, newest=program.saves_newest)

    def request(self, path: str, step: int) -> None:
        """Keep a file or folder that the program has just completed."""
        full, shown = Path(os.path.normpath(path)), repr(path[:200])
        if not self._recorder.is_step(step):
            return
        if not full.is_relative_to(self._place.folder):
            self._recorder.warn(
                "checkpoint_outside",
                f"checkpoint({shown}) is outside of the program's working folder, "
                f"{self._place.folder}; save below it",
            )
            return
        try:
            full.stat()
            saved = saved_in(self._place.folder, [full])
        except (FileNotFoundError, ValueError):  # ValueError: the name contains a NUL.
            self._recorder.warn("no_checkpoint", f"checkpoint({shown}): there is no such file")
            return
        except OSError as error:
            self._recorder.warn("checkpoint_failed", f"checkpoint({shown}): {error.strerror}")
            return
        self._keep(saved, step, "program")

    def look(self, catch_up: Callable[[], None], *, ended: bool = False) -> None:
        """Keep declared files that have changed and settled.

        ``catch_up`` records all that the program has logged: the step of the files is in it.
        """
        saved = self._declared.settled(ended=ended)
        if saved is None:
            return
        catch_up()
        newest = max(changed_ns for _, changed_ns in saved.files.values()) / 1e9
        step = self._recorder.step_of_file(newest)
        if self._keep(saved, step, "declared"):
            self._declared.note_kept(saved)

    def _keep(self, saved: ProgramSave, step: int, reason: str) -> bool:
        attempt = self._place.attempt_dir
        folder = layout.checkpoint_dir(attempt, step)
        if not saved.files or folder.exists():
            return bool(saved.files)
        tokens = min(step * self._tokens_per_step, MOST - 1)
        try:
            kept = keep(self._place.folder, saved, folder, step=step, tokens=tokens, reason=reason)
        except StillChanging:
            return False
        except OSError as error:
            words = f"the checkpoint at step {step:,} could not be copied: {error.strerror}"
            self._recorder.warn("checkpoint_failed", words)
            return False
        self._record(kept, step, reason)
        self._prune()
        return True

    def _record(self, kept: Kept, step: int, reason: str) -> None:
        self._events.write(
            Checkpoint(
                time=time.time(),
                step=step,
                path=self._name(kept.folder),
                size_bytes=kept.manifest.size_bytes,
                digest=kept.digest,
                reason=reason,
                seconds=kept.seconds,
            )
        )

    def _prune(self) -> None:
        attempt = self._place.attempt_dir
        orders = read_orders(attempt / layout.ORDERS)
        number = layout.attempt_number(attempt) or 1
        for gone in prune(attempt.parent, number, self._policy, spare=orders.keep):
            path = self._name(gone.path)
            self._events.write(CheckpointRemoved(time=time.time(), step=gone.step, path=path))

    def _name(self, folder: Path) -> str:
        return folder.relative_to(self._place.attempt_dir.parent).as_posix()
