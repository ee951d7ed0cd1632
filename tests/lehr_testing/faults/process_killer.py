"""Random kills of the processes of a fault server."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable

from lehr.base import procfs
from lehr.errors import LehrError
from lehr_testing.fakes import command
from lehr_testing.faults.fault_server import FaultServer
from lehr_testing.server import marked_processes, rank_pids


class ProcessKiller:
    """Kill or freeze one process after another, drawn from the seed."""

    def __init__(self, server: FaultServer, chance: random.Random) -> None:
        self.server = server
        self.chance = chance
        self.done: list[str] = []
        self.struck: set[str] = set()
        self.kinds: dict[str, Callable[[], list[int]]] = {
            "server": lambda: [server.pid],
            "bridge": lambda: [server.bridge()],
            "agent": lambda: server.ray_processes("ray::Agent"),
            "raylet": lambda: server.ray_processes("raylet/raylet"),
            "head": lambda: server.ray_processes("gcs_server"),
            "shim": self.shims,
            "shipper": lambda: self.of_shims(b"shipper.py"),
            "torchrun": lambda: self.trainings(lambda line: "torch.distributed.run" in line),
            "rank": lambda: [
                pid for entry in server.entries() for pid in rank_pids(entry.attempt_id)
            ],
            "loader worker": lambda: self.trainings(lambda line: "time.sleep" in line),
        }
        self.deck: list[str] = []

    def shims(self) -> list[int]:
        found = [procfs.read_json(entry.file("shim.json")) for entry in self.server.entries()]
        return [int(one["pid"]) for one in found if one and procfs.start_time(int(one["pid"]))]

    def of_shims(self, name: bytes) -> list[int]:
        return [p for shim in self.shims() for p in procfs.children(shim) if name in command(p)]

    def trainings(self, wanted: Callable[[str], bool]) -> list[int]:
        attempts = [entry.attempt_id for entry in self.server.entries()]
        return [
            pid
            for attempt in attempts
            for pid, line in marked_processes(attempt).items()
            if wanted(line)
        ]

    def wait_until_recovered(self, over: threading.Event) -> None:
        """Wait until every GPU is available again, also on a slow machine."""
        while not over.wait(0.5):
            with contextlib.suppress(LehrError, OSError, ValueError):
                if self.server.client().cluster().gpus_total == self.server.gpus:
                    return

    def strike(self) -> None:
        """Draw the next kind from a shuffled deck that has each once, so that none is omitted by chance.

        One of which there is no process now comes after the others again.
        """
        if not self.deck:
            self.deck = self.chance.sample(list(self.kinds), len(self.kinds))
        freeze_s = self.chance.uniform(0.5, 6.0) if self.chance.random() < 0.25 else None
        draw = self.chance.random()
        for kind in list(self.deck):
            victims: list[int] = []
            # What was there a moment ago may be gone, or not be back yet.
            with contextlib.suppress(OSError, ValueError, AttributeError, KeyError):
                victims = sorted(self.kinds[kind]())
            if victims and self.hit(victims[int(draw * len(victims))], kind, freeze_s):
                self.deck.remove(kind)
                return

    def hit(self, pid: int, kind: str, freeze_s: float | None) -> bool:
        if freeze_s is None:
            hit, how = self.server.signal(pid), "killed"
        else:
            hit, how = self.server.signal(pid, signal.SIGSTOP), f"frozen for {freeze_s:.1f} s"
            time.sleep(freeze_s)
            self.server.signal(pid, signal.SIGCONT)
        if hit:
            self.done.append(f"{kind} {how}")
            self.struck.add(kind)
        return hit
