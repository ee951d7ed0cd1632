"""``lehr mcp`` as an agent sees it: the SDK's client over pipes, a real API behind a socket."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lehr.control.lifecycle import RunState
from lehr.mcp_server.server import LAUNCHES, READS, STOPS
from lehr.specs import parse_spec
from lehr_testing.agents import Refused, agent
from lehr_testing.api import (
    RUN_SPEC,
    SWEEP_SPEC,
    TOKEN,
    Api,
    begin,
    end,
    evaluation,
    finished,
    ingest,
    line,
    metrics,
    served,
    started,
)
from lehr_testing.cli import call
from lehr_testing.paths import ROOT

HOUR = 3600.0
ONE_HOUR = {"time_limit_s": HOUR}
MAY = ("--may-launch", "--budget-gpu-hours", "3")


@pytest.fixture(scope="module")
def lehr(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Api, str]]:
    with served(tmp_path_factory.mktemp("server") / "home") as (api, address):
        yield api, address


@pytest.fixture
def start(lehr, tmp_path: Path):
    def run(*options: str):
        return agent(tmp_path / "agent", *options, LEHR_SERVER=lehr[1], LEHR_TOKEN=TOKEN)

    return run


def spec(name: str, **changes: Any) -> str:
    return json.dumps({**RUN_SPEC, "name": name, **changes})


def failed_run(api: Api, name: str) -> str:
    store = api.store
    run_id = store.runs.create(parse_spec({**RUN_SPEC, "name": name})).id
    attempt = begin(store, run_id)
    ingest(store, attempt, started() + metrics(1, 40) + evaluation(40, 3.25))
    message = "ValueError: shard 3 is shorter than its index says"
    ingest(store, attempt, f"step 40\n{message}\n".encode(), "rank-0.log")
    ingest(store, attempt, finished(40, "failed", cause="bad_data", message=message))
    ingest(store, attempt, line("metrics", step=41, tokens=1, values={"train/loss": "NaN"}))
    end(store, run_id, RunState.FAILED, message)
    return run_id


async def test_read_only_agent_sees_everything_and_has_no_tool_that_launches(lehr, start) -> None:
    run_id = failed_run(lehr[0], "broken")
    long = lehr[0].store.runs.create(parse_spec({**RUN_SPEC, "name": "long"})).id
    ingest(lehr[0].store, begin(lehr[0].store, long), started() + metrics(1, 1000))
    async with start() as ask:
        assert await ask.tools() == set(READS)
        assert "read-only" in ask.client.instructions
        assert (await ask("overview"))["cluster"]["gpus"] == 8
        listed = await ask("list_runs", state=["failed"])
        assert [one["name"] for one in listed["runs"]] == ["broken"]
        found = await ask("diagnose", ref="broken")
        assert "shard 3" in found["end"]
        [alert] = [one for one in found["alerts"] if one["code"] == "nan"]
        # NaN is one by definition, so it has no source.
        assert alert.keys() == {"code", "step", "seen", "advice", "sure", "cause"}
        shown = await ask("show_run", ref=run_id)
        assert shown["cause"] == "failed"
        assert shown["train"]["steps"] == 100
        hits = await ask("search_logs", ref="broken", text="SHARD")
        assert [one["offset"] for one in hits["lines"]] == [8]
        assert (await ask("logs", ref="broken", lines=1))["lines"][-1].startswith("ValueError")
        assert (await ask("events", ref="broken", limit=1))["earlier"] > 1
        assert await ask.read("lehr://runs/broken/config")
        assert json.loads(await ask.read("lehr://schema/sweep"))["title"] == "Lehr sweep"
        assert "broken" in (await ask("report", ref="broken"))["text"]
        # A curve is reduced to a few points, and read closer on request.
        known = await ask("metrics", ref="long", matching="loss")
        assert [one["name"] for one in known["metrics"]] == ["train/loss"]
        [curve] = (await ask("history", ref="long", names=["train/loss"]))["curves"]
        assert curve["logged_points"] == 1000
        assert len(curve["value"]) <= 40
        near = {"first": 500, "last": 510}
        [close] = (await ask("history", ref="long", names=["train/loss"], **near))["curves"]
        assert close["step"] == list(range(500, 511))
        with pytest.raises(Refused, match="Did you mean train/loss"):
            await ask("history", ref="long", names=["train/los"])


async def test_launch_that_does_not_fit_is_refused_and_nothing_is_recorded(lehr, start) -> None:
    async with start(*MAY) as ask:
        assert await ask.tools() == {*READS, "budget", *LAUNCHES, *STOPS}
        with pytest.raises(Refused, match=r"(?s)cannot be planned.*time_limit_s"):
            await ask("submit_run", request_id="a", spec=spec("unplanned"))
        with pytest.raises(Refused, match=r"4\.00 GPU-hours, and 3\.00 GPU-hours of 3\.00"):
            await ask("submit_run", request_id="a", spec=spec("four", time_limit_s=4 * HOUR))
        with pytest.raises(Refused, match=r"Did you mean train\.optimizer\.lr"):
            await ask(
                "submit_run",
                request_id="a",
                spec=spec("typo", **ONE_HOUR),
                overrides={"train.optimizer.learning_rate": 1},
            )
        assert (await ask("budget"))["promised"] == {"gpu_hours": 0.0, "dollars": 0.0}
        assert {"unplanned", "four", "typo"}.isdisjoint(
            one["name"] for one in (await ask("list_runs", limit=100))["runs"]
        )
        # A grid counts all its trials: three hours fit, four do not.
        grid = {**SWEEP_SPEC, "run": {**SWEEP_SPEC["run"], **ONE_HOUR}}
        rates = {"parameters": {"train.optimizer.lr": {"values": [1e-4, 1e-3, 1e-2, 1e-1]}}}
        with pytest.raises(Refused, match=r"4\.00 GPU-hours"):
            await ask("launch_sweep", request_id="b", spec=json.dumps({**grid, **rates}))
        made = await ask("launch_sweep", request_id="b", spec=json.dumps(grid))
        assert made["budget"]["left"] == {"gpu_hours": 0.0}
        with pytest.raises(Refused, match="over the budget"):
            await ask("submit_run", request_id="c", spec=spec("one-more", **ONE_HOUR))


async def test_budget_holds_across_restarts_and_counts_what_runs_really_cost(lehr, start) -> None:
    store = lehr[0].store
    async with start(*MAY) as ask:
        first = await ask("submit_run", request_id="one", spec=spec("cheap", time_limit_s=2 * HOUR))
    run_id = first["launched"]["id"]
    async with start(*MAY) as ask:
        assert (await ask("budget"))["promised"]["gpu_hours"] == 2.0
        with pytest.raises(Refused, match="over the budget"):
            await ask("submit_run", request_id="two", spec=spec("second", time_limit_s=2 * HOUR))
        # The same request answers with the same run, also in another process.
        again = await ask("submit_run", request_id="one", spec=spec("cheap", time_limit_s=2 * HOUR))
        assert (again["launched"]["id"], again["repeated"]) == (run_id, True)
        with pytest.raises(Refused, match="was used for another launch"):
            await ask("submit_run", request_id="one", spec=spec("other", **ONE_HOUR))
        # It ends after seconds: the promise is replaced by what it used.
        attempt = begin(store, run_id)
        ingest(store, attempt, started() + metrics(1, 100) + finished(100))
        store.attempts.update(attempt, exited_at=time.time() + 60, exit={"code": 0})
        end(store, run_id)
        budget = await ask("budget")
        assert budget["promised"]["gpu_hours"] == 0.0
        assert 0 < budget["used"]["gpu_hours"] < 0.1
        await ask("submit_run", request_id="two", spec=spec("second", time_limit_s=2 * HOUR))
    names = [run.name for run in store.runs.page().items]
    assert names.count("cheap") == names.count("second") == 1
    assert "other" not in names


def test_json_shows_the_account_and_wrong_options_are_refused(lehr, tmp_path: Path) -> None:
    def mcp(*options: str):
        return call("mcp", *options, cwd=tmp_path, LEHR_SERVER=lehr[1], LEHR_TOKEN=TOKEN,
                    LEHR_HOME=str(tmp_path / "agent"))  # fmt: skip

    shown = json.loads(mcp("--may-launch", "--budget-dollars", "5", "--json").stdout)["mcp"]
    assert shown["budget"]["left"] == {"dollars": 5.0}
    assert "submit_run" in shown["tools"]
    assert json.loads(mcp("--json").stdout)["mcp"]["budget"] is None
    for options, message in {
        ("--may-launch",): "--may-launch needs a budget",
        ("--budget-gpu-hours", "3"): "this is read-only",
        ("--may-stop-others",): "--may-stop-others needs --may-launch",
        (*MAY, "--account", "../x"): "'../x' is not valid",
    }.items():
        refused = mcp(*options)
        assert refused.returncode == 2
        assert message in refused.stderr


def test_documented_tools_are_those_that_exist() -> None:
    rows = re.findall(
        r"^\| (read|launch|stop|account) \| (.+) \|$",
        (ROOT / "docs/mcp.md").read_text(),
        re.MULTILINE,
    )
    found = {kind: set(re.findall(r"`(\w+)`", tools)) for kind, tools in rows}
    expected = {"read": READS, "launch": LAUNCHES, "stop": STOPS, "account": ("budget",)}
    assert found == {kind: set(tools) for kind, tools in expected.items()}
