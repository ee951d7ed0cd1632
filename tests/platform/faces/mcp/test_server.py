"""``lehr mcp`` as an agent sees it: the SDK's client over pipes, a real API behind a socket."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from lehr.control.lifecycle import RunState
from lehr.faces.mcp.server import LAUNCHES, READS, STOPS
from lehr.specs import load_spec
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


class Refused(Exception):
    """A tool's error, as the model reads it."""


class Agent:
    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool; return its answer, which is JSON in one text."""
        result = await self.client.call_tool(tool, arguments)
        [content] = result.content
        if result.is_error:
            raise Refused(content.text)
        assert len(content.text) <= 16_000
        return json.loads(content.text)

    async def tools(self) -> set[str]:
        return {tool.name for tool in (await self.client.list_tools()).tools}

    async def read(self, uri: str) -> str:
        [content] = (await self.client.read_resource(uri)).contents
        return content.text


@asynccontextmanager
async def agent(home: Path, *options: str, **environment: str) -> AsyncIterator[Agent]:
    """Start ``lehr mcp`` with these options; ``home`` is its LEHR_HOME."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("LEHR_")}
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "lehr.faces.cli.main", "mcp", *options],
        env={**inherited, "LEHR_HOME": str(home), **environment},
    )
    async with agent_of(parameters) as ask:
        yield ask


@asynccontextmanager
async def agent_of(server: Any) -> AsyncIterator[Agent]:
    """Connect to a program or, as a transport, to an address."""
    try:
        async with Client(server) as client:
            yield Agent(client)
    except BaseExceptionGroup as group:  # The client's task groups wrap what a test raised.
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


HOUR = 3600.0
ONE_HOUR = {"time_limit_s": HOUR}


@pytest.fixture(scope="module")
def lehr(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Api, str]]:
    with served(tmp_path_factory.mktemp("server") / "home") as (api, address):
        yield api, address


@pytest.fixture
def start(lehr, tmp_path: Path):
    def run(*options: str, token: str = TOKEN):
        return agent(tmp_path / "agent", *options, LEHR_SERVER=lehr[1], LEHR_TOKEN=token)

    return run


def budget(api: Api, name: str = "agent") -> str:
    """Return the token of an agent with a budget of three GPU-hours."""
    tokens = api.store.access_tokens
    if tokens.of_name(name) is None:
        tokens.create(name, "researcher", f"lehr_{name}", None, 3.0)
    return f"lehr_{name}"


def spec(name: str, **changes: Any) -> str:
    return json.dumps({**RUN_SPEC, "name": name, **changes})


def failed_run(api: Api, name: str) -> str:
    store = api.store
    run_id = store.runs.create(load_spec({**RUN_SPEC, "name": name})).id
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
    long = lehr[0].store.runs.create(load_spec({**RUN_SPEC, "name": "long"})).id
    ingest(lehr[0].store, begin(lehr[0].store, long), started() + metrics(1, 1000))
    async with start() as ask:
        assert await ask.tools() == set(READS)
        assert "read-only" in ask.client.instructions
        assert (await ask("overview"))["cluster"]["gpus_total"] == 8
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
        assert json.loads(await ask.read("lehr://runs/broken"))["cause"] == "failed"
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


async def test_tools_over_http_have_the_rights_of_the_token(lehr, start) -> None:
    api, address = lehr

    def over_http(token: str):
        http = httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"})
        return agent_of(streamable_http_client(f"{address}/mcp", http_client=http))

    assert (await httpx.AsyncClient().post(f"{address}/mcp", json={})).status_code == 401
    async with over_http(TOKEN) as ask:
        assert await ask.tools() == set(READS)
        assert (await ask("overview"))["server"] == address
        with pytest.raises(Refused, match="There is no run 'missing'"):
            await ask("show_run", ref="missing")
    async with over_http(budget(api, "remote")) as ask:
        made = await ask("submit_run", request_id="http", spec=spec("by-http", **ONE_HOUR))
        assert made["budget"]["name"] == "remote"
    audited = [row.path for row in api.store.audit.page()[0]]
    assert "/api/v1/runs" in audited
    assert "/mcp" not in audited


async def test_wait_answers_when_it_has_happened_and_not_before(lehr, start) -> None:
    api = lehr[0]
    first, second = (api.store.runs.create(load_spec({**RUN_SPEC, "name": n})).id for n in "ab")
    begin(api.store, first)
    refs = {"refs": [first, second]}
    async with start() as ask:
        still = await ask("wait", **refs, timeout_s=0)
        assert (still["reached"], [run["state"] for run in still["now"]]) == (
            False,
            ["starting", "queued"],
        )

        async def meanwhile(until: str, act: Any) -> dict[str, Any]:
            waiting = asyncio.create_task(ask("wait", **refs, until=until, timeout_s=120))
            await asyncio.sleep(1)  # It waits by now; if not, the test sees less, and passes.
            assert not waiting.done()
            await asyncio.to_thread(act)
            return await waiting

        woken = await meanwhile("state_changed", lambda: begin(api.store, second))
        assert [run["state"] for run in woken["now"]] == ["starting", "starting"]
        woken = await meanwhile(
            "alert", lambda: end(api.store, first, RunState.FAILED, "no memory")
        )
        assert woken["now"][0]["trouble"] == ["failed: 1"]
        assert (await ask("wait", **refs, until="any_ended"))["reached"]
        woken = await meanwhile("all_ended", lambda: end(api.store, second, RunState.FAILED))
        assert [run["state"] for run in woken["now"]] == ["failed", "failed"]


async def test_launch_is_refused_by_the_budget_and_repeated_by_its_request_id(lehr, start) -> None:
    store = lehr[0].store
    async with start("--may-launch", token=budget(lehr[0])) as ask:
        assert await ask.tools() == {*READS, "budget", *LAUNCHES, *STOPS}
        with pytest.raises(Refused, match=r"(?s)cannot be planned.*time_limit_s"):
            await ask("submit_run", request_id="a", spec=spec("unplanned"))
        with pytest.raises(Refused, match="this is the spec of a run"):
            await ask("launch_sweep", request_id="a", spec=spec("run"))
        typo = {"train.optimizer.learning_rate": 1}
        with pytest.raises(Refused, match=r"Did you mean train\.optimizer\.lr"):
            await ask("submit_run", request_id="a", spec=spec("typo", **ONE_HOUR), overrides=typo)
        first = await ask("submit_run", request_id="a", spec=spec("mine", **ONE_HOUR))
        assert first["budget"]["left"] == 2.0
        rates = {"train.optimizer.lr": {"values": [1e-4, 1e-3, 1e-2]}}
        run = {**SWEEP_SPEC["run"], **ONE_HOUR}
        grid = {**SWEEP_SPEC, "parameters": rates, "run": run}
        with pytest.raises(
            Refused, match=r"over the budget of the token 'agent': this needs 3\.00"
        ):
            await ask("launch_sweep", request_id="b", spec=json.dumps(grid))
    # The same request answers with the same run, also in another process.
    async with start("--may-launch", token=budget(lehr[0])) as ask:
        again = await ask("submit_run", request_id="a", spec=spec("mine", **ONE_HOUR))
        assert again["launched"]["id"] == first["launched"]["id"]
        with pytest.raises(Refused, match="'mcp:agent:a' was used for another request"):
            await ask("submit_run", request_id="a", spec=spec("other", **ONE_HOUR))
        rates["train.optimizer.lr"]["values"] = [1e-4]
        made = await ask("launch_sweep", request_id="b", spec=json.dumps(grid))
        more = {"request_id": "c", "ref": made["launched"]["id"]}
        for _ in range(2):
            added = await ask("extend_sweep", parameters={"train.optimizer.lr": [1e-2]}, **more)
        assert added["budget"]["left"] == 0.0
        with pytest.raises(Refused, match="over the budget"):
            await ask("repeat_seeds", request_id="d", ref="mine", n=1)
        with pytest.raises(Refused, match="makes no claim"):
            await ask("judge", ref="mine")
        with pytest.raises(Refused, match="no checkpoint"):
            await ask("fork", request_id="e", ref="mine")
        with pytest.raises(Refused, match="changes only what it submitted"):
            await ask("cancel", ref="long")
        assert (await ask("pause", ref="mine"))["paused"]["requested"] == "pause"
        assert (await ask("resume", ref="mine"))["launched"]["name"] == "mine"
        assert (await ask("cancel", ref=made["launched"]["id"]))["cancelled"]["name"] == "grid"
        assert (await ask("budget"))["budget"]["promised"] > 0
    names = [run.name for run in store.runs.page().items]
    assert names.count("mine") == 1
    assert {"other", "unplanned", "typo"}.isdisjoint(names)


def test_json_shows_the_tools_and_a_token_without_a_budget_may_not_launch(
    lehr, tmp_path: Path
) -> None:
    def mcp(*options: str, token: str = TOKEN):
        return call("mcp", *options, cwd=tmp_path, LEHR_SERVER=lehr[1], LEHR_TOKEN=token,
                    LEHR_HOME=str(tmp_path / "agent"))  # fmt: skip

    shown = json.loads(mcp("--may-launch", "--json", token=budget(lehr[0])).stdout)["mcp"]
    assert shown["budget"]["gpu_hours"] == 3.0
    assert "submit_run" in shown["tools"]
    assert json.loads(mcp("--json").stdout)["mcp"]["budget"] is None
    refused = mcp("--may-launch")
    assert refused.returncode == 2
    assert "--may-launch needs a token with a budget" in refused.stderr


def test_documented_tools_are_those_that_exist() -> None:
    rows = re.findall(
        r"^\| (read|launch|stop|account) \| (.+) \|$",
        (ROOT / "docs/mcp.md").read_text(),
        re.MULTILINE,
    )
    found = {kind: set(re.findall(r"`(\w+)`", tools)) for kind, tools in rows}
    expected = {"read": READS, "launch": LAUNCHES, "stop": STOPS, "account": ("budget",)}
    assert found == {kind: set(tools) for kind, tools in expected.items()}
