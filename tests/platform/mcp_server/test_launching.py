"""The account of an agent: what counts, what is sent again, what is paused."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lehr.client import Client
from lehr.control.lifecycle import RunState
from lehr.errors import Conflict, LehrError, ServerUnavailable, UserError
from lehr.mcp_server.budget import AgentBudget, Limits
from lehr.mcp_server.estimates import LaunchEstimates
from lehr.mcp_server.launching import Launching
from lehr.mcp_server.ledger import Ledger
from lehr.specs import parse_spec
from lehr_testing.api import (
    RUN_SPEC,
    SWEEP_SPEC,
    TOKEN,
    Api,
    begin,
    end,
    finished,
    ingest,
    metrics,
    served,
    started,
)

HOUR = 3600.0


@pytest.fixture
def lehr(tmp_path: Path) -> Iterator[tuple[Api, Client]]:
    with served(tmp_path / "home") as (api, address), Client(address, TOKEN) as client:
        yield api, client


def account(lehr, tmp_path: Path, *, price: float | None = None, **limits: float) -> Launching:
    """Open the account as a new process does."""
    client = lehr[1]
    return Launching(
        client,
        Ledger(tmp_path / "accounts", "default", client.server),
        AgentBudget(client, Limits(**limits), price=price),
        LaunchEstimates(client, price=price),
    )


def spec(name: str, hours: float = 1.0, **changes: Any) -> str:
    return json.dumps({**RUN_SPEC, "name": name, "time_limit_s": hours * HOUR, **changes})


def used(api: Api, run_id: str, hours: float, state: RunState | None = None) -> None:
    """Have the run's newest attempt use so many GPU-hours; end it if a state is given."""
    run = api.store.runs.get(run_id)
    attempt = begin(api.store, run_id, run.attempt + 1)
    ingest(api.store, attempt, started(run.attempt + 1) + metrics(1, 50))
    api.store.attempts.update(attempt, dispatched_at=time.time() - hours * HOUR)
    if state is not None:
        ingest(api.store, attempt, finished(50, state.value))
        api.store.attempts.update(attempt, exited_at=time.time(), exit={"code": 0})
        end(api.store, run_id, state)


def test_launch_whose_answer_was_lost_is_counted_and_recorded_once(lehr, tmp_path) -> None:
    tools = account(lehr, tmp_path, gpu_hours=3)
    transport = lehr[1].transport
    post, lost = transport.post, []

    def lose(*args: Any, **given: Any) -> bytes:
        lost.append(post(*args, **given))
        raise ServerUnavailable("the connection broke")

    transport.post = lose  # type: ignore[method-assign]
    with pytest.raises(ServerUnavailable):
        tools.submit_run("a", spec("once", 2))
    transport.post = post  # type: ignore[method-assign]
    # In its file it is pending, so that another process counts it, finds it, and adds none.
    with tools._ledger.opened() as book:
        assert tools._budget.standing(book).promised.gpu_hours == 2
        assert list(book.pending) == ["a"]
    shown = account(lehr, tmp_path, gpu_hours=3).budget()
    assert shown["unanswered_requests"] == []
    assert [one["id"] for one in shown["launched"]] == [json.loads(lost[0])["id"]]
    assert len(lehr[0].store.runs.page().items) == 1


def test_launch_that_the_server_refuses_is_not_counted(lehr, tmp_path) -> None:
    tools = account(lehr, tmp_path, gpu_hours=50)
    with pytest.raises(UserError, match=r"resources\.gpus"):
        tools.submit_run("a", spec("big", 1, resources={"gpus": 16}, train={
            **RUN_SPEC["train"], "batch": {"sequences": 16, "sequence_length": 64}
        }))  # fmt: skip
    assert tools.budget()["promised"]["gpu_hours"] == 0
    tools.submit_run("a", spec("small"))


def test_run_that_uses_more_than_the_budget_is_paused(lehr, tmp_path) -> None:
    api, _ = lehr
    tools = account(lehr, tmp_path, gpu_hours=3)
    slow = tools.submit_run("a", spec("slow"))["launched"]["id"]
    waits = tools.submit_run("b", spec("waits"))["launched"]["id"]
    used(api, slow, 2.5)
    assert tools.pause_overrun() == []
    api.store.attempts.update(f"{slow}-1", dispatched_at=time.time() - 4 * HOUR)
    assert set(tools.pause_overrun()) == {slow, waits}
    assert api.store.runs.get(slow).desired == "pause"
    with pytest.raises(UserError, match=r"0\.01 GPU-hours of 3\.00"):
        tools.resume("c", slow)


def test_failed_run_that_is_retried_counts_both_times(lehr, tmp_path) -> None:
    api, _ = lehr
    tools = account(lehr, tmp_path, gpu_hours=3)
    run_id = tools.submit_run("a", spec("fails"))["launched"]["id"]
    used(api, run_id, 0.5, RunState.FAILED)
    tools.retry("again", run_id)
    shown = tools.budget()
    assert shown["used"]["gpu_hours"] == pytest.approx(0.5, abs=0.01)
    assert shown["promised"]["gpu_hours"] == pytest.approx(1.0, abs=0.01)


def test_what_a_person_launched_counts_from_the_retry_on(lehr, tmp_path) -> None:
    api, _ = lehr
    run_id = api.store.runs.create(parse_spec(json.loads(spec("of-a-person")))).id
    used(api, run_id, 2.0, RunState.FAILED)
    tools = account(lehr, tmp_path, gpu_hours=3)
    tools.retry("again", run_id)
    shown = tools.budget()
    assert (shown["used"]["gpu_hours"], shown["promised"]["gpu_hours"]) == (0.0, 1.0)


def test_trial_of_an_own_sweep_is_counted_with_the_sweep(lehr, tmp_path) -> None:
    api, client = lehr
    tools = account(lehr, tmp_path, gpu_hours=6)
    grid = {**SWEEP_SPEC, "run": {**SWEEP_SPEC["run"], "time_limit_s": HOUR}}
    sweep_id = tools.launch_sweep("a", json.dumps(grid))["launched"]["id"]
    first, *_ = client.find_sweep(sweep_id).runs()
    used(api, first.id, 0.5, RunState.FAILED)
    tools.retry("b", first.id)
    shown = tools.budget()
    assert [one["id"] for one in shown["launched"]] == [sweep_id]
    assert shown["used"]["gpu_hours"] + shown["promised"]["gpu_hours"] == pytest.approx(4.0)
    tools.extend_sweep("c", sweep_id, parameters={"train.optimizer.lr": [3e-3]})
    assert tools.budget()["left"]["gpu_hours"] == pytest.approx(1.0)
    with pytest.raises(UserError, match=r"2\.00 GPU-hours, and 1\.00"):
        tools.extend_sweep("d", sweep_id, parameters={"train.optimizer.lr": [3e-4, 3e-5]})


def test_seeds_and_forks_are_planned(lehr, tmp_path) -> None:
    api, _ = lehr
    tools = account(lehr, tmp_path, gpu_hours=10)
    base = tools.submit_run("a", spec("base"))["launched"]["id"]
    used(api, base, 0.5, RunState.COMPLETED)
    assert tools.repeat_seeds("b", base, n=2)["planned"]["gpu_hours"] == 2.0
    # From step 50 to 100 is half of a run that may take an hour.
    run = lehr[1].run(base)
    assert tools._estimates.of_fork(run, 50, {}).gpu_hours == 0.5
    with pytest.raises(LehrError, match="no checkpoint"):
        tools.fork("c", base)
    assert tools.budget()["promised"]["gpu_hours"] == 2.0


def test_dollars_use_the_given_price_or_are_refused_without_one(lehr, tmp_path) -> None:
    with pytest.raises(UserError, match="price of this launch is unknown"):
        account(lehr, tmp_path, dollars=5).submit_run("a", spec("one"))
    priced = account(lehr, tmp_path, dollars=5, price=2.0)
    assert priced.submit_run("a", spec("one"))["budget"]["left"] == {"dollars": 3.0}
    with pytest.raises(UserError, match=r"\$4\.00, and \$3\.00 of \$5\.00"):
        priced.submit_run("b", spec("two", 2))


def test_time_without_a_limit_is_that_of_the_plan(lehr, tmp_path) -> None:
    tools = account(lehr, tmp_path, gpu_hours=1000)
    train = {**RUN_SPEC["train"], "model": "llama-1b", "steps": 1000}
    asked = {"resources": {"gpus": 1, "gpu_type": "H100"}, "train": train}
    made = {**RUN_SPEC, "name": "planned", **asked}
    planned = tools._estimates.of(parse_spec(made))
    assert 0 < planned.gpu_hours < 1
    assert planned.dollars is not None
    assert tools._estimates.plan(parse_spec(made))["plan"]["gpu_hours"] == planned.gpu_hours


def test_account_of_another_server_and_a_damaged_one_are_refused(lehr, tmp_path) -> None:
    account(lehr, tmp_path, gpu_hours=3).budget()
    with (
        pytest.raises(UserError, match="is for the server"),
        Ledger(tmp_path / "accounts", "default", "http://elsewhere").opened(),
    ):
        pass
    (tmp_path / "accounts" / "default.json").write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        account(lehr, tmp_path, gpu_hours=3).budget()


def test_agent_stops_only_what_its_account_launched(lehr, tmp_path) -> None:
    store = lehr[0].store
    others = store.runs.create(parse_spec({**RUN_SPEC, "name": "of-a-person"})).id
    tools = account(lehr, tmp_path, gpu_hours=3)
    mine = tools.submit_run("x", spec("mine"))["launched"]["id"]
    for stop in (tools.cancel, tools.pause):
        with pytest.raises(Conflict, match="not launched by account default"):
            stop(others)
    assert store.runs.get(others).desired == "run"
    tools.cancel("mine")
    assert store.runs.get(mine).desired == "cancel"
    tools._may_stop_others = True
    tools.cancel(others)
    assert store.runs.get(others).desired == "cancel"
