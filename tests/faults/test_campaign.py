"""Random kills at random moments, checked by the same rules as every other history.

``LEHR_FAULTS_SEED`` repeats a campaign, ``LEHR_FAULTS_RUNS`` makes it longer.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import threading
import time
from collections.abc import Callable

import pytest

from lehr.client.runs import Run
from lehr.errors import LehrError
from lehr.node import procfs
from lehr_testing.faults.fault_server import FaultServer, fault_server
from lehr_testing.server import marked_processes, rank_pids
from lehr_testing.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(1800)]

SEED = int(os.environ.get("LEHR_FAULTS_SEED") or secrets.randbits(32))
RUNS = int(os.environ.get("LEHR_FAULTS_RUNS") or 20)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    yield from fault_server(tmp_path_factory.mktemp("campaign"), gpus=4)


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
        from lehr_testing.fakes import command

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


def spec_of(server: FaultServer, number: int, chance: random.Random) -> dict:
    plenty = {"infrastructure": 100, "preemption": 100, "user": 100}
    return server.spec(
        f"campaign-{number}",
        gpus=chance.choice([1, 1, 1, 2]),
        steps=chance.randint(20, 80),
        step_s=0.1,
        CHECKPOINT_EVERY=chance.choice([3, 7]),
        CHILDREN=chance.choice([0, 0, 1]),
        retries=plenty,
    )


def missing(assassin: ProcessKiller) -> set[str]:
    return set(assassin.kinds) - assassin.struck


def test_random_kills_leave_every_run_ended_correctly_and_no_process(server: FaultServer, capsys):
    chance = random.Random(SEED)
    with capsys.disabled():
        print(f"\ncampaign: LEHR_FAULTS_SEED={SEED} LEHR_FAULTS_RUNS={RUNS}")
    assassin = ProcessKiller(server, random.Random(chance.random()))
    over = threading.Event()

    def strikes() -> None:
        while not over.wait(assassin.chance.uniform(0.3, 4.0)):
            assassin.strike()
            # The next kill often comes before everything has recovered, but not always.
            if assassin.chance.random() < 0.6:
                assassin.wait_until_recovered(over)

    runs: list[tuple[Run, str]] = []

    def submit() -> None:
        run = server.submit(spec_of(server, len(runs), chance))
        runs.append((run, chance.choice(["", "", "", "cancel", "pause"])))

    def enough() -> bool:
        server.revive()  # No request is sent meanwhile.
        if len(assassin.done) >= RUNS and (len(assassin.kinds) > RUNS or not missing(assassin)):
            return True
        if not server.entries():  # There must be a process to kill.
            run = server.submit(spec_of(server, len(runs), chance))
            runs.append((run, ""))
        return False

    thread = threading.Thread(target=strikes, daemon=True)
    thread.start()
    try:
        for _ in range(RUNS):
            submit()
        for run, request in runs:
            if request:
                time.sleep(chance.uniform(0.0, 2.0))
                server.verb(run, request)
            if request == "pause":
                state = server.reaches(run, "paused", "completed", "failed", within_s=600)
                if state == "paused":
                    server.verb(run, "resume")
        until(enough, within_s=900, what="enough deaths", every_s=0.5)
    finally:
        over.set()
        thread.join()
    with capsys.disabled():
        print(f"campaign: {len(assassin.done)} strikes: {', '.join(assassin.done)}")
    server.revive()
    for run, request in runs:
        allowed = {"cancelled", "completed"} if request == "cancel" else {"completed"}
        state = server.ends(run, within_s=600)[0]
        assert state in allowed, (run.name, request, state, server.client().run(run.id).reason)
    server.cluster_ready()
    server.verdict(within_s=120)
