"""The watch over a budget: it pauses what the account started, and nothing keeps it from it."""

from __future__ import annotations

import json
import threading
import time

import pytest

from lehr.errors import UserError
from lehr.mcp_server.ledger import NOTHING
from lehr.mcp_server.watch import BudgetWatch
from lehr_testing.agent_accounts import HOUR, account, spec, sweep_of_a_person, used
from lehr_testing.waiting import until


def test_run_that_uses_more_than_the_budget_is_paused(lehr, tmp_path) -> None:
    api, _ = lehr
    tools = account(lehr[1], tmp_path, gpu_hours=3)
    slow = tools.submit_run("a", spec("slow"))["launched"]["id"]
    waits = tools.submit_run("b", spec("waits"))["launched"]["id"]
    used(api, slow, 2.5)
    watch = BudgetWatch(tools._ledger, tools._budget)
    assert watch.pause_overrun() == []
    api.store.attempts.update(f"{slow}-1", dispatched_at=time.time() - 4 * HOUR)
    assert set(watch.pause_overrun()) == {slow, waits}
    assert api.store.runs.get(slow).desired == "pause"
    with pytest.raises(UserError, match=r"0\.01 GPU-hours of 3\.00"):
        tools.resume("c", slow)


def test_launch_whose_plan_never_ends_does_not_keep_the_watch_from_the_account(
    lehr, tmp_path
) -> None:
    api, client = lehr
    tools = account(client, tmp_path, gpu_hours=3)
    slow = tools.submit_run("a", spec("slow"))["launched"]["id"]
    used(api, slow, 4)
    planning, planned = threading.Event(), threading.Event()

    def plan(_: object) -> object:
        planning.set()
        assert planned.wait(120)
        return NOTHING

    tools._estimates.of = plan  # type: ignore[method-assign, assignment]
    answers: list[object] = []

    def submit() -> None:
        with pytest.raises(UserError, match="over the budget"):
            answers.append(tools.submit_run("b", spec("another")))

    launch = threading.Thread(target=submit, daemon=True)
    launch.start()
    assert planning.wait(30)
    watch = BudgetWatch(tools._ledger, tools._budget)
    paused: list[list[str]] = []
    look = threading.Thread(target=lambda: paused.append(watch.pause_overrun()), daemon=True)
    look.start()
    look.join(60)
    try:
        assert paused == [[slow]]
    finally:
        planned.set()
        launch.join(60)
    assert not launch.is_alive()
    assert answers == []


def test_only_trials_that_the_account_started_are_paused_in_the_sweep_of_another(
    lehr, tmp_path
) -> None:
    api, client = lehr
    sweep, failed, running, waiting = sweep_of_a_person(api, client)
    tools = account(client, tmp_path, gpu_hours=3)
    tools.extend_sweep("a", sweep.id, parameters={"train.optimizer.lr": [3e-3]})
    tools.retry("b", sweep.id)
    [added] = {run.id for run in sweep.refresh().runs()} - {failed.id, running.id, waiting.id}
    used(api, added, 4)
    watch = BudgetWatch(tools._ledger, tools._budget)
    assert set(watch.pause_overrun()) == {failed.id, added}
    assert {run.refresh().view.desired for run in (running, waiting)} == {"run"}


def test_run_without_a_price_counts_as_over_a_limit_in_dollars(lehr, tmp_path) -> None:
    api, client = lehr
    run_id = client.submit(json.loads(spec("of-a-person"))).pause().id
    tools = account(client, tmp_path, dollars=5)
    # At its last step, so nothing is planned, and no price is needed.
    tools._estimates.of_run = lambda *_, **__: NOTHING  # type: ignore[method-assign, assignment]
    tools.resume("a", run_id)
    used(api, run_id, 0.5)
    assert BudgetWatch(tools._ledger, tools._budget).pause_overrun() == [run_id]


def test_fault_does_not_end_the_watch(lehr, tmp_path, caplog: pytest.LogCaptureFixture) -> None:
    _, client = lehr
    tools = account(client, tmp_path, gpu_hours=3)
    watch = BudgetWatch(tools._ledger, tools._budget)
    looks: list[int] = []

    def look() -> list[str]:
        looks.append(1)
        raise OSError("the disk is full")

    watch.pause_overrun = look  # type: ignore[method-assign]
    stop = threading.Event()
    thread = threading.Thread(target=watch.watch, args=(stop, 0.01), daemon=True)
    thread.start()
    try:
        until(lambda: len(looks) >= 3, within_s=30, what="three looks")
    finally:
        stop.set()
        thread.join(30)
    assert "the budget could not be checked" in caplog.text
