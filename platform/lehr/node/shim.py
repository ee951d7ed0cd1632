"""The shim: one small process per attempt. Starts the training, waits, and records how it ended.

Run as ``python -I -S shim.py ENTRY`` by the node's agent. Standard library only and
single-threaded: the training continues whatever fails in Ray, HTTP or the server.

It moves into the background in its own session, so that the raylet, which ends an agent's children,
does not find it. Then it takes the GPUs' locks, writes the attempt's directory, starts the shipper
and the trainer, and waits. At the end it makes sure that no process of the attempt is left, writes
exit.json, frees the GPUs, and waits until the shipper has delivered everything.

``--finalize-orphan`` is for an attempt whose shim was killed: end the remaining processes, record
the exit, and have the streams delivered. ``--unread``: record the exit without a look into the
attempt's directory, for which the shim before may have waited in vain.
"""

import errno
import os
import signal
import sys
import time
from typing import Any

sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from lehr.base import killpoints, procfs
from lehr.code import code_cache
from lehr.node import attempt_code, attempt_dir, exit_report, subprocesses, torchrun
from lehr.node.attempt_dir import STOP_LEVELS, AttemptDir
from lehr.node.gpu_lock import GpuLock, acquire_all
from lehr.node.subprocesses import into_background

SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1}
GPU_WAIT_S = 30.0  # Time to wait until processes of an earlier attempt have left the GPUs.
SHIPPER_PAUSE_S = 2.0  # Pause between restarts of a shipper that ended early.
NOTE_AGAIN_S = 2.0  # Pause between attempts to write exit.json on a full disk.


class Shim:
    def __init__(self, entry: AttemptDir, launch: dict[str, Any]) -> None:
        self.entry = entry
        self.launch = launch
        self.gang = torchrun.Gang(**launch["gang"])
        self.attempt_dir = str(launch["attempt_dir"])
        self.environment: dict[str, str] = dict(launch["env"])
        """Variables of the spec. ``prepare`` adds the values of its secrets."""
        self.python: str | None = None
        """Interpreter of the environment that the spec names; None: that of the node."""
        self.locks: list[GpuLock] = []
        self.trainer: subprocesses.Child | None = None
        self.shipper: subprocesses.Child | None = None
        self.shipper_due = 0.0
        self.uploader: subprocesses.Child | None = None
        self.uploader_due = 0.0
        self.stop_level = ""
        self.stop_reason = ""
        self.stop_level_since = 0.0
        self.unread = False
        self.outside = False  # The request to stop was a signal that Lehr did not send.

    # --- course of an attempt ----------------------------------------------------------------

    def run(self) -> None:
        started_at = time.time()
        killpoints.reached("shim: after the shim is registered")
        failure = self.take_gpus() or self.prepare()
        killpoints.reached("shim: before the trainer is started")
        if failure is None:
            self.start_shipper()
            self.start_uploader()
            failure = (
                self.fetch_code()
                or attempt_code.other_protocol(self.launch, self.entry)
                or self.build_environment()
                or self.fetch_checkpoint()
                or self.start_trainer()
            )
            killpoints.reached("shim: after the trainer is started")
        if failure is None:
            self.wait_for_trainer()
        self.end(failure or ("", ""), started_at)
        self.deliver()

    def finalize_orphan(self) -> None:
        """Finish an attempt whose shim was killed, or whose exit was not delivered."""
        if self.entry.exit() is None:
            if self.launch["boot_id"] != procfs.boot_id():
                failure = ("node_rebooted", "the node was restarted while it ran")
            else:
                why = "did not answer, and was killed" if self.unread else "was killed"
                failure = ("shim_lost", f"its launcher {why}")
            self.end(failure, None)
        self.deliver()

    def take_gpus(self) -> tuple[str, str] | None:
        deadline = time.monotonic() + GPU_WAIT_S
        while True:
            held = acquire_all(self.launch["gpu_locks"])
            if held is not None:
                self.locks = held
                return None
            if self.stop_level_rises() or self.stop_level:
                return ("stopped", self.stop_reason)
            if time.monotonic() > deadline:
                gpus = ", ".join(str(gpu) for gpu in self.launch["gpus"])
                return ("gpu_busy", f"GPU {gpus}: held by processes that are not this attempt's")
            self.sleep(0.05)

    def prepare(self) -> tuple[str, str] | None:
        """Write the trainer's files into the run's and the attempt's directory."""
        try:
            os.makedirs(self.attempt_dir, exist_ok=True)
            self.environment |= attempt_dir.take_secrets(self.entry.path)
            for name, text in self.launch["files"].items():
                path = os.path.join(self.launch["run_dir"], name)
                if not os.path.exists(path):
                    procfs.write_atomically(path, text.encode("utf-8", "surrogatepass"))
        except OSError as error:
            return ("launch_failed", f"{error.filename or self.attempt_dir}: {error.strerror}")
        return None

    def fetch_checkpoint(self) -> tuple[str, str] | None:
        """Fetch the checkpoint to resume from if this node lacks it and copies exist."""
        if not self.launch.get("fetch"):
            return None
        return self.wait_for_fetcher("fetcher.py", "checkpoint", "checkpoint_unreachable")

    def fetch_code(self) -> tuple[str, str] | None:
        """Fetch the capsule that the attempt trains with, unless it is unpacked on this node."""
        if attempt_code.is_here(self.launch, self.entry):
            return None
        return self.wait_for_fetcher("fetcher.py", "code", "code_unreachable")

    def build_environment(self) -> tuple[str, str] | None:
        """Build the environment that the project's file names, unless this node has it."""
        try:
            key = attempt_code.environment_key(self.launch, self.entry)
        except OSError as error:
            return ("environment_failed", f"{self.launch['environment']}: {error.strerror}")
        if key is None:
            return None
        node = code_cache.node_folder(self.entry.path)
        if not code_cache.environment_ready(node, key):
            failure = self.wait_for_fetcher(
                "environment_builder.py", "", "environment_failed", of_spec=False
            )
            if failure is not None:
                return failure
        self.python = code_cache.environment_python(node, key)
        return None

    def wait_for_fetcher(
        self, script: str, what: str, failed: str, *, of_spec: bool = True
    ) -> tuple[str, str] | None:
        """Run a fetcher to its end; return the failure ``failed`` if it does not succeed.

        ``of_spec``: it gets the variables of the spec.
        """
        output = os.path.join(self.entry.path, "fetch.log")
        log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            fetcher = self.start_side_process(script, what, output=log, of_spec=of_spec)
        finally:
            os.close(log)
        while fetcher.poll() is None:
            self.sleep(1.0)
            if self.stop_level_rises() or self.stop_level:
                for pid in (*procfs.children(fetcher.pid), fetcher.pid):
                    procfs.send(pid, signal.SIGKILL)
                return ("stopped", self.stop_reason)
        message = exit_report.last_bytes(output, 2_000).decode("utf-8", "replace").strip()
        procfs.log(message)
        return None if fetcher.returncode == 0 else (failed, message)

    def start_trainer(self) -> tuple[str, str] | None:
        try:
            self.trainer = torchrun.start(
                self.launch,
                self.entry,
                self.gang,
                variables=self.environment,
                python=self.python,
                output=self.launcher_log,
                # The GPU stays locked while the trainer lives, even if this shim ends. torchrun
                # does not pass these descriptors on, so its ranks open the locks themselves.
                keep=tuple(lock.shared for lock in self.locks),
            )
        except OSError as error:
            return ("launch_failed", f"{error.filename}: {error.strerror}")
        return None

    @property
    def launcher_log(self) -> str:
        rank = self.gang.node_rank
        return os.path.join(self.attempt_dir, f"launcher-{rank}.log" if rank else "launcher.log")

    def wait_for_trainer(self) -> None:
        assert self.trainer is not None
        grace_s = torchrun.term_grace_s(self.launch)
        while self.trainer.poll() is None:
            self.sleep(1.0)
            if self.stop_level_rises():
                self.apply_stop_level()
            if (
                self.outside
                and self.stop_level == "term"
                and time.monotonic() - self.stop_level_since > grace_s
            ):
                self.raise_stop_level("kill", f"it did not end within {grace_s:g} s of SIGTERM")
                self.apply_stop_level()

    def end(self, failure: tuple[str, str], started_at: float | None) -> None:
        """End all processes of the attempt, then record how it ended, then free the GPUs."""
        killpoints.reached("shim: after the trainer has ended")
        left = self.kill_all()
        reason, detail = failure
        if not reason and self.stop_level:
            reason = "terminated" if self.outside else "stopped"
            detail = self.stop_reason
        if left:
            detail += f" (processes that cannot be killed: {', '.join(map(str, left))})"
        code = self.trainer.returncode if self.trainer is not None else None
        note = exit_report.build(
            "" if self.unread else self.attempt_dir,
            code=code,
            reason=reason,
            detail=detail,
            started_at=started_at,
            boot_id=procfs.boot_id(),
        )
        name = f"exit-{self.gang.node_rank}.json" if self.gang.node_rank else "exit.json"
        try:
            if not self.unread:
                procfs.write_json(os.path.join(self.attempt_dir, name), note, durable=True)
        except OSError as error:
            # The disk may be full. ``note_end`` also writes the exit, on the disk of the agent.
            procfs.log(f"{name}: {error}")
        killpoints.reached("shim: before exit.json is written")
        self.note_end(note)
        killpoints.reached("shim: after exit.json is written")
        for lock in self.locks:
            lock.release()
        attempt_code.tidy(self.launch)

    def note_end(self, note: dict[str, Any]) -> None:
        """Record the exit for the agent; on a full disk, try again and again.

        Otherwise the exit of the training would be lost. Its GPUs are already free.
        """
        while True:
            try:
                procfs.write_json(self.entry.file("exit.json"), note, durable=True)
            except OSError as error:
                if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                    raise
                procfs.log(f"the exit cannot be recorded: {error}")
                for lock in self.locks:
                    lock.release()
                self.sleep(NOTE_AGAIN_S)
            else:
                return

    def kill_all(self) -> list[int]:
        mine = {os.getpid()}
        if self.shipper is not None:
            mine.add(self.shipper.pid)
        return subprocesses.kill_marked(str(self.launch["nonce"]), mine, lambda: self.sleep(0.02))

    def deliver(self) -> None:
        if self.shipper is not None:
            procfs.send(self.shipper.pid, signal.SIGUSR1)  # exit.json exists now: check at once.
        if self.uploader is not None:
            procfs.send(self.uploader.pid, signal.SIGUSR1)
        while not self.entry.is_done:
            now = time.monotonic()
            if self.shipper is None and now >= self.shipper_due and not self.entry.delivered:
                self.start_shipper()
            if self.uploader is None and now >= self.uploader_due:
                self.start_uploader()
            self.sleep(5.0)

    # --- child processes ---------------------------------------------------------------------

    def start_shipper(self) -> None:
        here = os.path.dirname(os.path.abspath(__file__))
        self.shipper = subprocesses.start(
            [sys.executable, "-I", "-S", os.path.join(here, "shipper.py"), self.entry.path],
            environment=dict(os.environ),
            folder="/",
        )

    def start_uploader(self) -> None:
        """Start the uploader if copies are requested, on the node that writes the checkpoints."""
        wanted = self.launch.get("upload") and self.gang.node_rank == 0
        if wanted and not os.path.exists(self.entry.file("uploaded")):
            self.uploader = self.start_side_process("uploader.py")

    def start_side_process(
        self, script: str, what: str = "", *, output: int | None = None, of_spec: bool = True
    ) -> subprocesses.Child:
        """Start a process with site-packages, and with the variables of the spec if ``of_spec``."""
        here = os.path.dirname(os.path.abspath(__file__))
        return subprocesses.start(
            [sys.executable, "-I", os.path.join(here, script), self.entry.path, what],
            environment={**os.environ, **(self.environment if of_spec else {})},
            folder="/",
            output=output,
        )

    def sleep(self, seconds: float) -> None:
        """Wait for a signal, at most this long, and restart shipper and uploader if needed."""
        info = signal.sigtimedwait(SIGNALS, seconds)
        self.entry.touch()
        subprocesses.reap_orphans()
        if info is not None and info.si_signo in {signal.SIGTERM, signal.SIGINT}:
            self.outside = not self.stop_level
            named = f"{signal.Signals(info.si_signo).name} from outside"
            self.raise_stop_level("term", self.entry.stopped_by() or named)
            self.apply_stop_level()
        if self.shipper is not None and self.shipper.poll() is not None:
            self.shipper = None
            self.shipper_due = time.monotonic() + SHIPPER_PAUSE_S
        if self.uploader is not None and self.uploader.poll() is not None:
            self.uploader = None
            self.uploader_due = time.monotonic() + SHIPPER_PAUSE_S
        training = self.trainer is not None and self.trainer.returncode is None
        if self.uploader is None and training and time.monotonic() >= self.uploader_due:
            self.start_uploader()
        if self.shipper is None and training and time.monotonic() >= self.shipper_due:
            self.start_shipper()

    # --- stop requests -----------------------------------------------------------------------

    def stop_level_rises(self) -> bool:
        requested = self.entry.stop_level()
        return requested is not None and self.raise_stop_level(*requested)

    def raise_stop_level(self, stop_level: str, reason: str) -> bool:
        if self.stop_level and STOP_LEVELS.index(stop_level) <= STOP_LEVELS.index(self.stop_level):
            return False
        self.stop_level, self.stop_reason = stop_level, reason
        self.stop_level_since = time.monotonic()
        return True

    def apply_stop_level(self) -> None:
        if self.trainer is None or self.trainer.returncode is not None:
            return
        if self.stop_level == "kill":
            self.kill_all()
        elif self.stop_level == "term":
            # Signal the ranks directly: torchrun would kill them 30 s after its own SIGTERM, too
            # soon for a large save. It ends by itself after them.
            pid = self.trainer.pid
            for rank in [pid] if self.gang.alone else procfs.children(pid) or [pid]:
                procfs.send(rank, signal.SIGTERM)


def main() -> None:
    entry = AttemptDir(os.path.abspath(sys.argv[1]))
    launch = entry.launch()
    if launch is None:
        sys.exit(f"{entry.path}: no launch.json")
    # Signals are blocked and waited for: no handler interrupts a call, and no signal is missed.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    into_background(entry)
    os.chdir("/")
    shim = Shim(entry, launch)
    if "--finalize-orphan" in sys.argv[2:]:
        shim.unread = "--unread" in sys.argv[2:]
        shim.finalize_orphan()
    else:
        shim.run()


if __name__ == "__main__":
    main()
