"""The wall clock of all machines, or of one of two, jumps by an hour without effect on runs.

Every process of server, Ray, agent, shim and training has a clock that is set while it runs.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import libfaketime
import pytest

from lehr_testing.faults.fault_server import FaultServer
from lehr_testing.faults.second_node import SecondNode, nodes_in_use
from lehr_testing.specs import text_corpus
from lehr_testing.waiting import until


class WallClock:
    """The wall clock of every process that has ``environment``, and of its children.

    Monotonic clocks and files' times stay as they are: setting a machine's clock leaves them, too.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)

    def set(self, ahead_s: int) -> None:
        """Set it so many seconds ahead of the real one; processes see it within a second."""
        draft = self._file.with_suffix(".new")
        draft.write_text(f"{ahead_s:+d}\n")
        draft.replace(self._file)

    @property
    def environment(self) -> dict[str, str]:
        library = Path(libfaketime.__file__).parent / "vendor/libfaketime/src/libfaketime.so.1"
        assert library.exists()
        return {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }


pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(600)]
HOUR = 3_600
LIMITS = {"time_limit_s": 600, "stall_limit_s": 60}


@pytest.fixture
def nodes(tmp_path):
    """(server, its clock, the second node's clock): one GPU each."""
    clock, other = WallClock(tmp_path / "clock"), WallClock(tmp_path / "clock-2")
    server = FaultServer(tmp_path / "home", gpus=1, corpus=text_corpus(tmp_path / "corpus"))
    server.environment |= clock.environment
    server.up()
    second = SecondNode(server, "n2", gpus=1, environment=other.environment)
    try:
        server.cluster_ready()
        second.start()
        until(lambda: nodes_in_use(server) == 2, within_s=180, what="two nodes that answer")
        yield server, clock, other
    finally:
        second.kill()
        server.down()


def train(server: FaultServer, name: str, *, steps: int):
    spec = server.spec(name, steps=steps, step_s=0.1, CHECKPOINT_EVERY=5)
    return server.submit(spec | LIMITS)


def ahead(server: FaultServer, attempt_id: str) -> float:
    """Hours by which the training's own clock was ahead, by its last record."""
    run_id, _, number = attempt_id.rpartition("-")
    path = server.runs / run_id / f"attempt-{number}" / "events.jsonl"
    lines = [line for line in path.read_text().splitlines() if line.endswith("}")]
    return round((json.loads(lines[-1])["time"] - time.time()) / HOUR, 2)


def trains_on(
    server: FaultServer, attempts: list[str], *, hours: set[float], steps: int = 40
) -> None:
    until(
        lambda: {ahead(server, attempt) for attempt in attempts} == hours,
        within_s=30,
        what="the trainings to have the new time",
    )
    now = {attempt: server.step(attempt) for attempt in attempts}
    until(
        lambda: all(server.step(attempt) >= now[attempt] + steps for attempt in attempts),
        within_s=60,
        what="the trainings to continue",
    )


def test_clock_jumps_end_no_lease_or_run_and_delay_none(nodes):
    server, clock, other = nodes
    runs = [train(server, f"clock-{n}", steps=400) for n in (1, 2)]
    attempts = [f"{run.id}-1" for run in runs]
    for attempt in attempts:
        until(lambda a=attempt: server.step(a) >= 5, within_s=90, what="both to train")
    # All of the machines an hour ahead, an hour back, and one ahead of the other.
    for here, there, hours in ((1, 1, {1.0}), (-1, -1, {-1.0}), (0, 1, {0.0, 1.0})):
        clock.set(here * HOUR)
        other.set(there * HOUR)
        trains_on(server, attempts, hours=hours)
        cluster = server.client().cluster()
        assert cluster.state == "up"
        assert [node.alive for node in cluster.nodes] == [True, True]
        for run in runs:
            view = server.client().run(run.id)
            assert (view.state, view.attempt, view.view.liveness) == ("running", 1, "ok")
    # Runs submitted while the clocks differ are queued, paused, resumed and ended as usual.
    waits = train(server, "after", steps=30)
    server.verb(runs[0], "pause")
    assert server.reaches(runs[0], "paused", within_s=60) == "paused"
    server.verb(runs[0], "resume")
    assert server.ends(*runs, waits) == ["completed"] * 3
    assert [server.client().run(run.id).attempt for run in (runs[1], waits)] == [1, 1]
    server.verdict()
