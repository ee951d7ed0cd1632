"""The two examples of docs/mcp.md: an agent on the real platform, with real trainings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lehr_testing import specs
from lehr_testing.agents import Refused, agent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("platform"),
]


@pytest.mark.nightly  # tests/platform/mcp_server calls each tool by the SDK's client.
async def test_agent_finds_a_learning_rate_and_explains_a_failed_run(
    server, corpus, tmp_path: Path
):
    grid = specs.lr_sweep(corpus, "agents-grid", [1e-4, 1e-2, 1e-1], steps=20)
    grid["run"]["time_limit_s"] = 1200
    diverging = specs.run(corpus, "agents-diverging", steps=20) | {"time_limit_s": 1200}
    diverging["train"]["optimizer"] = {"lr": 1e9}
    address = {
        "LEHR_SERVER": f"http://127.0.0.1:{server.port}",
        "LEHR_TOKEN": server.client().create_token("e2e", "researcher", gpu_hours=1.5).token,
    }
    async with agent(tmp_path, "--may-launch", **address) as ask:
        assert (await ask("plan", spec=json.dumps(grid)))["kind"] == "sweep"
        made = await ask("launch_sweep", request_id="grid", spec=json.dumps(grid))
        # Too long by its limit and by any measured time: other tests have trained on this server.
        long = specs.lr_sweep(corpus, "agents-long", [1e-4, 1e-2], steps=100_000_000)
        long["run"]["time_limit_s"] = 360_000
        with pytest.raises(Refused, match="over the budget"):
            await ask("launch_sweep", request_id="grid-2", spec=json.dumps(long))
        failing = await ask("submit_run", request_id="diverging", spec=json.dumps(diverging))
        client = server.client()
        client.find_sweep(made["launched"]["id"]).wait(timeout_s=600)
        client.run(failing["launched"]["id"]).wait(timeout_s=300)
        found = await ask("show_sweep", ref="agents-grid")
        assert found["state"] == "finished"
        assert found["best_parameters"]["train.optimizer.lr"] in {1e-2, 1e-1}
        assert [one["rank"] for one in found["trials"]] == [1, 2, 3]
        assert found["verdict"]
        explained = await ask("diagnose", ref="agents-diverging")
        assert explained["alerts"] or explained["run"]["state"] == "failed"
        # What they really used is counted, and is far less than was planned.
        budget = (await ask("budget"))["budget"]
        assert budget["promised"] == 0
        cost = client.find_sweep("agents-grid").detail.cost
        cost_of_diverging = client.run("agents-diverging").detail.cost
        total = cost.gpu_hours + cost_of_diverging.gpu_hours
        assert budget["used"] == pytest.approx(total, rel=1e-4)
