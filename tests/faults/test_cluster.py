"""A cluster of two machines, made by `lehr up` and the command that it prints, and what may befall it.

Each machine has its own network, host name, processes, home and /tmp. The folder of runs is shared
storage, mounted under another path on each.
"""

from __future__ import annotations

import pytest

from lehr_testing.fakes import paced
from lehr_testing.faults.hosts import SHARED, Trainings, hosts, join_line, until_nodes
from lehr_testing.server import TRAINER
from lehr_testing.specs import text_corpus

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(1200)]
ELSEWHERE = "/var/tmp/elsewhere"
UP = {"LEHR_RUNS": f"{SHARED}/runs", "LEHR_TRAINER_MODULE": str(TRAINER)}


class Pair(Trainings):
    def __init__(self, alpha, beta, shared):
        self.alpha, self.beta, self.shared = alpha, beta, shared
        self.up()
        self.client = alpha.client()

    def up(self):
        return self.alpha.up(gpus=4, env=UP)

    def join(self, *arguments, **options):
        token, line = join_line(self.alpha)
        env = {**token, **options.pop("env", {})}
        return self.beta.lehr(*line, "--runs", f"{ELSEWHERE}/runs", *arguments, env=env, **options)

    def on_beta(self, name, *, steps):
        """Start a run that trains slowly on beta."""
        self.client.exclude_node("alpha")
        run = self.client.submit(paced(self.spec(name, steps=steps), 0.2))
        self.trains(run, at_least=6)
        assert [gpu.node for gpu in run.detail.placement] == ["beta"]
        self.client.readmit_node("alpha")
        return run

    def on_both(self, name, *, steps):
        """Start a run that trains slowly on both machines."""
        run = self.client.submit(paced(self.spec(name, steps=steps, gpus=4, nodes=2), 0.2))
        self.trains(run, at_least=6)
        return run


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """(alpha with the server, beta that has joined): four logical GPUs each."""
    shared = tmp_path_factory.mktemp("shared")
    text_corpus(shared / "corpus")
    with hosts("alpha", "beta", shared=shared) as (alpha, beta):
        beta.run("bash", "-c", f"mkdir {ELSEWHERE} && mount --bind {SHARED} {ELSEWHERE}")
        pair = Pair(alpha, beta, shared)
        until_nodes(pair.client, "alpha", within_s=400)
        pair.join("--gpus", "4", check=False)
        until_nodes(pair.client, "alpha", "beta", within_s=400)
        yield pair


def test_node_joins_the_new_head_by_itself_and_its_training_goes_on(pair):
    run = pair.on_beta("head-replaced", steps=600)
    pair.alpha.lehr("down", "--keep-runs")
    pair.up()
    until_nodes(pair.client, "alpha", "beta", within_s=400)
    pair.ends(run)
    assert run.attempt == 1
    assert pair.steps(run) == list(range(1, 601))


def test_run_on_both_machines_is_saved_by_lehr_down_and_resumes_after_lehr_up(pair):
    run = pair.on_both("server-down", steps=100)
    printed = pair.alpha.lehr("down").stdout
    assert "1 training was saved" in printed
    # What it prints starts the server again: the other machine finds it.
    _, again = printed.split("To start it again as it was:\n")
    assert f"LEHR_RUNS={SHARED}/runs" in again
    assert f"--public-url {pair.client.server}" in again
    pair.up()
    pair.ends(run)
    assert any("it was stopped by lehr down, and saved" in event.message for event in run.events())
    assert run.attempt == 2
    assert {gpu.node for gpu in run.detail.placement} == {"alpha", "beta"}
    assert pair.steps(run) == list(range(1, 101))


def test_node_that_leaves_saves_and_its_training_continues_elsewhere(pair):
    run = pair.on_beta("moves", steps=400)
    left = pair.beta.lehr_json("node", "leave")
    assert (left["saved"], left["killed"]) == (1, 0)
    pair.ends(run)
    assert run.attempt == 2
    assert [gpu.node for gpu in run.detail.placement] == ["alpha"]
    assert pair.steps(run) == list(range(1, 401))
    assert not pair.beta.run("pgrep", "-f", "raylet", check=False).stdout
    [node] = [node for node in pair.client.cluster().nodes if node.name == "beta"]
    assert node.left
    # On a busy machine the command may give up waiting; the keeper goes on.
    pair.join("--gpus", "4", check=False)
    until_nodes(pair.client, "alpha", "beta", within_s=400)
    assert all(node.excluded is None for node in pair.client.cluster().nodes)
