"""A program over two nodes on the real platform, with its pinned code."""

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
    pytest.mark.nightly,  # test_programs.py has two ranks on one node.
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("platform"),
]
RANKS = Path(__file__).parents[1] / "lehr_testing/programs/ranks.py"


@pytest.fixture
def second(server):
    yield from joined_node(server, gpus=1)


def test_program_trains_over_two_nodes_as_one_and_resumes_with_its_pinned_code(
    server, second, tmp_path
):
    script = tmp_path / "ranks.py"
    script.write_bytes(RANKS.read_bytes())
    spec = {
        "kind": "run",
        "name": "across",
        "trainer": {
            "script": "ranks.py",
            "args": {"max_iters": 12, "pause_s": 1.0},
            "steps_arg": "max_iters",
        },
        "code": {"include": ["*.py"]},
        "resources": {"gpus": 2, "nodes": 2},
    }
    (tmp_path / "across.yaml").write_text(yaml.safe_dump(spec))
    run = server.client().submit(tmp_path / "across.yaml")
    until(lambda: run.refresh().view.step and run.view.step >= 5, within_s=200, what="five steps")
    script.write_text("raise SystemExit('edited')")
    # A killed script alone would be the failure of the user's code.
    found = marked_processes(f"{run.id}-1").items()
    killed = [pid for pid, how in found if "ranks.py" in how or "lehr.programs" in how]
    assert len(killed) >= 4
    for pid in killed:
        with suppress(ProcessLookupError):  # It may end with another one.
            os.kill(pid, signal.SIGKILL)
    run.wait(timeout_s=300)
    assert run.state == "completed", run.reason
    assert len(run.detail.attempts) == 2
    for number, attempt in enumerate(run.detail.attempts, 1):
        assert len({place.node for place in attempt.placement}) == 2
        found = events(server.home, f"{run.id}-{number}")
        [started] = [one for one in found if one["kind"] == "started"]
        assert started["world_size"] == 2
        assert started["code"] == run.detail.spec["code"]["digest"]
        steps = [one["step"] for one in found if one["kind"] == "metrics"]
        assert steps == sorted(set(steps))
    [resumed] = [one for one in events(server.home, f"{run.id}-2") if one["kind"] == "resumed"]
    assert resumed["step"] >= 4
    expected, weight = [], 1.0
    for _ in range(12):
        weight -= weight * 0.01 + weight * 2 * 0.01
        expected.append(weight)
    history = run.history("train/loss", "ranks")
    assert list(history["train/loss"]) == pytest.approx(expected, rel=1e-12)
    assert set(history["ranks"]) == {2.0}
    folder = server.home / "runs" / run.id / "attempt-2"
    assert {"exit.json", "exit-1.json", "rank-0.log", "rank-1.log"} <= {
        p.name for p in folder.iterdir()
    }
