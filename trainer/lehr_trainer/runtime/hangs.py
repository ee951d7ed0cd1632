"""The black box of a rank: it notes where steps stop, and on which rank.

A thread of each rank looks at its loop. Where steps stop, each rank publishes its stacks,
collectives and batches (``channel.py``), and the first that can writes them all down, with the
sentence that names the rank at fault (``hang_verdict.py``): the failure of the run. The thread also
ends this process when another rank has failed: inside NCCL it runs no Python and sees no signal.

A rank whose C code holds Python's lock cannot report. So a timer of faulthandler, which the thread
sets again and again, writes its stacks into its log.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import json
import math
import os
import platform
import re
import socket
import sys
import sysconfig
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch._C import _distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from lehr_trainer.contract import layout
from lehr_trainer.files import open_regular, write_atomically
from lehr_trainer.runtime.channel import Channel
from lehr_trainer.runtime.event_stream import SystemSamples
from lehr_trainer.runtime.failures import HANG, Failure
from lehr_trainer.runtime.hang_verdict import Collective, Report, judge

if TYPE_CHECKING:
    from lehr_trainer.runtime.environment import RunContext
    from lehr_trainer.train import Training

_LOOK_EVERY_S = 0.5
_LATE = 0.9
"""Part of the limit after which a rank publishes what it does, and may be found to hang."""
_PATIENCE = 30
"""What is no step may take this many times the limit: evaluation, save, compilation."""
_WAIT_S = 4.0
"""Time for a rank to show a sign of life, and for the main thread to report a failure itself."""
_STORE_S = 20.0
"""How long torchrun's store may leave a rank without an answer: its machine may be busy."""
_COMPILERS = ("/convert_frame.py", "/compile_fx.py", "/autotuner.py")
"""Files of torch and Triton whose functions run while something is compiled."""
_LIBRARIES = (str(Path(torch.__file__).parent), sysconfig.get_path("stdlib"), "<")
_DUMP = re.compile(r"Timeout \([^\n]*\)!\n((?:(?:Thread |Current |  File |  <)[^\n]*\n|\n)+)\Z")
_LAYER = re.compile(r"(\.\d+)\..*|\.[^.]*$")
_FRAME = re.compile(r'  File "([^"]*)", line (\d+) in (\S+)')


class Pulse:
    """How far the loop of this process has come. The loop writes it, ``BlackBox`` reads it."""

    def __init__(self) -> None:
        self.step, self.phase, self.moved_at = 0, "set-up", time.monotonic()
        self._took_s: deque[float] = deque(maxlen=20)

    def move(self, step: int, phase: str) -> None:
        """Note what begins now; an empty phase is an ordinary step."""
        self.step, self.phase, self.moved_at = step, phase, time.monotonic()

    def took(self, step: int, *, last: bool) -> None:
        """Note a step. ``last``: of its stage, so that what follows is no step."""
        if not self.phase:
            self._took_s.append(time.monotonic() - self.moved_at)
        self.move(step, "end of the stage" if last else "")

    @contextlib.contextmanager
    def lasting(self, phase: str) -> Iterator[None]:
        """Note that what happens within is no step."""
        before = self.phase
        self.move(self.step, phase)
        try:
            yield
        finally:
            self.move(self.step, before)

    def limit_s(self, limit_s: float) -> float:
        """Return the seconds that what happens now may take."""
        if self.phase == "set-up":
            return math.inf  # A corpus may take hours; torch limits the wait for other ranks.
        took_s = list(self._took_s)
        steps_s = 10 * sum(took_s) / len(took_s) if took_s else 0.0
        return _PATIENCE * limit_s if self.phase else max(limit_s, steps_s)


class BlackBox:
    """This rank's part in finding out why steps have stopped, and in ending with the others."""

    def __init__(
        self, context: RunContext, channel: Channel | None, end: Callable[[Failure], None]
    ) -> None:
        """Start the thread. ``end``: reports a failure. ``channel``: None with a single rank."""
        self.rank, self.ranks = context.ranks.rank, range(context.ranks.world_size)
        self.channel, self.end = channel, end
        self.attempt_dir, self.pulse = context.place.attempt_dir, context.pulse
        self.limit_s = context.config.parallel.hang_limit_s or math.inf
        self.host = os.environ.get("LEHR_NODE_NAME") or platform.node()
        self.training: Training | None = None
        self.buckets: list[tuple[int, str]] = []
        self._done = threading.Event()
        self._beats = 0
        self._heard: dict[int, tuple[int, float]] = {}
        """By rank, its last beat and when it was new here."""
        self._thread = threading.Thread(target=self._run, name="black-box", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread: once this rank is done, no other's failure is its own."""
        self._done.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def _run(self) -> None:
        idle, moved_at, before, pause = 0.0, 0.0, time.monotonic(), 0.0
        while not self._done.wait(pause):  # At first at once: a rank without a beat is not known.
            now, pause = time.monotonic(), _LOOK_EVERY_S
            if moved_at != self.pulse.moved_at:
                moved_at, idle = self.pulse.moved_at, 0.0
            idle += min(now - before, 4 * _LOOK_EVERY_S)  # One that was suspended has not waited.
            before, limit_s = now, self.pulse.limit_s(self.limit_s)
            if self.limit_s < math.inf:
                faulthandler.dump_traceback_later(_LATE * self.limit_s, file=2)
            if idle > _LATE * limit_s:
                files = [path for stack in _stacks().values() for _, path, _ in stack]
                compiles = any(path.endswith(_COMPILERS) for path in files)
                limit_s = _PATIENCE * self.limit_s if compiles else limit_s
            try:
                self._look(idle / limit_s)
            except dist.DistError:
                if idle > limit_s + _STORE_S:
                    self._end_alone("torchrun's store does not answer")

    def _look(self, late: float) -> None:
        """Publish what this rank does. ``late``: its time without a step, as part of the limit."""
        if self.channel is None:
            if late > 1:
                self._end_alone("it takes no step")
            return
        others = [one for one in self.channel.failures() if one.rank != self.rank]
        # This process's main thread may be about to fail of it too, with a better message.
        if others and (others[0].cause == HANG or not self._done.wait(_WAIT_S)):
            self.end(others[0].named)
            os._exit(1)
        self._beats += 1
        if late > _LATE:
            self.channel.put("report", asdict(self._report()))
        beat = {"host": self.host, "machine": platform.node(), "pid": os.getpid()}
        beat |= {"step": self.pulse.step, "phase": self.pulse.phase, "late": late}
        self.channel.put("beat", {**beat, "number": self._beats})
        if late > _LATE:
            self._judge(self.channel, late)

    def _judge(self, channel: Channel, late: float) -> None:
        """Name the rank that the others wait for, if they do, and if this is the first that can."""
        now, beats = time.monotonic(), channel.of("beat", self.ranks)
        for rank, beat in beats.items():
            if self._heard.get(rank, (0, 0.0))[0] != beat["number"]:
                self._heard[rank] = beat["number"], now
        awake = [rank for rank in beats if now - self._heard[rank][1] < _WAIT_S]
        silent = [beats[rank] for rank in beats if rank not in awake]
        # What a rank did at its last beat, if it cannot have taken a step since.
        busy = any(beat["phase"] and beat["step"] >= self.pulse.step - 1 for beat in silent)
        all_late = all(beats[rank]["late"] > _LATE for rank in awake)
        if late < (_PATIENCE if busy else 1) or not all_late or self.rank != min(awake):
            return
        found = channel.of("report", awake)
        reports = {rank: Report.of(content) for rank, content in found.items()}
        known = {rank: self._known_of(rank, beats[rank]) for rank in beats if rank not in awake}
        hosts = {rank: str(beat["host"]) for rank, beat in beats.items()}
        self._end(judge(reports, hosts, known), reports)

    def _end_alone(self, what: str) -> None:
        own = self._report()
        where = f"rank {self.rank} on {self.host}: {what}; its Python is in {own.place}"
        self._end(f"hang at step {own.step + 1:,}: {where}", {self.rank: own})

    def _end(self, sentence: str, reports: Mapping[int, Report]) -> None:
        """Write the record, a file for programs and one to read, and fail."""
        contents: list[object] = [sentence, *(asdict(report) for report in reports.values())]
        room = 1_000_000 // len(reports)
        texts = [sentence, *("\n".join(_described(one))[:room] for one in reports.values())]
        if self.channel is not None and dist.get_backend() == "nccl":
            texts.append(_ask_ras())
        node = os.environ.get("GROUP_RANK", "0")
        name = "hang.log" if node == "0" else f"hang-{node}.log"
        with contextlib.suppress(OSError):  # The sentence is reported in any case.
            write_atomically(self.attempt_dir / "hang.json", json.dumps(contents))
            write_atomically(self.attempt_dir / name, "\n".join([*texts, f"error: {sentence}\n"]))
        failure = Failure(-1, HANG, sentence)
        if self.channel is not None:
            with contextlib.suppress(dist.DistError):
                self.channel.fail(failure)
        self.end(failure)
        os._exit(1)

    def _known_of(self, rank: int, beat: Mapping[str, object]) -> str:
        """Return what can be seen from here of a rank that does not answer."""
        with contextlib.suppress(OSError):
            if beat["machine"] == platform.node():
                stat = Path(f"/proc/{beat['pid']}/stat").read_text()
                if stat.rpartition(")")[2].split()[0] in "Tt":
                    return "its process is stopped (SIGSTOP, or a debugger)"
            with open_regular(layout.rank_log(self.attempt_dir, rank)) as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 100_000))
                dump = _DUMP.search(file.read().decode(errors="replace"))
            # The main thread is the oldest, which comes last.
            frames = _FRAME.findall(dump.group(1).rpartition("Thread ")[2]) if dump else []
            for path, line, name in [f for f in frames if not _is_library(f[0])] or frames:
                return f"C code holds the lock of its Python, in {_shown(name, path, line)}"
        return "it runs no Python, or its machine is out of reach"

    def _report(self) -> Report:
        stacks = _stacks()
        main = stacks[threading.main_thread().name]
        place = next((frame for frame in main if not _is_library(frame[1])), main[0])
        world = dist.distributed_c10d._world  # noqa: SLF001 - no public list
        return Report(
            rank=self.rank,
            host=self.host,
            step=self.pulse.step,
            place=_shown(*place),
            collectives=_collectives()[-600:],
            groups={world.pg_names[pg]: sorted(own) for pg, own in world.pg_group_ranks.items()},
            buckets=self.buckets,
            batches=list(self.training.loader.taken) if self.training is not None else [],
            stacks=stacks,
            system=SystemSamples().due(),
        )


def _stacks() -> dict[str, list[tuple[str, str, int]]]:
    """Return function, file and line of each thread's frames, innermost first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        names.get(ident, f"thread {ident}"): [
            (inner.f_code.co_qualname, inner.f_code.co_filename, line)
            for inner, line in itertools.islice(traceback.walk_stack(frame), 80)
        ]
        for ident, frame in sys._current_frames().items()  # noqa: SLF001 - no other way
    }


def _is_library(path: str) -> bool:
    return path.startswith(_LIBRARIES) and ("site-packages" not in path or "/torch/" in path)


def _shown(function: str, path: str, line: object) -> str:
    return f"`{function}` ({Path(path).parent.name}/{Path(path).name}:{line})"


def _ask_ras() -> str:
    """Return NCCL's own report of its ranks (RAS), asked for as its client ``ncclras`` does."""
    host, _, port = os.environ.get("NCCL_RAS_ADDR", "localhost:28028").rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=3) as ras:
            lines = ras.makefile("rw")
            for line in ("CLIENT PROTOCOL 2", "TIMEOUT 2", "VERBOSE STATUS"):
                print(line, file=lines, flush=True)
                answer = lines.read(100_000) if line.startswith("V") else lines.readline()
            return answer
    except (OSError, ValueError) as error:
        return f"RAS: {error}"


def _described(report: Report) -> Iterator[str]:
    """Yield the lines of a rank in the text."""
    where = f"{report.step:,} steps taken; its Python is in {report.place}"
    yield f"\n== rank {report.rank} on {report.host}: {where}"
    yield f"last batches as step, micro-step, digest: {report.batches}; system: {report.system}"
    for one in report.collectives[-20:]:
        ranks = report.groups.get(one.group)
        yield f"{one.operation} {one.number:,} of {one.size:,} values, {one.state}, ranks {ranks}"
    for name, stack in report.stacks.items():
        yield f"-- {name}, innermost function first"
        yield from (f"   {function} ({path}:{line})" for function, path, line in stack)


def _collectives() -> list[Collective]:
    """Return what torch's flight recorder has of this rank, of gloo and NCCL alike."""
    if not hasattr(c10d, "_dump_fr_trace_json"):  # Before torch 2.8.
        return []
    trace = json.loads(c10d._dump_fr_trace_json())  # noqa: SLF001 - as torch documents it
    return [
        Collective(
            group=entry["process_group"][0],
            number=entry["collective_seq_id"],
            operation=entry["profiling_name"].rpartition(":")[2],
            size=sum(math.prod(sizes) for sizes in entry["input_sizes"]),
            state=entry["state"],
            created_ns=entry["time_created_ns"],
        )
        for entry in trace.get("entries", [])
        if not entry["is_p2p"]
    ]


def buckets(wrapped: nn.Module) -> list[tuple[int, str]]:
    """Return ``Report.buckets``; none without DDP. Backward must not run: DDP locks them then."""
    if not isinstance(wrapped, DistributedDataParallel):
        return []
    data = wrapped._get_ddp_logging_data()  # type: ignore[no-untyped-call]  # noqa: SLF001
    trained = [item for item in wrapped.module.named_parameters() if item[1].requires_grad]
    found = []
    for indices in data.get("rebuilt_per_bucket_param_indices", "").split(","):
        if inside := [trained[int(index)] for index in indices.split()]:
            # layers.7 of layers.7.attention.query.weight, norm of norm.weight
            names = (_LAYER.sub(r"\1", name) for name, _ in (inside[-1], inside[0]))
            found.append((sum(p.numel() for _, p in inside), " to ".join(dict.fromkeys(names))))
    return found
