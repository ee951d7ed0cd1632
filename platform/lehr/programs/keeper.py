"""Keep what a program saves as checkpoints of its run, and remove old ones."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from lehr.programs.program_dir import ProgramDir
from lehr.programs.recorder import Recorder, RecordSink
from lehr.programs.saves import Declared, Kept, ProgramSave, StillChanging, keep, saved_in
from lehr.specs.program import Program
from lehr.specs.stored import program_policy
from lehr_trainer.checkpointing.retention import prune
from lehr_trainer.contract import layout
from lehr_trainer.contract.orders import read_orders
from lehr_trainer.contract.records import MOST, Checkpoint, CheckpointRemoved

_MOST_WARNINGS = 20
"""Most warnings about checkpoints that changed. Each one means a lost checkpoint."""


class Keeper:
    def __init__(
        self, place: ProgramDir, program: Program, events: RecordSink, recorder: Recorder
    ) -> None:
        self._place, self._events, self._recorder = place, events, recorder
        self._tokens_per_step = program.tokens_per_step
        self._policy = program_policy(program.keep)
        self._declared = Declared(place.folder, program.saves, newest=program.saves_newest)

    def request(
        self, path: str, step: int, declared: Mapping[str, tuple[int, int]] | None = None
    ) -> None:
        """Keep a file or folder that the program has just completed.

        ``declared``: size and time of its files at that moment, by their paths in it.
        """
        shown = f"checkpoint({path[:200]!r}, step={step})"
        if not self._recorder.is_step(step):
            return
        try:
            full = self._below_folder(path)
            if full is None:
                self._recorder.warn(
                    "checkpoint_outside",
                    f"{shown} is outside of the program's working folder, "
                    f"{self._place.folder}; save below it",
                )
                return
            full.stat()
            saved = saved_in(self._place.folder, [full])
        except (FileNotFoundError, ValueError):  # ValueError: the name contains a NUL.
            self._recorder.warn("no_checkpoint", f"{shown}: there is no such file")
            return
        except OSError as error:
            self._recorder.warn("checkpoint_failed", f"{shown}: {error.strerror}")
            return
        try:
            _refuse_changed(saved, full.relative_to(self._place.folder), declared or {})
            self._keep(saved, step, "program")
        except StillChanging as error:
            self._warn_changed(shown, error)

    def look(self, catch_up: Callable[[], None], *, ended: bool = False) -> None:
        """Keep declared files that have changed and settled.

        ``catch_up`` records all that the program has logged. The step of the files follows from it.
        """
        saved = self._declared.settled(ended=ended)
        if saved is None:
            return
        catch_up()
        newest = max(changed_ns for _, changed_ns in saved.files.values()) / 1e9
        step = self._recorder.step_of_file(newest, saved.path)
        try:
            if self._keep(saved, step, "declared"):
                self._declared.note_kept(saved)
        except StillChanging as error:
            if ended:
                self._warn_changed(f"what was saved at step {step:,}", error)

    def _warn_changed(self, what: str, changed: StillChanging) -> None:
        self._recorder.warn(
            "checkpoint_changed",
            f"{what}: {changed} changed before its copy was complete; this checkpoint is not "
            "kept. Give each checkpoint a name of its own",
            most=_MOST_WARNINGS,
        )

    def _below_folder(self, path: str) -> Path | None:
        """Return the path below the working folder as named here; None if it is outside.

        The program may name its working folder without the links that lead to it.
        """
        folder, given = self._place.folder, Path(os.path.normpath(path))
        if given.is_relative_to(folder):
            return given
        real = Path(os.path.realpath(folder))
        for found in (given, Path(os.path.realpath(given.parent)) / given.name):
            if found.is_relative_to(real):
                return folder / found.relative_to(real)
        return None

    def _keep(self, saved: ProgramSave, step: int, reason: str) -> bool:
        attempt = self._place.attempt_dir
        folder = layout.checkpoint_dir(attempt, step)
        if not saved.files or folder.exists():
            return bool(saved.files)
        tokens = min(step * self._tokens_per_step, MOST - 1)
        try:
            kept = keep(self._place.folder, saved, folder, step=step, tokens=tokens, reason=reason)
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


def _refuse_changed(
    saved: ProgramSave, below: Path, declared: Mapping[str, tuple[int, int]]
) -> None:
    """Raise StillChanging unless all declared files are as they were declared.

    Other files may be new: other ranks may complete the folder.
    """
    for name, state in declared.items():
        full = (below / name).as_posix()
        if saved.files.get(full) != state:
            raise StillChanging(full)
