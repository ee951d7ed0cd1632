"""``torchrun -m lehr_trainer PATH``: train the run at PATH, or its attempt.

PATH is a run directory, which holds a ``config.yaml`` (the next attempt is made in it and
resumes by itself), or an attempt's directory that the platform has made.

``python -m lehr_trainer export RUN_DIR OUT_DIR [--step N|best|last]``: write what was trained as a
folder that ``transformers`` loads.

``python -m lehr_trainer average PATH PATH... --out OUT_DIR``: the same of the mean of several.

``python -m lehr_trainer eval PATH --tasks FILE...``: evaluate a checkpoint on tasks.

``python -m lehr_trainer trace RUN_DIR``: the memory of a step by phase and kind, without a GPU.
``python -m lehr_trainer count RUN_DIR``: the parameters of its model, counted by building it.

``python -m lehr_trainer bench NAME``: repeat an experiment of docs/reference-runs.md, as a table.
"""

from __future__ import annotations

import contextlib
import os
import pkgutil
import signal
import sys
import threading
import time
import traceback
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from lehr_trainer import extras, process_start
from lehr_trainer.contract import layout
from lehr_trainer.contract.orders import read_orders
from lehr_trainer.contract.records import Finished, Stopping
from lehr_trainer.errors import DiskFull, NanLoss, TrainerError
from lehr_trainer.runtime import launch
from lehr_trainer.runtime.event_stream import EventStream
from lehr_trainer.runtime.failures import Failure, OtherRankFailed, explain

if TYPE_CHECKING:
    from lehr_trainer.runtime.channel import Channel
    from lehr_trainer.runtime.distributed import Ranks
    from lehr_trainer.runtime.hangs import BlackBox
    from lehr_trainer.train import Training


_COMMANDS = {
    "export": "lehr_trainer.export.command:main",
    "average": "lehr_trainer.export.soup:main",
    "eval": "lehr_trainer.tasks.command:main",
    "trace": "lehr_trainer.diagnostics.trace_command:trace",
    "count": "lehr_trainer.diagnostics.trace_command:count",
    "bench": "lehr_trainer.experiments.command:main",
}
"""What is imported on use: some of it takes seconds."""


def main() -> int:
    # For benches, too: their figures are for the spec of a run.
    process_start.set_cuda_allocator()
    command = _COMMANDS.get("".join(sys.argv[1:2]))
    if command is None and (len(sys.argv) != 2 or sys.argv[1].startswith("-")):
        print(__doc__, file=sys.stderr)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 1
    if find_spec("torch") is None:
        fix = extras.install("lehr[trainer]")
        print(f"error: torch is not installed. Install it: {fix}", file=sys.stderr)
        return 1
    if command is not None:
        return int(pkgutil.resolve_name(command)(sys.argv[2:]))
    process_start.die_with_parent()
    process_start.hold_gpus()
    rank = int(os.environ.get("RANK", "0"))
    try:
        place = launch.find_place(Path(sys.argv[1]), make_attempt=rank == 0)
    except TrainerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return RankProcess(rank, Path(sys.argv[1]).absolute(), place).run()


class RankProcess:
    """One rank's process, from its first line of log to its exit code."""

    def __init__(self, rank: int, path: Path, place: launch.RunPaths | None) -> None:
        self.rank, self.path, self.place = rank, path, place
        self.terminal: int | None = None
        self.ranks: Ranks | None = None
        self.training: Training | None = None
        self.events = EventStream(None)
        self.channel: Channel | None = None
        self.black_box: BlackBox | None = None
        self.reporting = threading.Lock()
        self.in_step_with_others = True

    def run(self) -> int:
        if self.place is not None:
            self._open_files(self.place)
        try:
            finished = self._train()
        except Exception as error:  # noqa: BLE001 - whatever it is, the run has to report how it ended
            if not isinstance(error, TrainerError | OtherRankFailed):
                traceback.print_exc()
            code = self._fail(explain(error, self.rank), isinstance(error, NanLoss))
            if self.ranks is not None and self.ranks.world_size > 1:
                # The group's destructor could wait for a rank that hangs, or abort over its end.
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
            return code
        if self.black_box is not None:
            self.black_box.stop()
        self.events.write(finished)
        self.events.fsync()
        self.log(f"{finished.outcome} at step {finished.step}")
        if self.ranks is not None:
            self.training = None  # Its wrapped model holds on to the ranks' group.
            self.ranks.destroy(together=self.in_step_with_others)
        return 0

    def log(self, line: str) -> None:
        """Write a line of progress to the log, and to the terminal if the run was started there."""
        if self.rank != 0:
            return
        print(line, flush=True)
        if self.terminal is not None:
            os.write(self.terminal, f"{line}\n".encode())

    def _open_files(self, place: launch.RunPaths) -> None:
        terminal = launch.redirect_output(layout.rank_log(place.attempt_dir, self.rank))
        if place.standalone and self.rank == 0:
            self.terminal = terminal
        else:
            os.close(terminal)
        self.place = place
        if self.rank == 0:
            self.events = EventStream(place.attempt_dir / layout.EVENTS)

    def _train(self) -> Finished:
        known_seq = 0
        if self.place is not None:
            known_seq = read_orders(self.place.attempt_dir / layout.ORDERS).checkpoint_seq
        run_dir = self.path if self.place is None else self.place.run_dir
        config = launch.read_config(run_dir / layout.CONFIG)

        # torch from here on.
        from lehr_trainer.assemble import assemble
        from lehr_trainer.runtime import environment
        from lehr_trainer.runtime.channel import Channel
        from lehr_trainer.runtime.distributed import Ranks
        from lehr_trainer.runtime.environment import RunContext
        from lehr_trainer.runtime.hangs import BlackBox, buckets
        from lehr_trainer.step_control import Interrupted, StopSignal

        timeline = environment.Timeline()
        timeline.mark("imports")
        signals = StopSignal()
        try:
            environment.prepare_process(config)
            self.ranks = Ranks.join(config.device)
            attempt_dir = self.ranks.on_rank0(lambda: str(self._known_place().attempt_dir))
            if self.place is None:
                found = launch.find_place(Path(attempt_dir), make_attempt=False)
                assert found is not None
                self._open_files(found)
            place = self._known_place()
            if self.ranks.world_size > 1:
                self.channel = Channel(self.rank)
                # So that every rank has a log, and a reader sees which process it was.
                where = f"pid {os.getpid()}, {self.ranks.device}"
                print(f"rank {self.rank} of {self.ranks.world_size}: {where}", flush=True)
            timeline.mark("ranks")
            context = RunContext(
                config=config,
                place=place,
                ranks=self.ranks,
                events=self.events,
                signals=signals,
                timeline=timeline,
                log=self.log,
                known_checkpoint_seq=known_seq,
            )
            box = self.black_box = BlackBox(context, self.channel, self._end_for_another)
            box.training = self.training = assemble(context)
            box.buckets = buckets(self.training.wrapped)
            signals.wait_for_boundary = True
            return self.training.run()
        except Interrupted:
            with contextlib.suppress(RuntimeError):  # torchrun's store may have ended before.
                if self.channel is not None and (others := self.channel.failures()):
                    # torchrun ends us because another rank failed: report that failure.
                    raise OtherRankFailed(others[0]) from None
            self.in_step_with_others = False
            step, now = self.events.last_step, time.time()
            self.events.write(Stopping(time=now, step=step, reason="signal"))
            return Finished(time=now, step=step, outcome="stopped", cause="signal")

    def _known_place(self) -> launch.RunPaths:
        assert self.place is not None
        return self.place

    # --- failing -----------------------------------------------------------------------------

    def _fail(self, own: Failure, lost_weights: bool) -> int:
        if self.ranks is None and self.rank != 0:
            launch.wait_for_rank0_report()
            return 1
        # This process is ending already. If another rank was quicker, torchrun's signal must not
        # keep it from reporting why.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        if self.place is None:
            print(f"error: {own.message}", file=sys.stderr)
            return 1
        failure = own
        if self.channel is not None and own.rank == self.rank:
            failure = self.channel.root_cause(own)
        if lost_weights:
            failure = self._name_last_good(failure)
        self._report(failure)
        return 1

    def _end_for_another(self, failure: Failure) -> None:
        """Report another rank's failure; called by the thread that watches, before the process
        ends.
        """
        if self.training is not None:
            self.training.checkpointer.end()
        self._report(failure)

    def _name_last_good(self, failure: Failure) -> Failure:
        place = self._known_place()
        every = [p for folder in layout.attempts(place.run_dir) for p in layout.checkpoints(folder)]
        last = (
            f"the last good checkpoint is {every[-1].relative_to(place.run_dir)}"
            if every
            else "there is no checkpoint yet"
        )
        message = (
            f"{failure.message}; {last}. Most often the learning rate is too high: lower "
            "optimizer.lr, or warm up for longer"
        )
        return Failure(failure.rank, failure.cause, message)

    def _report(self, failure: Failure) -> None:
        """Report the failure in the log, on the terminal and in the ``finished`` record."""
        # The black box and the main thread may fail at once: who comes second waits for the end.
        self.reporting.acquire()
        print(f"error: {failure.message}", file=sys.stderr)
        if self.terminal is not None:
            os.write(self.terminal, f"error: {failure.message}\n".encode())
        step, now = self.events.last_step, time.time()
        last = Finished(
            time=now, step=step, outcome="failed", cause=failure.cause, message=failure.message
        )
        # If the disk is too full even for this line, the log and the exit code must suffice.
        with contextlib.suppress(DiskFull):
            if failure.cause == NanLoss.cause:
                self.events.write(Stopping(time=now, step=step, reason="nan"))
            self.events.write(last)
            self.events.fsync()


if __name__ == "__main__":
    sys.exit(main())
