"""The mirror against a W&B server: wandb's own client and core speak, a server of ours listens.

Only W&B's server is a stand-in: the internet is not there.
"""

import math
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from lehr.control.lifecycle import RunState
from lehr.mirrors.keeper import MirrorKeeper
from lehr.mirrors.notes import Notes
from support.api import RUN_SPEC, api_client, begin, end, finished, line, metrics, say, started
from support.waiting import until
from support.wandb_server import KEY, WandbServer

pytest.importorskip("wandb")
pytestmark = pytest.mark.slow
ONLINE = {"tracking": {"wandb": {"mode": "online", "project": "p"}}}


@pytest.fixture(scope="module")
def wandb_server():
    server = WandbServer()
    yield server
    server.close()


def served(home, wandb_server):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_API_KEY", KEY)
        patch.setenv("WANDB_BASE_URL", wandb_server.url)
        # Of another run, which the server's own environment may name.
        patch.setenv("WANDB_RUN_ID", "stray")
        patch.setenv("WANDB_MODE", "disabled")
        with api_client(home) as (api, client):
            api.client = client
            yield api


@pytest.fixture
def api(wandb_server, tmp_path):
    yield from served(tmp_path / "home", wandb_server)


@pytest.fixture(scope="module")
def mirrored_api(wandb_server, tmp_path_factory):
    """A server whose mirror runs all the while: its process takes seconds to start."""
    for api in served(tmp_path_factory.mktemp("home"), wandb_server):
        with mirroring(api):
            yield api


@contextmanager
def mirroring(api):
    keeper = MirrorKeeper(api.store, api.services.presenter, api.settings.home, every_s=0.1)
    keeper.start()
    try:
        yield keeper
    finally:
        keeper.stop()


def submitted(api, **changes):
    answer = api.client.post("/api/v1/runs", json={"spec": {**RUN_SPEC, **ONLINE, **changes}})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def wait_for_mirror(api, run_id):
    def look():
        told = api.client.get(f"/api/v1/runs/{run_id}").json()["wandb"]
        return told if told and told["state"] == "done" else None

    return until(look, within_s=120, what=f"the mirror of {run_id}")


def rows_sent(server, run_id, count):
    def look():
        with server.guard:
            return run_id in server.runs and len(server.runs[run_id].lines) >= count

    return until(look, within_s=120, what=f"{count} rows at W&B")


def assert_equal_series(api, run_id, remote):
    for info in api.store.metric_names(run_id):
        ours = api.store.series(run_id, info.name, exact=True)
        at, values = remote.series(info.name)
        assert at == ours.step, info.name
        assert all(
            a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(values, ours.y, strict=True)
        ), info.name


def test_a_mirror_that_is_killed_and_started_again_sends_each_row_once(api, wandb_server):
    run_id = submitted(api, tags=["mine"])
    attempt = begin(api.store, run_id)
    say(api.store, attempt, started() + metrics(1, 20, odd="NaN"))
    with mirroring(api) as keeper:
        rows_sent(wandb_server, run_id, 20)
        killed = keeper.pid
        os.kill(killed, signal.SIGKILL)
        say(api.store, attempt, metrics(21, 40, odd="Infinity"))
        rows_sent(wandb_server, run_id, 40)
        assert keeper.pid != killed
    # The server stops and starts: a third W&B session of the same run.
    say(api.store, attempt, metrics(41, 50, odd=1.0))
    say(
        api.store,
        attempt,
        line(
            "checkpoint",
            step=50,
            path="attempt-1/checkpoints/step-00000050",
            size_bytes=7,
            digest="d" * 64,
        ),
    )
    say(api.store, attempt, line("sample", step=50, prompt="I", text="am") + finished(50))
    end(api.store, run_id)
    with mirroring(api):
        told = wait_for_mirror(api, run_id)
    remote = wandb_server.runs[run_id]
    assert_equal_series(api, run_id, remote)
    assert [row["_step"] for row in remote.rows] == list(range(50))
    assert told["url"] == f"{wandb_server.url}/me/p/runs/{run_id}"
    assert remote.exit_code == 0
    assert remote.summary["train/loss"] == 0.2
    assert remote.summary["lehr/state"] == "completed"
    assert remote.summary["samples"]["nrows"] == 1
    assert remote.config["train"]["value"]["steps"] == 100
    assert remote.settings["tags"] == ["mine"]
    kinds = {made["artifactCollectionName"] for made in wandb_server.artifacts}
    assert f"checkpoint-{run_id}" in kinds
    stored = (api.settings.home / "wandb" / run_id).rglob("*.json")
    assert not [path for path in stored if KEY in path.read_text(errors="replace")]


def test_steps_that_are_trained_again_stand_beside_the_first_by_attempt(mirrored_api, wandb_server):
    api = mirrored_api
    run_id = submitted(api)
    first = begin(api.store, run_id)
    say(api.store, first, started() + metrics(1, 8))
    rows_sent(wandb_server, run_id, 8)
    assert api.store.move(
        run_id,
        old=RunState.RUNNING,
        new=RunState.QUEUED,
        attempt=1,
        cause="node_lost",
        actor="dispatcher",
    )
    api.store.close_attempt(first)
    second = begin(api.store, run_id, 2)
    say(api.store, second, started(2) + line("resumed", step=5, checkpoint="attempt-1/x"))
    say(api.store, second, metrics(6, 12, **{"train/loss": 0.5}) + finished(12))
    end(api.store, run_id)
    wait_for_mirror(api, run_id)
    remote = wandb_server.runs[run_id]
    assert [(row["attempt"], row["step"]) for row in remote.rows] == [
        *((1, step) for step in range(1, 9)),
        *((2, step) for step in range(6, 13)),
    ]
    assert remote.summary["train/loss"] == 0.5


def test_an_outage_of_wandb_only_delays(mirrored_api, wandb_server):
    api = mirrored_api
    run_id = submitted(api)
    attempt = begin(api.store, run_id)
    say(api.store, attempt, started() + metrics(1, 5))
    rows_sent(wandb_server, run_id, 5)
    wandb_server.down = True
    say(api.store, attempt, metrics(6, 9) + finished(9))
    end(api.store, run_id)
    until(lambda: wandb_server.refused, within_s=120, what="a request that W&B refuses")
    assert api.client.get(f"/api/v1/runs/{run_id}").json()["state"] == "completed"
    wandb_server.down = False
    wait_for_mirror(api, run_id)
    assert_equal_series(api, run_id, wandb_server.runs[run_id])


def test_offline_files_are_what_wandb_sync_reads(mirrored_api, wandb_server):
    api = mirrored_api
    run_id = submitted(api, tracking={"wandb": {"mode": "offline", "project": "p"}})
    attempt = begin(api.store, run_id)
    say(api.store, attempt, started() + metrics(1, 30, odd="-Infinity") + finished(30))
    end(api.store, run_id)
    folder = wait_for_mirror(api, run_id)["folder"]
    wandb = Path(sys.executable).with_name("wandb")
    done = subprocess.run(
        [wandb, "sync", folder],
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
        cwd=api.settings.home,
        env={**os.environ, "WANDB_API_KEY": KEY, "WANDB_BASE_URL": wandb_server.url},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert_equal_series(api, run_id, wandb_server.runs[run_id])
    assert Notes(api.settings.home, run_id).progress().rows == 30
