"""A program of two ranks on the real platform: on one node, and over two."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from lehr_testing.faults.networked import joined_node
from lehr_testing.server import events, marked_processes
from lehr_testing.waiting import until

pytestmark = [
    pytest.mark.nightly,  # tests/platform/programs/test_ranks.py has no Ray and no torchrun.
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("platform"),
]
RANKS = Path(__file__).parents[1] / "lehr_testing/programs/ranks.py"


@pytest.fixture
def project(tmp_path) -> Path:
    (tmp_path / "ranks.py").write_bytes(RANKS.read_bytes())
    return tmp_path


@pytest.fixture
def second(server):
    yield from joined_node(server, gpus=1)


def submitted(server, project: Path, name: str, *, nodes: int = 1, **args):
    spec = {
        "kind": "run",
        "name": name,
        "trainer": {
            "script": "ranks.py",
            "args": {"max_iters": 12, **args},
            "steps_arg": "max_iters",
        },
        "code": {"include": ["*.py"]},
        "resources": {"gpus": 2, "nodes": nodes},
    }
    path = project / f"{name}.yaml"
    path.write_text(yaml.safe_dump(spec))
    return server.client().submit(path)


def reach_five_steps(run) -> None:
    until(lambda: run.refresh().view.step and run.view.step >= 5, within_s=200, what="five steps")


def kill_ranks(run) -> int:
    """Kill the scripts and their supervisors: a killed script alone is a fault of the user's code."""
    every = marked_processes(f"{run.id}-1").items()
    pids = [pid for pid, how in every if "ranks.py" in how or "lehr.programs" in how]
    for pid in pids:
        with suppress(ProcessLookupError):  # It may end with another one.
            os.kill(pid, signal.SIGKILL)
    return len(pids)


def check_resumed_as_one(server, run) -> None:
    """Check that each of two attempts has one stream, and that both give the undisturbed losses."""
    assert run.state == "completed", run.reason
    assert len(run.detail.attempts) == 2
    for number in (1, 2):
        records = events(server.home, f"{run.id}-{number}")
        for kind in ("metrics", "checkpoint"):
            steps = [record["step"] for record in records if record["kind"] == kind]
            assert steps == sorted(set(steps)), f"{run.name}, attempt {number}, {kind}"
        [started] = [record for record in records if record["kind"] == "started"]
        assert started["world_size"] == 2
        assert started["code"] == run.detail.spec["code"]["digest"]
    [resumed] = [e for e in events(server.home, f"{run.id}-2") if e["kind"] == "resumed"]
    assert resumed["step"] >= 4
    losses, weight = [], 1.0
    for _ in range(12):
        weight -= weight * 0.01 + weight * 2 * 0.01
        losses.append(weight)
    history = run.history("train/loss", "ranks")
    assert list(history["train/loss"]) == pytest.approx(losses, rel=1e-12)
    assert set(history["ranks"]) == {2.0}


def test_program_trains_over_two_nodes_as_one_and_resumes_with_its_pinned_code(
    server, second, project
):
    run = submitted(server, project, "across", nodes=2, pause_s=1.0)
    reach_five_steps(run)
    (project / "ranks.py").write_text("raise SystemExit('edited')")
    assert kill_ranks(run) >= 4
    run.wait(timeout_s=300)
    check_resumed_as_one(server, run)
    for attempt in run.detail.attempts:
        assert len({place.node for place in attempt.placement}) == 2
    folder = server.home / "runs" / run.id / "attempt-2"
    assert {"exit.json", "exit-1.json", "rank-0.log", "rank-1.log"} <= {
        p.name for p in folder.iterdir()
    }
