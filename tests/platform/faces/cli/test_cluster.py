"""``lehr node`` with the real API and a real dispatcher: nodes are listed, excluded and readmitted."""

from __future__ import annotations

import json
import time

import pytest

from lehr.app.presenters.cluster import ClusterPresenter
from lehr.cluster.dispatcher import Dispatcher
from lehr.control.liveness import Liveness
from lehr.faces.client import Client
from lehr.schemas.cluster import ClusterHistory
from lehr_testing.api import RUN_SPEC, TOKEN, finished, ingest, metrics, served, started
from lehr_testing.cli import call


def node(name: str, address: str) -> dict:
    return {"name": name, "ray_id": f"ray-{name}", "address": address, "gpus": 1, "alive": True}


@pytest.fixture
def lehr(tmp_path, monkeypatch):
    """Runs a command as the entry point would, on a cluster of gpu-left, which trains, and gpu-right."""
    with served(tmp_path / "home") as (api, address):
        real = Dispatcher(api.store, tmp_path / "home", ray_address="nowhere:1", server_url=address)
        nodes = [node("gpu-left", "10.0.0.1"), node("gpu-right", "10.0.0.2")]
        real._bridge_state("up", None)
        real._on_news({"news": "members", "nodes": nodes})
        for each in nodes:
            gpu = {"index": 0, "name": "NVIDIA H100 80GB HBM3", "memory_bytes": 1, "uuid": "u"}
            hello = {"attempts": {}, "gpus": [gpu], "cpus": 16}
            real._on_news({"news": "node", "name": each["name"], "hello": hello})
        for name in ("exclude_node", "readmit_node", "check_node", "nodes"):
            monkeypatch.setattr(api.dispatcher, name, getattr(real, name))
        shown_by = ClusterPresenter(api.store, real.cluster, real.queue_order, embedded=False)
        monkeypatch.setattr(api.dispatcher, "cluster", shown_by.cluster)
        held = api.store.transitions.begin_attempt(
            api.store.runs.create(_spec()).id,
            placement=[{"node": "gpu-left", "gpus": [0]}],
            resume_from=None,
            token_sha256="0" * 64,
        )
        own = {"SERVER": address, "TOKEN": TOKEN, "HOME": str(tmp_path / "x")}
        environment = {f"LEHR_{name}": value for name, value in own.items()}

        def run(*args: str, group: str = "node") -> tuple[int, str, str]:
            done = call(group, *args, cwd=tmp_path, COLUMNS="160", **environment)
            return done.returncode, done.stdout, done.stderr

        run.news = real._on_news  # type: ignore[attr-defined]
        silent = {held.run_id: Liveness.UNREACHABLE}
        run.silent = lambda: api.dispatcher.silent.update(silent)  # type: ignore[attr-defined]
        run.finish = lambda: ingest(  # type: ignore[attr-defined]
            api.store, held.id, started() + metrics(1, 5) + finished(5, "stopped")
        )
        run.lost = lambda name: real._on_news(  # type: ignore[attr-defined]
            {"news": "members", "nodes": [each for each in nodes if each["name"] != name]}
        )
        yield run


def _spec():
    from lehr.specs import load_spec

    return load_spec(RUN_SPEC)


def lines(shown: str) -> dict[str, list[str]]:
    """The table's rows by their first word."""
    return {words[0]: words for line in shown.splitlines() if (words := line.split())}


def test_ls_lists_each_node_with_its_gpus_and_how_many_are_busy(lehr, monkeypatch):
    code, shown, _ = lehr("ls")
    assert code == 0
    rows = lines(shown)
    assert rows["gpu-left"] == ["gpu-left", "1", "1", "in", "use"]
    assert rows["gpu-right"] == ["gpu-right", "1", "0", "in", "use"]
    assert "GPU-hours" not in shown  # A server that has just started has seen none.
    past = {"began": 0.0, "ended": 1.0, "nodes": [], "queue": [], "gpu_hours": 192.0}
    kinds = {"nothing queued": 9.1, "starting": 0.04}
    past["idle"] = [
        {"by": "all", "name": "", "kind": kind, "gpu_hours": hours} for kind, hours in kinds.items()
    ]
    monkeypatch.setattr(Client, "cluster_history", lambda _: ClusterHistory.model_validate(past))
    assert "idle 9.1 of 192.0 GPU-hours in 24 h: 9.1 nothing queued" in lehr("ls")[1]


def test_status_does_not_offer_gpus_that_no_run_can_get(lehr):
    def shown():
        text = lehr(group="status")[1]
        [line] = [one for one in text.splitlines() if one.startswith("  cluster")]
        [head] = [one for one in text.splitlines() if one.startswith("gpu-right")]
        _, right = [
            one.partition("HBM3")[2].split() for one in text.splitlines() if one.startswith("0 ")
        ]
        return line.removeprefix("  cluster  "), head, right

    assert shown() == ("up, 1 of 2 GPUs busy on 2 nodes", "gpu-right  10.0.0.2", ["free"])
    lehr("exclude", "gpu-right", "--reason", "its fans")
    some = "up, 1 of 2 GPUs busy on 2 nodes; 0 free, 1 on nodes that get no runs"
    assert shown() == (some, "gpu-right  10.0.0.2  excluded: its fans", ["not", "given", "out"])
    lehr("readmit", "gpu-right")
    lehr.news({"news": "node", "name": "gpu-right", "attempts": {}, "draining": True})
    leaving = "gpu-right  10.0.0.2  cannot be used: it is leaving the cluster"
    assert shown() == (some, leaving, ["not", "given", "out"])
    assert lines(lehr("ls")[1])["gpu-right"][3:6] == ["cannot", "be", "used:"]
    lehr.lost("gpu-right")
    assert shown() == (some, "gpu-right  10.0.0.2  does not answer", ["not", "given", "out"])
    # What a lost node still holds is one of its GPUs.
    lehr.lost("gpu-left")
    lehr.news({"news": "node", "name": "gpu-right", "attempts": {}})
    assert shown() == ("up, 1 of 2 GPUs busy on 2 nodes", "gpu-right  10.0.0.2", ["free"])


@pytest.mark.parametrize("state", ["starting", "up"])
def test_status_shows_a_node_that_has_not_come_back(tmp_path, state):
    home = tmp_path / "home"
    with served(home) as (api, address):
        gpus = [{"index": 0, "name": "NVIDIA H100", "memory_bytes": 1}]
        known = {"address": "10.0.0.2", "gpus": gpus, "seen_at": time.time(), "key": ""}
        text = json.dumps({"cluster": "", "nodes": {"gpu-2": known}})
        (home / "nodes.json").write_text(text)
        url = "http://10.0.0.1:5347"
        real = Dispatcher(api.store, home, gpus=1, node="gpu-1", server_url=url)
        real._bridge_state(state, None)
        shown_by = ClusterPresenter(api.store, real.cluster, real.queue_order, embedded=True)
        api.dispatcher.cluster = shown_by.cluster
        environment = {"LEHR_SERVER": address, "LEHR_TOKEN": TOKEN, "LEHR_HOME": str(home)}
        text = call("status", cwd=tmp_path, COLUMNS="160", **environment).stdout
    assert "gpu-2  10.0.0.2  has not come back since the server started\n" in text


def test_doctor_names_nodes_that_are_not_there(lehr):
    def found():
        _, text, _ = lehr("--json", group="doctor")
        checks = json.loads(text)["checks"]
        names = ("cluster", "gpu-right")
        return [one for one in checks if one["name"] in names]

    all_there, _ = found()
    assert (all_there["status"], all_there["found"]) == ("ok", "up, 2 GPUs on 2 nodes")
    lehr.lost("gpu-right")
    lehr.news({"news": "node", "name": "gpu-left", "attempts": {}})
    cluster, missing = found()
    assert (cluster["status"], cluster["found"]) == ("ok", "up, 1 GPU on 1 node")
    assert (missing["status"], missing["found"]) == ("note", "does not answer (10.0.0.2)")
    assert "keeper.log" in missing["fix"]


def test_node_is_excluded_with_a_reason_and_readmitted(lehr):
    code, shown, _ = lehr("exclude", "gpu-left", "--reason", "its fans are replaced")
    assert (code, shown) == (0, "gpu-left is excluded: no new runs. Its running runs continue.\n")
    assert "excluded: its fans are replaced" in lehr("ls")[1]
    assert lines(lehr("ls")[1])["gpu-right"][-2:] == ["in", "use"]
    assert lehr("readmit", "gpu-left")[:2] == (0, "gpu-left is readmitted: it can get new runs.\n")
    assert "excluded" not in lehr("ls")[1]


def test_node_is_available_until_a_time_and_has_no_end_again(lehr):
    end = f"{time.gmtime().tm_year + 1}-12-01T18:00"
    shown = f"gpu-right is available until {end.replace('T', ' ')}.\n"
    assert lehr("until", "gpu-right", end)[:2] == (0, shown)
    assert f"in use, available until {end.replace('T', ' ')}" in lehr("ls")[1]
    assert lehr("until", "gpu-right", "-")[1] == "gpu-right has no end.\n"
    assert "available until" not in lehr("ls")[1]
    code, _, error = lehr("until", "gpu-right", "tomorrow")
    assert code == 2
    assert "TIME 'tomorrow' is not a time." in error


@pytest.mark.parametrize("verb", ["exclude", "readmit"])
def test_an_unknown_node_is_an_error_that_names_the_nearest(lehr, verb):
    code, shown, error = lehr(verb, "gpu-lift")
    assert (code, shown) == (2, "")
    assert "The cluster has no node 'gpu-lift'." in error
    assert "Did you mean gpu-left?" in error
    assert "It has: gpu-left, gpu-right." in lehr(verb, "somewhere-else")[2]
