"""The mirror and a W&B server: the client and core of wandb are real, the server is a fake.

Only W&B's server is a stand-in: the internet is not there.
"""

import pytest

from lehr.control.lifecycle import RunState
from lehr_testing import mirrors
from lehr_testing.api import begin, end, finished, ingest, line, metrics, started
from lehr_testing.mirrors import mirrored_home, mirroring, until_mirrored
from lehr_testing.waiting import until
from lehr_testing.wandb_server import KEY, WandbServer

pytestmark = pytest.mark.slow
ONLINE = {"tracking": {"wandb": {"mode": "online", "project": "p"}}}


@pytest.fixture(scope="module")
def wandb_server():
    server = WandbServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def environment(wandb_server):
    # The last two are of another run, which the server's own environment may name.
    return {
        "WANDB_API_KEY": KEY,
        "WANDB_BASE_URL": wandb_server.url,
        "WANDB_RUN_ID": "stray",
        "WANDB_MODE": "disabled",
    }


@pytest.fixture
def api(environment, tmp_path):
    with mirrored_home(tmp_path / "home", **environment) as api:
        yield api


@pytest.fixture(scope="module")
def mirrored_api(environment, tmp_path_factory):
    """A server whose mirror runs for the whole module: its process takes seconds to start."""
    home = tmp_path_factory.mktemp("home")
    with mirrored_home(home, **environment) as api, mirroring(api):
        yield api


def submitted(api, **changes):
    return mirrors.submitted(api, ONLINE, **changes)


def rows_sent(server, run_id, count):
    def look():
        with server.guard:
            return run_id in server.runs and len(server.runs[run_id].lines) >= count

    return until(look, within_s=120, what=f"{count} rows at W&B")


def test_repeated_steps_are_separate_series_by_attempt(mirrored_api, wandb_server):
    api = mirrored_api
    run_id = submitted(api)
    first = begin(api.store, run_id)
    ingest(api.store, first, started() + metrics(1, 8))
    rows_sent(wandb_server, run_id, 8)
    assert api.store.transitions.apply(
        run_id,
        old=RunState.RUNNING,
        new=RunState.QUEUED,
        attempt=1,
        cause="node_lost",
        actor="dispatcher",
    )
    api.store.attempts.close(first)
    second = begin(api.store, run_id, 2)
    ingest(api.store, second, started(2) + line("resumed", step=5, checkpoint="attempt-1/x"))
    ingest(api.store, second, metrics(6, 12, **{"train/loss": 0.5}) + finished(12))
    end(api.store, run_id)
    until_mirrored(api, run_id)
    remote = wandb_server.runs[run_id]
    assert [(row["attempt"], row["step"]) for row in remote.rows] == [
        *((1, step) for step in range(1, 9)),
        *((2, step) for step in range(6, 13)),
    ]
    assert remote.summary["train/loss"] == 0.5
