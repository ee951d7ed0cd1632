"""Kills of each process at any moment: the training continues or restarts, and never runs twice.

One history is judged after each: the attempts that were made, what the trainers' own files say,
and that no process is left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from lehr.base import home as homes
from lehr.base import procfs
from lehr.cluster import ray_head
from lehr.errors import HomeUnusable
from lehr.store import Store
from lehr_testing.fakes import FakeServer, fake_server, gone
from lehr_testing.server import alive, marked_processes
from lehr_testing.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    yield from fake_server(tmp_path_factory.mktemp("server"), gpus=4)


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    os.kill(pid, number)
    gone(pid)


def started(server: FakeServer, name: str, *, steps: int = 150, step: int = 6, **more):
    """Start a run and wait until it has passed ``step``, with a checkpoint at 5."""
    run = server.client().submit(
        server.spec(name, steps=steps, step_s=0.1, CHECKPOINT_EVERY=5, **more)
    )
    until(lambda: server.step(f"{run.id}-1") >= step, within_s=90, what=f"{name} at step {step}")
    return run


def assert_continues(server: FakeServer, attempt_id: str, *, steps: int = 5) -> None:
    now = server.step(attempt_id)
    until(
        lambda: server.step(attempt_id) >= now + steps, within_s=60, what=f"{attempt_id} to go on"
    )


def judge(server: FakeServer, run, *, attempts: int, steps: int = 150) -> None:
    """Check that it completed in so many attempts, with a complete series, and left no process."""
    run = server.client().run(run.id)
    run.wait(timeout_s=240)
    assert run.state == "completed", run.reason
    assert run.attempt == attempts
    assert list(run.history("train/loss")["step"]) == list(range(1, steps + 1))
    assert server.violations() == ""
    for number in range(1, attempts + 1):
        until(
            lambda n=number: not marked_processes(f"{run.id}-{n}"),
            within_s=30,
            what="no process of the run to be left",
        )
    moves = [(e.data.get("from"), e.data.get("to")) for e in run.events() if e.kind == "transition"]
    assert moves.count(("queued", "starting")) == attempts, moves


@pytest.mark.parametrize("what", ["raylet/raylet", "gcs_server"])
def test_training_continues_when_ray_is_killed_and_is_adopted(server, what):
    run = started(server, "ray-killed", steps=600)
    trainer = server.trainer(f"{run.id}-1")
    head = ray_head.recorded(server.home)
    [pid] = server.ray_processes(what)
    kill(pid)
    until(lambda: ray_head.recorded(server.home) != head, within_s=120, what="another Ray head")
    assert alive(trainer)
    assert_continues(server, f"{run.id}-1")
    other = server.client().submit(server.spec("after-ray", steps=3))
    other.wait(timeout_s=120)
    assert other.state == "completed"
    judge(server, run, attempts=1, steps=600)


def test_training_continues_when_server_bridge_agent_and_ray_are_killed(server):
    run = started(server, "all-killed")
    trainer = server.trainer(f"{run.id}-1")
    victims = [*ray_head.recorded(server.home).processes(), server.bridge()]
    server.kill()
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in victims:
        gone(pid)
    assert_continues(server, f"{run.id}-1")
    assert alive(trainer)
    server.up()
    server.cluster_ready()
    judge(server, run, attempts=1)


@pytest.mark.parametrize("what", ["torchrun", "a rank"])
def test_gang_that_loses_a_process_restarts_completely(server, what):
    run = started(server, "gang", gpus=2)
    processes = marked_processes(f"{run.id}-1")
    launcher = [p for p, line in processes.items() if "torch.distributed.run" in line]
    ranks = [p for p in processes if p not in launcher]
    assert (len(launcher), len(ranks)) == (1, 2)
    kill(launcher[0] if what == "torchrun" else ranks[1])
    for pid in processes:
        gone(pid, within_s=60)
    judge(server, run, attempts=2)


def test_run_with_a_used_up_budget_fails_with_that_reason(server):
    run = started(server, "no-budget", retries={"infrastructure": 0})
    kill(server.trainer(f"{run.id}-1"))
    run.wait(timeout_s=90)
    assert (run.state, run.attempt) == ("failed", 1)
    assert "SIGKILL" in run.reason
    assert "no retry is left" in run.reason


def reopened(server: FakeServer) -> Store:
    """Open the store of a killed server: its threads may take a moment to release it."""

    def attempt() -> Store | None:
        with contextlib.suppress(HomeUnusable):
            return Store.open(server.home)
        return None

    return until(attempt, within_s=30, what="the killed server's lock to be free")


def test_superseded_attempt_is_fenced_and_ended(server):
    """An attempt counts as lost but is alive: when it comes back, it must not continue."""
    run = started(server, "superseded", steps=100_000)
    shim, trainer = server.shim(f"{run.id}-1"), server.trainer(f"{run.id}-1")
    # As in a partition: neither the shim nor its shipper can send or act.
    shipper = server.shipper(f"{run.id}-1")
    for pid in (shipper, shim):
        os.kill(pid, signal.SIGSTOP)
    server.kill()
    with reopened(server) as store:
        exit_report = {"code": None, "signal": None, "reason": "node_lost", "synthetic": True}
        store.attempts.update(f"{run.id}-1", exit=exit_report, exited_at=time.time())
    server.up()
    until(lambda: server.client().run(run.id).attempt == 2, within_s=90, what="the second attempt")
    for pid in (shipper, shim):
        os.kill(pid, signal.SIGCONT)
    gone(trainer, within_s=60)
    gone(shim, within_s=90)
    again = server.client().run(run.id)
    until(lambda: again.refresh().state == "running", within_s=90, what="the second to run")
    assert again.attempt == 2
    assert server.violations() == ""
    again.cancel()
    again.wait(timeout_s=60)


def test_down_ends_only_what_it_started(server, tmp_path_factory):
    stranger = next(fake_server_stays := fake_server(tmp_path_factory.mktemp("other"), gpus=1))
    try:
        run = started(stranger, "strangers-run", steps=100_000)
        others = ray_head.recorded(stranger.home).processes()
        server.down()
        assert ray_head.recorded(server.home) is None
        assert all(alive(pid) for pid in others)
        assert_continues(stranger, f"{run.id}-1")
        run.cancel()
        run.wait(timeout_s=60)
    finally:
        with contextlib.suppress(StopIteration):
            next(fake_server_stays)
    server.up()
    server.cluster_ready()


def test_no_process_is_left(server):
    server.down()
    home = str(server.home).encode()
    left = [
        pid
        for pid in procfs.pids()
        if home in Path(f"/proc/{pid}/cmdline").read_bytes() and alive(pid)
    ]
    assert left == []
    assert not homes.ray_dir(server.home).exists()
