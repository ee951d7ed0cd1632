"""Programs that are stopped on the real platform: by a user, and by their time limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lehr_testing.server import Server, events, marked_processes
from lehr_testing.waiting import until

pytestmark = [
    pytest.mark.nightly,  # test_supervisor.py stops programs without Ray and torchrun.
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("platform"),
]
RANKS = Path(__file__).parents[1] / "lehr_testing/programs/ranks.py"
IGNORES = """
import signal, subprocess, sys, time
import lehr_log
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
for step in range(1, 100_000):
    lehr_log.log({"loss": 1.0 / step}, step=step)
    time.sleep(0.2)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "ranks.py").write_bytes(RANKS.read_bytes())
    (tmp_path / "ignores.py").write_text(IGNORES)
    return tmp_path


def submitted(server: Server, project: Path, name: str, trainer: dict[str, Any], **more: Any):
    """Submit a program whose number of steps is not given, and wait for its fifth step."""
    spec = {"kind": "run", "name": name, "trainer": trainer, "code": {"include": ["*.py"]}, **more}
    path = project / f"{name}.yaml"
    path.write_text(yaml.safe_dump(spec))
    run = server.client().submit(path)
    until(lambda: run.refresh().view.step and run.view.step >= 5, within_s=200, what="five steps")
    return run


def two_ranks(**args: Any) -> dict[str, Any]:
    return {"script": "ranks.py", "args": {"max_iters": 100_000, "pause_s": 0.5, **args}}


def stopped_and_saved(server: Server, run, reason: str) -> int:
    """Check how an attempt of two ranks ended; return the step that it saved when it stopped."""
    found = events(server.home, f"{run.id}-{run.view.attempt}")
    [stopping] = [one for one in found if one["kind"] == "stopping"]
    assert stopping["reason"] == reason
    last = [one for one in found if one["kind"] == "checkpoint"][-1]
    [finished] = [one for one in found if one["kind"] == "finished"]
    assert finished["outcome"] == "stopped"
    assert last["step"] == finished["step"] >= stopping["step"] >= 5
    assert not marked_processes(f"{run.id}-{run.view.attempt}")
    return int(finished["step"])


def loss_after(step: int) -> float:
    """Compute the loss as two ranks do: each step takes 3 % of the weight."""
    weight = 1.0
    for _ in range(step):
        weight -= weight * 0.01 + weight * 2 * 0.01
    return weight


def continued(run, step: int) -> None:
    """Fork the run from its last checkpoint; the fork continues exactly."""
    changes = {"trainer.args.max_iters": step + 3, "trainer.args.pause_s": 0, "time_limit_s": None}
    fork = run.fork(changes=changes)
    fork.wait(timeout_s=300)
    assert fork.state == "completed", fork.reason
    found, steps = fork.history("train/loss"), [step + 1, step + 2, step + 3]
    assert list(found["step"]) == steps
    assert list(found["train/loss"]) == pytest.approx([loss_after(n) for n in steps], rel=1e-12)


def test_cancelled_program_saves_on_all_ranks_and_a_fork_continues_it(server, project):
    run = submitted(server, project, "cancelled", two_ranks(), resources={"gpus": 2})
    assert (run.view.total_steps, run.view.eta_s) == (0, None)
    run.cancel()
    run.wait(timeout_s=300)
    assert run.state == "cancelled", run.reason
    continued(run, stopped_and_saved(server, run, "cancel"))


def test_program_at_its_time_limit_saves_and_a_retry_resumes_it(server, project):
    limit = {"time_limit_s": 30}
    run = submitted(server, project, "limited", two_ranks(), resources={"gpus": 2}, **limit)
    run.wait(timeout_s=300)
    assert (run.state, run.view.cause) == ("failed", "time_limit"), run.reason
    assert "time limit of 30 s" in run.reason
    step = stopped_and_saved(server, run, "pause")
    continued(run, step)
    run.retry()
    until(
        lambda: any(event.kind == "resumed" for event in run.events()),
        within_s=200,
        what="the second attempt to resume",
    )
    [resumed] = [one for one in events(server.home, f"{run.id}-2") if one["kind"] == "resumed"]
    assert resumed["step"] == step
    run.cancel()
    run.wait(timeout_s=300)


@pytest.mark.parametrize("limit", [None, 20])
def test_program_that_ignores_sigterm_is_killed_with_its_children_after_its_grace(
    server, project, limit
):
    trainer = {"script": "ignores.py", "stop_grace_s": 3}
    run = submitted(server, project, f"ignores-{limit}", trainer, time_limit_s=limit)
    if limit is None:
        run.cancel()
    run.wait(timeout_s=300)
    assert (run.state, run.view.cause) == (
        ("cancelled", "cancel") if limit is None else ("failed", "time_limit")
    )
    [finished] = [one for one in events(server.home, f"{run.id}-1") if one["kind"] == "finished"]
    assert finished["outcome"] == "stopped"
    assert not marked_processes(f"{run.id}-1")
    assert len(run.history("loss")) >= 5
