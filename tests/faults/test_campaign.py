"""Random kills at random moments, checked by the same rules as every other history.

``LEHR_FAULTS_SEED`` repeats a campaign, ``LEHR_FAULTS_RUNS`` makes it longer.
"""

from __future__ import annotations

import os
import random
import secrets
import threading
import time

import pytest

from lehr.faces.client.runs import Run
from lehr_testing.faults.fault_server import FaultServer, fault_server
from lehr_testing.faults.process_killer import ProcessKiller
from lehr_testing.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(1800)]

SEED = int(os.environ.get("LEHR_FAULTS_SEED") or secrets.randbits(32))
RUNS = int(os.environ.get("LEHR_FAULTS_RUNS") or 20)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    yield from fault_server(tmp_path_factory.mktemp("campaign"), gpus=4)


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
