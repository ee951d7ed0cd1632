"""What nodes did over time: by node, and cut to a run's attempts."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from lehr.client import Client
from lehr.errors import NotFound, UserError
from lehr.specs import parse_spec
from lehr.system_history.history import MOST_NODES, SystemHistoryFiles
from lehr_testing.api import RUN_SPEC, TOKEN, begin, served
from lehr_testing.cli import call


@pytest.fixture
def lehr(tmp_path: Path):
    with served(tmp_path / "home") as (api, address), Client(address, TOKEN) as client:
        yield api, client


def report(utilization: float, node: str = "n1") -> dict:
    """An agent's report with one figure per kind."""
    gpus = [
        {
            "index": index,
            "utilization": utilization,
            "power_watts": 400.0,
            "memory_used_bytes": None,
        }
        for index in (0, 1)
    ]
    return {
        "news": "node",
        "name": node,
        "host_now": {"cpu": utilization / 2, "ram_bytes": 64e9, "odd": 1},
        "gpus_now": gpus,
    }


def measured(home: Path, seconds: int) -> float:
    """Record a report each 10 s until now; return now."""
    history, now = SystemHistoryFiles(home), time.time()
    for back in range(seconds, 0, -10):
        history.record(report(0.5 if back > 300 else 1.0), at=now - back)
    return now


def test_node_is_shown_over_the_last_hour_by_default(lehr, tmp_path) -> None:
    _, client = lehr
    measured(tmp_path / "home", 600)
    found = client.node_history("n1")
    assert found.step_s == 10
    assert {value for value in found.host.cpu if value} == {0.25, 0.5}
    assert [gpu.index for gpu in found.gpus] == [0, 1]
    assert {value for value in found.gpus[1].power_watts if value} == {400.0}
    assert found.gpus[0].memory_used_bytes == []
    frame = client.node_frame("n1", first=time.time() - 100)
    assert frame["gpu0.utilization"].dropna().unique().tolist() == [1.0]
    assert frame["node"].unique().tolist() == ["n1"]


def test_run_has_its_own_gpus_while_its_attempts_ran(lehr, tmp_path) -> None:
    api, client = lehr
    now = measured(tmp_path / "home", 600)
    run_id = api.store.runs.create(parse_spec({**RUN_SPEC, "name": "one"})).id
    attempt = begin(api.store, run_id)
    api.store.attempts.update(attempt, dispatched_at=now - 200, exited_at=now - 100)
    run = client.run(run_id)
    [one] = run.system().attempts
    [node] = one.nodes
    assert [gpu.index for gpu in node.gpus] == [0]
    assert node.times[0] >= now - 210
    assert node.times[-1] <= now - 100
    assert set(node.gpus[0].utilization) == {1.0}
    assert run.system_frame()["attempt"].unique().tolist() == [1]
    with pytest.raises(NotFound, match="no attempt 2"):
        run.system(attempt=2)


def test_unknown_node_and_wrong_span_are_refused(lehr) -> None:
    _, client = lehr
    with pytest.raises(NotFound, match="no node 'n2'"):
        client.node_history("n2")
    assert client.node_history("n1").host.cpu == []
    with pytest.raises(UserError, match="from before to"):
        client.node_history("n1", first=100, last=50)


def test_commands_print_figures_and_json(lehr, tmp_path) -> None:
    api, client = lehr
    now = measured(tmp_path / "home", 600)
    run_id = api.store.runs.create(parse_spec({**RUN_SPEC, "name": "one"})).id
    api.store.attempts.update(begin(api.store, run_id), dispatched_at=now - 200)

    def lehr_(*args: str):
        return call(*args, cwd=tmp_path, LEHR_SERVER=client.server, LEHR_TOKEN=TOKEN)

    shown = lehr_("cluster", "history", "n1")
    assert "GPU 1 power" in shown.stdout
    assert "400 W" in shown.stdout
    assert json.loads(lehr_("cluster", "history", "n1", "--json").stdout)["node"] == "n1"
    shown = lehr_("system", "one")
    assert "one, attempt 1" in shown.stdout
    assert "GPU 1" not in shown.stdout
    assert json.loads(lehr_("system", "one", "--json").stdout)["run_id"] == run_id


def test_names_of_nodes_are_no_paths_and_files_are_limited(tmp_path, monkeypatch) -> None:
    history = SystemHistoryFiles(tmp_path)
    for node in ("../../x", "a/b", "..", "n" * 300):
        history.record(report(0.5, node))
        assert history.read(node, 0, time.time(), points=10).columns["cpu"]
    assert len(list((tmp_path / "system").glob("*.ring"))) == 4
    assert [one.name for one in tmp_path.iterdir()] == ["system"]
    monkeypatch.setattr("lehr.system_history.history.MOST_NODES", 4)
    history.record(report(0.5, "new"))
    assert len(list((tmp_path / "system").glob("*.ring"))) == 4 < MOST_NODES
