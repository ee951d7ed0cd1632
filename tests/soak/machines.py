"""Two machines of namespaces whose disks outlive a call: alpha has the server, beta has joined it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from lehr import Client
from lehr.errors import LehrError
from lehr.node import procfs
from lehr_testing.faults.hosts import SHARED, Host, Switch, join_line
from lehr_testing.server import TRAINER, alive
from lehr_testing.specs import text_corpus
from lehr_testing.waiting import until

GPUS = 4
"""Logical GPUs of each machine."""
HOME = "/root/.lehr"
DISK_MB = 1500
STEADY_S = 10.0
"""For which both nodes must be in use to count as recovered."""
UP_S = 600.0
JOIN_S = 120.0
"""Within which a server must start, also on a busy machine: `lehr up` gives up earlier."""
FAILED = (LehrError, OSError, AssertionError, subprocess.SubprocessError, ValueError, IndexError)
"""What a look at a machine may raise while a fault is on."""


class SoakHost(Host):
    """A host whose home of Lehr is a small disk, an image in the shared folder."""

    @property
    def home(self) -> Path:
        """Return its home of Lehr, as this machine sees it: the disk is mounted here, too."""
        assert self.shared is not None
        return self.shared / "disks" / self.name

    @property
    def image(self) -> Path:
        return self.home.with_suffix(".img")

    def mount(self) -> None:
        """Mount its disk; make it, if it is new."""
        self.home.mkdir(parents=True, exist_ok=True)
        if not self.image.exists():
            draft = self.image.with_suffix(".new")
            with draft.open("wb") as file:
                file.truncate(DISK_MB << 20)
            _call("mkfs.ext4", "-q", "-F", str(draft))
            draft.rename(self.image)
        # A namespace of another process may have a copy of the last mount. Then `mount` uses the
        # same loop device again, and the disk has one file system, not two.
        mount = ["mount", "-o", "loop", str(self.image), str(self.home)]
        until(
            lambda: subprocess.run(mount, capture_output=True, check=False).returncode == 0,
            within_s=60,
            what=f"{self.image} to be mounted",
        )
        self.home.chmod(0o700)

    def boot(self) -> None:
        """Boot it with a boot id of its own, as after a power cut, and with its own disk alone."""
        self.home.with_suffix(".boot").write_text(f"{uuid.uuid4()}\n")
        super().boot()
        disks = f"{SHARED}/disks"
        script = (
            f"mkdir -p {HOME} && mount --bind {disks}/{self.name} {HOME} && "
            f"mount --bind {disks}/{self.name}.boot /proc/sys/kernel/random/boot_id && "
            f"mount -t tmpfs none {disks}"
        )
        self.run("bash", "-c", script)

    @property
    def first(self) -> int:
        """Return its first process."""
        assert self.init is not None
        children = Path(f"/proc/{self.init.pid}/task/{self.init.pid}/children").read_text()
        return int(children.split()[0])

    def processes(self) -> dict[int, str]:
        """Return pid on this machine -> command line of all that runs on it."""
        mine = Path(f"/proc/{self.first}/ns/pid").readlink()
        found = {}
        for pid in procfs.pids():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/ns/pid").readlink() == mine and alive(pid):
                    line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                    found[pid] = line.decode(errors="replace").strip()
        return found

    def named(self, words: str) -> list[int]:
        return [pid for pid, line in self.processes().items() if words in line]

    def outer(self, inner: int) -> int | None:
        """Return the pid on this machine of a process that it knows as ``inner``."""
        for pid in self.processes():
            with contextlib.suppress(OSError, IndexError):
                status = Path(f"/proc/{pid}/status").read_text()
                [line] = [one for one in status.splitlines() if one.startswith("NSpid:")]
                if int(line.split()[-1]) == inner:
                    return pid
        return None

    def server(self) -> int | None:
        """Return the pid of the server on it; None if there is none."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            return self.outer(int(json.loads((self.home / "server.json").read_text())["pid"]))
        return None


class Machines:
    """alpha and beta on one switch. ``started.json`` names what a call that was killed has left."""

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self.folder = folder
        self.tell = tell
        self.record = folder / "started.json"
        self.shared = folder / "shared"
        self.shared.mkdir(parents=True, exist_ok=True)
        self.switch = Switch()
        self.alpha = SoakHost("alpha", self.switch, shared=self.shared)
        self.beta = SoakHost("beta", self.switch, shared=self.shared)

    # ------------------------------------------------------------------ beginning and ending

    def start(self) -> None:
        self.end_leftovers()
        if not (self.shared / "corpus").exists():
            text_corpus(self.shared / "corpus")
        (self.shared / "witness").mkdir(exist_ok=True)
        (self.shared / "runs").mkdir(exist_ok=True)
        self.note_started()
        for host in (self.alpha, self.beta):
            host.mount()
        self.switch.make()
        for host in (self.alpha, self.beta):
            host.boot()
            self.note_started()
        self.up()
        self.join()
        self.wait_for_both(within_s=400)

    def end(self) -> None:
        for host in (self.alpha, self.beta):
            host.power_off()
        self.switch.remove()
        self.unmount()
        self.record.unlink(missing_ok=True)

    def unmount(self) -> None:
        for host in (self.alpha, self.beta):
            if host.home.is_mount():
                # Lazily: a machine that was just switched off may still hold it for a moment.
                _call("umount", "--lazy", str(host.home))

    def note_started(self) -> None:
        """Write down what runs, by id and start time, so that the next call can end it."""
        hosts = [host for host in (self.alpha, self.beta) if host.init is not None]
        pids = [host.init.pid for host in hosts if host.init is not None]
        self.record.write_text(
            json.dumps(
                {
                    "processes": [[pid, procfs.start_time(pid)] for pid in pids],
                    "namespaces": [self.alpha.namespace, self.beta.namespace],
                    "devices": [self.alpha.cable, self.beta.cable, self.switch.device],
                }
            )
        )

    def end_leftovers(self) -> None:
        """End what a call left that was killed with SIGKILL, and nothing else."""
        if not self.record.exists():
            return
        left = json.loads(self.record.read_text())
        for pid, started in left["processes"]:
            if started is not None and procfs.start_time(pid) == started:
                self.tell(f"ending process {pid} of the call before")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                until(lambda p=pid: not alive(p), within_s=20, what=f"the end of {pid}")
        for kind, names in (("link", left["devices"]), ("netns", left["namespaces"])):
            for name in names:
                subprocess.run(["ip", kind, "del", name], check=False, capture_output=True)
        self.unmount()
        self.record.unlink()

    # --------------------------------------------------------------------------- using them

    def up(self) -> None:
        """Start the server if it is not there, as a service manager does: again and again."""
        env = {"LEHR_RUNS": f"{SHARED}/runs", "LEHR_TRAINER_MODULE": str(TRAINER)}
        deadline = time.monotonic() + UP_S
        while self.alpha.server() is None:
            try:
                self.alpha.up(gpus=GPUS, env=env)
            except (AssertionError, subprocess.TimeoutExpired):
                if time.monotonic() > deadline:
                    raise
                self.tell("the server did not start in time; once more")

    def join(self) -> None:
        """Join beta, as somebody would after its start: with a new command, again until it works.

        The server may be down at that moment, or answer late on a busy machine.
        """
        deadline = time.monotonic() + JOIN_S
        while (problem := self._try_to_join()) and time.monotonic() < deadline:
            self.tell(f"beta: lehr node join: {problem}; once more")
            time.sleep(2)

    def _try_to_join(self) -> str:
        """Return what went wrong; empty if beta has joined."""
        try:
            command = self.alpha.lehr_json("node", "token")["command"]
            token, line = join_line(command)
            more = ["--gpus", str(GPUS), "--runs", f"{SHARED}/runs"]
            done = self.beta.lehr(*line, *more, env=token, check=False)
        except (AssertionError, subprocess.TimeoutExpired) as problem:
            return str(problem)[-300:]
        return f"exit {done.returncode}: {done.stderr.strip()[-300:]}" if done.returncode else ""

    def client(self) -> Client:
        token = (self.alpha.home / "token").read_text().strip()
        return Client(self.alpha.url, token=token)

    def in_use(self) -> set[str]:
        with self.client() as client:
            nodes = client.cluster().nodes
        return {node.name for node in nodes if node.alive and not node.problems}

    def wait_for_both(self, *, within_s: float) -> None:
        """Wait until both are in use, and stay so: a loss is not noticed at once."""
        since: list[float] = []

        def both() -> bool:
            found: set[str] = set()
            with contextlib.suppress(*FAILED):
                found = self.in_use()
            if found != {"alpha", "beta"}:
                since.clear()
                return False
            since.append(time.monotonic())
            return since[-1] - since[0] >= STEADY_S

        until(both, within_s=within_s, what="alpha and beta to be in use", every_s=1.0)


def _call(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
