"""What befalls the two machines: each fault strikes, ends again, and both nodes must be in use after it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lehr_testing.server import alive
from lehr_testing.waiting import until
from soak.machines import FAILED, STEADY_S, Machines, SoakHost

RECOVER_S = 420.0
"""Within which both nodes are in use again: a lost node has a lease of 60 s, and Ray starts anew."""
SPARE_BYTES = 1 << 16


class Faults:
    """Draw one fault after another from a shuffled deck that has each as often as its share."""

    def __init__(
        self,
        machines: Machines,
        chance: random.Random,
        tell: Callable[[str], None],
        breach: Callable[[str], None],
    ) -> None:
        self.machines = machines
        self.chance = chance
        self.tell = tell
        self.breach = breach
        self.over = threading.Event()
        self.kinds: dict[str, tuple[int, Callable[[], str]]] = {
            "trainer": (4, self.kill_trainer),
            "shim": (2, lambda: self.kill_on_both("lehr/node/shim.py", "-m lehr.node.shim")),
            "shipper": (1, lambda: self.kill_on_both("shipper.py")),
            "agent": (2, lambda: self.kill_on_both("ray::Agent")),
            "bridge": (0, lambda: self.kill_named(self.machines.alpha, "lehr.cluster.bridge")),
            "raylet of beta": (2, lambda: self.kill_named(self.machines.beta, "raylet/raylet")),
            "raylet of alpha": (0, lambda: self.kill_named(self.machines.alpha, "raylet/raylet")),
            "head": (0, lambda: self.kill_named(self.machines.alpha, "gcs_server")),
            "keeper": (1, self.kill_keeper),
            "short cut": (2, lambda: self.cut(3, 30)),
            "long cut": (1, lambda: self.cut(80, 110)),
            "frozen node": (1, lambda: self.freeze_beta(10, 90)),
            "frozen server": (1, lambda: self.freeze_server(3, 20)),
            "full disk of the server": (1, lambda: self.fill(self.machines.alpha)),
            "full disk of a node": (1, lambda: self.fill(self.machines.beta)),
            "power cut of beta": (1, self.power_off_beta),
        }
        self.deck: list[str] = []

    def draw(self) -> str:
        if not self.deck:
            all_of_them = [name for name, (share, _) in self.kinds.items() for _ in range(share)]
            self.deck = self.chance.sample(all_of_them, len(all_of_them))
        return self.deck.pop()

    def hard(self) -> list[str]:
        """Return the faults of a hard chapter: the server, all without a share, and up to two others.

        Each without a share ends the bridge, so the deck has none of them.
        """
        found = ["server", *(name for name, (share, _) in self.kinds.items() if not share)]
        found += [self.draw() for _ in range(self.chance.randint(0, 2))]
        return self.chance.sample(found, len(found))

    def strike(self, kind: str) -> tuple[str, float]:
        """Do it; return what was done and the seconds until both nodes were in use again."""
        strike = self.kinds[kind][1] if kind in self.kinds else self.kill_server
        done = strike()
        begun = time.monotonic()
        self.recover(kind)
        return done, max(0.0, time.monotonic() - begun - STEADY_S)

    def recover(self, after: str) -> None:
        machines = self.machines
        if machines.alpha.server() is None:
            if after != "server":
                self.breach(f"recovery: the server was gone after the fault: {after}")
            machines.up()
        try:
            machines.wait_for_both(within_s=RECOVER_S)
        except AssertionError:
            seen = "nothing"
            with contextlib.suppress(*FAILED):
                seen = ", ".join(sorted(machines.in_use())) or "no node"
            self.breach(f"recovery: {seen} in use {RECOVER_S:g} s after the fault: {after}")
            return
        with machines.client() as client:
            for node in client.cluster().nodes:
                if node.excluded:
                    self.tell(f"{node.name} was excluded ({node.excluded}), and is readmitted")
                    client.readmit_node(node.name)

    # ------------------------------------------------------------------------------ kinds

    def kill_server(self) -> str:
        pid = self.machines.alpha.server()
        if pid is None:
            return "no server to kill"
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid), within_s=20, what="the end of the server")
        return f"killed the server {pid}"

    def kill_trainer(self) -> str:
        return self.kill_on_both("trainers/launcher.py", "lehr.programs")

    def kill_on_both(self, *words: str) -> str:
        found = [
            (host.name, pid)
            for host in (self.machines.alpha, self.machines.beta)
            for word in words
            for pid in host.named(word)
        ]
        return self._kill(found, words[0])

    def kill_named(self, host: SoakHost, words: str) -> str:
        return self._kill([(host.name, pid) for pid in host.named(words)], words)

    def _kill(self, found: list[tuple[str, int]], what: str) -> str:
        if not found:
            return f"no {what} to kill"
        host, pid = self.chance.choice(found)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return f"killed {what} {pid} on {host}"

    def kill_keeper(self) -> str:
        """Kill it and start it again, as systemd would."""
        done = self.kill_named(self.machines.beta, "lehr.joining.keeper")
        self.machines.join()
        return done

    def cut(self, least_s: float, most_s: float) -> str:
        seconds = self.chance.uniform(least_s, most_s)
        self.machines.beta.cut()
        try:
            self.over.wait(seconds)
        finally:
            self.machines.beta.heal()
        return f"cut beta off for {seconds:.0f} s"

    def freeze_beta(self, least_s: float, most_s: float) -> str:
        seconds = self.chance.uniform(least_s, most_s)
        with frozen(list(self.machines.beta.processes())):
            self.over.wait(seconds)
        return f"froze beta for {seconds:.0f} s"

    def freeze_server(self, least_s: float, most_s: float) -> str:
        seconds = self.chance.uniform(least_s, most_s)
        pid = self.machines.alpha.server()
        with frozen([pid] if pid else []):
            self.over.wait(seconds)
        return f"froze the server for {seconds:.0f} s"

    def fill(self, host: SoakHost) -> str:
        seconds = self.chance.uniform(10, 30)
        filler = host.home / ".filler"
        try:
            fill(filler)
            self.over.wait(seconds)
        finally:
            filler.unlink(missing_ok=True)
        return f"filled the disk of {host.name} for {seconds:.0f} s"

    def power_off_beta(self) -> str:
        machines = self.machines
        machines.beta.power_off()
        seconds = self.chance.uniform(5, 60)
        self.over.wait(seconds)
        machines.beta.boot()
        machines.note_started()
        machines.join()
        return f"beta was without power for {seconds:.0f} s"


@contextlib.contextmanager
def frozen(pids: list[int]) -> Iterator[None]:
    """Stop these processes, and let them go on at the end, whatever happens."""
    stopped = []
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                stopped.append(pid)
        yield
    finally:
        for pid in reversed(stopped):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def fill(filler: Path) -> None:
    """Leave nothing of a disk: in large pieces, then in small ones."""
    with filler.open("wb", buffering=0) as file:
        end = 0
        for size in (64 << 20, 1 << 20, SPARE_BYTES):
            with contextlib.suppress(OSError):
                while True:
                    os.posix_fallocate(file.fileno(), end, size)
                    end += size
        with contextlib.suppress(OSError):
            while True:
                file.seek(end)
                end += file.write(b"\0" * 4096)
