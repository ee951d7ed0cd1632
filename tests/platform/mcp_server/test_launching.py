"""The account of an agent: what counts, what is sent again, what is paused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lehr.control.lifecycle import RunState
from lehr.errors import Conflict, LehrError, ServerUnavailable, UserError
from lehr.mcp_server.launching import REPLAYED_WITHIN_S
from lehr.mcp_server.ledger import Ledger
from lehr.specs import parse_spec
from lehr_testing.agent_accounts import HOUR, account, spec, sweep_of_a_person, used
from lehr_testing.api import (
    RUN_SPEC,
    SWEEP_SPEC,
    ingest,
    line,
)


def test_launch_whose_answer_was_lost_is_counted_and_recorded_once(lehr, tmp_path) -> None:
    tools = account(lehr[1], tmp_path, gpu_hours=3)
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
    shown = account(lehr[1], tmp_path, gpu_hours=3).budget()
    assert shown["unanswered_requests"] == []
    assert [one["id"] for one in shown["launched"]] == [json.loads(lost[0])["id"]]
    assert len(lehr[0].store.runs.page().items) == 1


def test_launch_that_the_server_refuses_is_not_counted(lehr, tmp_path) -> None:
    tools = account(lehr[1], tmp_path, gpu_hours=50)
    with pytest.raises(UserError, match=r"resources\.gpus"):
        tools.submit_run("a", spec("big", 1, resources={"gpus": 16}, train={
            **RUN_SPEC["train"], "batch": {"sequences": 16, "sequence_length": 64}
        }))  # fmt: skip
    assert tools.budget()["promised"]["gpu_hours"] == 0
    tools.submit_run("a", spec("small"))


def test_failed_run_that_is_retried_counts_both_times(lehr, tmp_path) -> None:
    api, _ = lehr
    tools = account(lehr[1], tmp_path, gpu_hours=3)
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
    tools = account(lehr[1], tmp_path, gpu_hours=3)
    tools.retry("again", run_id)
    shown = tools.budget()
    assert (shown["used"]["gpu_hours"], shown["promised"]["gpu_hours"]) == (0.0, 1.0)


def test_trial_of_an_own_sweep_is_counted_with_the_sweep(lehr, tmp_path) -> None:
    api, client = lehr
    tools = account(lehr[1], tmp_path, gpu_hours=6)
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
    tools = account(lehr[1], tmp_path, gpu_hours=10)
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
        account(lehr[1], tmp_path, dollars=5).submit_run("a", spec("one"))
    priced = account(lehr[1], tmp_path, dollars=5, price=2.0)
    assert priced.submit_run("a", spec("one"))["budget"]["left"] == {"dollars": 3.0}
    with pytest.raises(UserError, match=r"\$4\.00, and \$3\.00 of \$5\.00"):
        priced.submit_run("b", spec("two", 2))


def test_time_without_a_limit_is_that_of_the_plan(lehr, tmp_path) -> None:
    tools = account(lehr[1], tmp_path, gpu_hours=1000)
    train = {**RUN_SPEC["train"], "model": "llama-1b", "steps": 1000}
    asked = {"resources": {"gpus": 1, "gpu_type": "H100"}, "train": train}
    made = {**RUN_SPEC, "name": "planned", **asked}
    planned = tools._estimates.of(parse_spec(made))
    assert 0 < planned.gpu_hours < 1
    assert planned.dollars is not None
    assert tools._estimates.plan(parse_spec(made))["plan"]["gpu_hours"] == planned.gpu_hours


def test_account_of_another_server_and_a_damaged_one_are_refused(lehr, tmp_path) -> None:
    account(lehr[1], tmp_path, gpu_hours=3).budget()
    with (
        pytest.raises(UserError, match="is for the server"),
        Ledger(tmp_path / "accounts", "default", "http://elsewhere").opened(),
    ):
        pass
    (tmp_path / "accounts" / "default.json").write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        account(lehr[1], tmp_path, gpu_hours=3).budget()


def test_agent_stops_only_what_its_account_launched(lehr, tmp_path) -> None:
    store = lehr[0].store
    others = store.runs.create(parse_spec({**RUN_SPEC, "name": "of-a-person"})).id
    tools = account(lehr[1], tmp_path, gpu_hours=3)
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


def test_agent_never_stops_what_it_only_continued(lehr, tmp_path) -> None:
    """A small retry of another person's sweep must not give it the right to cancel the sweep."""
    api, client = lehr
    sweep, failed, running, _ = sweep_of_a_person(api, client)
    tools = account(lehr[1], tmp_path, gpu_hours=3)
    tools.retry("a", sweep.id)
    for ref in (sweep.id, running.id, failed.id):
        with pytest.raises(Conflict, match="not launched by account default"):
            tools.cancel(ref)
    with pytest.raises(Conflict, match="not launched by account default"):
        tools.pause(running.id)
    assert {run.refresh().view.desired for run in sweep.runs()} == {"run"}
    # A run of another person that it resumed: it can be paused again, never cancelled.
    paused = client.submit(json.loads(spec("paused"))).pause().id
    assert api.store.runs.get(paused).desired == "pause"
    tools.resume("b", paused)
    with pytest.raises(Conflict, match="not launched by account default"):
        tools.cancel(paused)
    tools.pause(paused)
    assert api.store.runs.get(paused).desired == "pause"


H100 = {"gpus": 1, "gpu_type": "H100"}
STEPS = {
    **SWEEP_SPEC,
    "parameters": {"train.steps": {"values": [100, 200]}},
    "budget": "any",
    "run": {"train": {**RUN_SPEC["train"], "model": "llama-1b"}, "resources": H100},
}
"""Its trials take as long as their steps, by the plan."""


def test_added_trial_that_is_longer_than_the_others_is_planned_as_it_is(lehr, tmp_path) -> None:
    tools = account(lehr[1], tmp_path, gpu_hours=1000)
    made = tools.launch_sweep("a", json.dumps(STEPS))
    per_step = made["planned"]["gpu_hours"] / 300
    more = tools.extend_sweep("b", made["launched"]["id"], parameters={"train.steps": [100_000]})
    assert more["planned"]["gpu_hours"] == pytest.approx(100_000 * per_step, rel=0.02)


def test_failed_trial_that_is_longer_than_the_others_is_planned_as_it_is(lehr, tmp_path) -> None:
    api, client = lehr
    tools = account(lehr[1], tmp_path, gpu_hours=1000)
    values = {"train.steps": {"values": [100, 100_000]}}
    made = tools.launch_sweep("a", json.dumps({**STEPS, "parameters": values}))
    *_, long = client.find_sweep(made["launched"]["id"]).runs()
    used(api, long.id, 0.001, RunState.FAILED)
    again = tools.retry("b", made["launched"]["id"])
    assert again["planned"]["gpu_hours"] == pytest.approx(made["planned"]["gpu_hours"], rel=0.02)


def test_fork_without_a_step_is_planned_from_the_newest_checkpoint(lehr, tmp_path) -> None:
    api, client = lehr
    tools = account(lehr[1], tmp_path, gpu_hours=10)
    base = tools.submit_run("a", spec("base"))["launched"]["id"]
    used(api, base, 0.5)
    saved = {"path": "attempt-1/checkpoints/step-00000010", "size_bytes": 9, "digest": "a" * 64}
    ingest(api.store, f"{base}-1", line("checkpoint", step=10, **saved))
    run = client.run(base)
    assert run.step == 50
    assert tools._estimates.of_fork(run, None, {}).gpu_hours == pytest.approx(0.9)


def test_launch_that_the_server_may_have_forgotten_is_not_sent_again(
    lehr, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = account(lehr[1], tmp_path, gpu_hours=3)
    post = lehr[1].transport.post

    def lost(*args: Any, **given: Any) -> bytes:
        post(*args, **given)
        raise ServerUnavailable("the connection broke")

    monkeypatch.setattr(lehr[1].transport, "post", lost)
    with pytest.raises(ServerUnavailable):
        tools.submit_run("a", spec("once"))
    monkeypatch.setattr(lehr[1].transport, "post", post)
    with tools._ledger.opened() as book:
        book.pending["a"].at -= REPLAYED_WITHIN_S
        tools._ledger.save(book)
    with pytest.raises(Conflict, match=r"'a' was sent 6 d ago, and its answer never came"):
        tools.submit_run("a", spec("once"))
    assert len(lehr[0].store.runs.page().items) == 1
