"""Keep what a program saves as checkpoints of its run, and remove old ones.

One checkpoint after the other is copied, each in a process of its own: the program goes on, and so
do its metrics and its orders. Of those that wait, as many as the run keeps remain.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lehr.base import procfs
from lehr.node import subprocesses
from lehr.node.programs.program_dir import ProgramDir
from lehr.node.programs.recorder import PatientStream, Recorder
from lehr.node.programs.saves import Declared, ProgramSave, StillChanging, draft_of, keep, saved_in
from lehr.specs.program import Program
from lehr.specs.stored import program_policy
from lehr_trainer.checkpointing.retention import prune
from lehr_trainer.contract import layout
from lehr_trainer.contract.orders import read_orders
from lehr_trainer.contract.records import MOST, Checkpoint, CheckpointRemoved


class Copier:
    """One copy in a process of its own, which ends with this one.

    ``copy`` does it, and returns what ``answer`` returns later. The process is a fork, so it has
    the attempt's mark. It keeps SIGTERM blocked: a notice is for the program.
    """

    def __init__(self, copy: Callable[[], dict[str, Any]]) -> None:
        die_with_parent = procfs.parent_death(os.getpid())
        self._answer, answer = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(self._answer)
            os.close(answer)
            raise
        if pid == 0:
            try:
                die_with_parent()
                # A copy that hangs in the kernel must not hold the locks of the GPUs.
                for path in list(Path("/proc/self/fd").iterdir()):
                    if int(path.name) not in {0, 1, 2, answer}:
                        with contextlib.suppress(OSError):
                            os.close(int(path.name))
                os.write(answer, json.dumps(copy()).encode())
            except BaseException:  # noqa: BLE001 - no frame of the supervisor may run here
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(answer)
        self._child = subprocesses.Child(pid)

    def answer(self) -> dict[str, Any] | None:
        if self._child.poll() is None:
            return None
        with os.fdopen(self._answer, "rb") as file:
            content = file.read()
        if not content:
            return {"failed": f"its process ended with code {self._child.returncode}"}
        answer: dict[str, Any] = json.loads(content)
        return answer

    def kill(self) -> None:
        """End it; nobody waits for it, since a write to a slow disk cannot be interrupted."""
        procfs.send(self._child.pid, signal.SIGKILL)
        os.close(self._answer)


_MOST_WARNINGS = 20
"""Most warnings about checkpoints that are not kept. Each one means a lost checkpoint."""
_AGAIN_S = 10.0  # Pause before declared files are copied again that could not be copied.
_RESTLESS = 10  # Saves in a row, none of which can be kept, after which a warning is due.


@dataclass(frozen=True)
class _Copy:
    saved: ProgramSave
    step: int
    reason: str
    folder: Path
    what: str  # How warnings name it.
    again: bool = False  # If a file changes under the copy, it is copied again when it has settled.


class Keeper:
    def __init__(
        self, place: ProgramDir, program: Program, events: PatientStream, recorder: Recorder
    ) -> None:
        self.saved_step = recorder.step or -1  # Step of the newest checkpoint; -1 if there is none.
        self._place, self._events, self._recorder = place, events, recorder
        self._tokens_per_step = program.tokens_per_step
        self._policy = program_policy(program.keep)
        self._most_waiting = program.keep
        self._waiting: list[_Copy] = []
        self._running: tuple[_Copy, Copier] | None = None
        self._again = 0.0
        self._data = program.data
        self._declared = Declared(
            place.folder, program.saves, newest=program.saves_newest, data=self._data
        )

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
            saved = saved_in(self._place.folder, [full], self._data)
        except (FileNotFoundError, ValueError):  # ValueError: the name contains a NUL.
            self._recorder.warn("no_checkpoint", f"{shown}: there is no such file")
            return
        except OSError as error:
            self._recorder.warn("checkpoint_failed", f"{shown}: {str(error)[:300]}")
            return
        try:
            _refuse_changed(saved, full.relative_to(self._place.folder), declared or {})
        except StillChanging as error:
            self._warn_changed(shown, error)
            return
        self._add(saved, step, "program", shown)

    def look(self, catch_up: Callable[[], None], *, ended: bool = False) -> None:
        """Keep declared files that have changed and settled.

        ``catch_up`` records all that the program has logged. The step of the files follows from it.
        """
        self.advance()
        copies = [*self._waiting, *([self._running[0]] if self._running else [])]
        if any(copy.reason == "declared" for copy in copies):
            return
        saved = self._declared.settled(ended=ended)
        if saved is None and self._declared.restless >= _RESTLESS:
            self._recorder.warn(
                "checkpoint_restless",
                f"saves: what they match was written {_RESTLESS} times, and none of it is kept: "
                "a file counts as complete after 1 s without a change. Save less often",
            )
        if saved is None or (time.monotonic() < self._again and not ended):
            return
        catch_up()
        newest = max(changed_ns for _, changed_ns in saved.files.values()) / 1e9
        step = self._recorder.step_of_file(newest, saved.path)
        self._add(saved, step, "declared", f"what was saved at step {step:,}", again=not ended)

    @property
    def busy(self) -> bool:
        return self._running is not None or bool(self._waiting)

    def hurry(self) -> None:
        """Keep only the newest of those that wait: the run has little time to end."""
        self._most_waiting = 1

    def give_up(self) -> None:
        """End the copy that runs, without a draft, and forget those that wait."""
        if self._running is not None:
            copy, copier = self._running
            copier.kill()
            shutil.rmtree(draft_of(copy.folder), ignore_errors=True)
            self._waiting.append(copy)
        for copy in self._waiting:
            self._warn_lost(f"{copy.what} was not copied in the time that the run had to end")
            self._note_kept(copy)  # It is not tried again.
        self._running, self._waiting = None, []

    def advance(self) -> None:
        """Record a copy that has ended, and begin the next."""
        if self._running is not None:
            copy, copier = self._running
            answer = copier.answer()
            if answer is None:
                return
            self._running = None
            self._note_end(copy, answer)
        while len(self._waiting) > self._most_waiting:
            left_out = self._waiting.pop(0)
            self._warn_lost(f"{left_out.what} is left out: newer ones were saved before its copy")
        while self._waiting and self._running is None:
            copy = self._waiting.pop(0)
            if copy.folder.exists() and not self._replaceable(copy):
                self._note_kept(copy)
            else:
                self._begin(copy)

    def _replaceable(self, copy: _Copy) -> bool:
        """Return whether it may take the place of what was saved before at its step."""
        keep = read_orders(self._place.attempt_dir / layout.ORDERS).keep
        return copy.reason == "declared" and self._name(copy.folder) not in keep

    def _begin(self, copy: _Copy) -> None:
        try:
            self._running = copy, Copier(partial(self._copied, copy))
        except OSError as error:  # There is no process for it, as at the limit of a container.
            self._note_end(copy, {"failed": error.strerror})

    def _add(
        self, saved: ProgramSave, step: int, reason: str, what: str, *, again: bool = False
    ) -> None:
        folder = layout.checkpoint_dir(self._place.attempt_dir, step)
        if saved.elsewhere:
            links = ", ".join(saved.elsewhere[:5])
            words = "link to folders that are kept under another path, and are left out"
            self._recorder.warn("checkpoint_link", f"{what}: {links} {words}")
        if saved.files:
            self._waiting.append(_Copy(saved, step, reason, folder, what, again))
        self.advance()

    def _copied(self, copy: _Copy) -> dict[str, Any]:
        tokens = min(copy.step * self._tokens_per_step, MOST - 1)
        base, step = self._place.folder, copy.step
        try:
            kept = keep(base, copy.saved, copy.folder, step=step, tokens=tokens, reason=copy.reason)
            return asdict(kept)
        except StillChanging as error:
            return {"changed": str(error)}
        except OSError as error:
            return {"failed": error.strerror}

    def _note_end(self, copy: _Copy, answer: dict[str, Any]) -> None:
        if "digest" in answer:
            self._record(copy, answer)
            self._note_kept(copy)
            self._prune()
        elif "failed" in answer:
            shutil.rmtree(draft_of(copy.folder), ignore_errors=True)
            words = f"the checkpoint at step {copy.step:,} could not be copied"
            self._warn_lost(f"{words}: {answer['failed']}", "checkpoint_failed")
            self._again = time.monotonic() + _AGAIN_S
        elif not copy.again:
            self._warn_changed(copy.what, answer["changed"])

    def _note_kept(self, copy: _Copy) -> None:
        if copy.reason == "declared":
            self._declared.note_kept(copy.saved)

    def _warn_lost(self, message: str, code: str = "checkpoint_late") -> None:
        self._recorder.warn(code, message, most=_MOST_WARNINGS)

    def _warn_changed(self, what: str, changed: object) -> None:
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

    def _record(self, copy: _Copy, kept: Mapping[str, Any]) -> None:
        self.saved_step = copy.step
        self._events.write(
            Checkpoint(
                time=time.time(),
                step=copy.step,
                path=self._name(copy.folder),
                size_bytes=kept["size_bytes"],
                digest=kept["digest"],
                reason=copy.reason,
                seconds=kept["seconds"],
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
