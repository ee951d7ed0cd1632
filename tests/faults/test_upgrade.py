"""An upgrade of Lehr under living trainings, and the way back, as docs/upgrade.md describes them.

Two machines of namespaces, each with an installation of its own. The next release has another version
number, one revision of lehr.db more, and another version of the index. The tests run in this order.
"""

from __future__ import annotations

import json

import pytest

from lehr_testing.fakes import paced
from lehr_testing.faults.hosts import SHARED, Host, hosts, join_line, until_nodes
from lehr_testing.releases import NEW_REVISION, Installation, next_release, this_release
from lehr_testing.server import TRAINER, rank_pids
from lehr_testing.specs import run as run_spec
from lehr_testing.specs import text_corpus
from lehr_testing.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(1800)]
STEPS = 400
UP = {"LEHR_RUNS": f"{SHARED}/runs", "LEHR_TRAINER_MODULE": str(TRAINER)}
REVISION = (
    "import sqlite3; print(sqlite3.connect('file:/root/.lehr/lehr.db?mode=ro', uri=True)"
    ".execute('SELECT version_num FROM alembic_version').fetchone()[0])"
)


class Machines:
    def __init__(self, alpha: Host, beta: Host, shared, wheels):
        self.alpha, self.beta, self.shared, self.wheels = alpha, beta, shared, wheels
        self.installed = {
            host: Installation(host, f"{SHARED}/{host.name}") for host in (alpha, beta)
        }
        for installation in self.installed.values():
            installation.install(wheels["old"])
        self.up()
        self.client = alpha.client()
        until_nodes(self.client, "alpha", within_s=400)
        self.join()

    def up(self):
        try:
            self.alpha.up(gpus=2, env=UP)
        except AssertionError:
            # On a busy machine the first start of an installation takes longer than `lehr up` waits.
            self.alpha.up(gpus=2, env=UP)

    def join(self):
        token, line = join_line(self.alpha)
        # On a busy machine the command may give up waiting; the keeper goes on.
        self.beta.lehr(*line, "--gpus", "2", check=False, env=token)
        until_nodes(self.client, "alpha", "beta", within_s=400)

    def version(self, host):
        return host.lehr("--version").stdout.split()[-1]

    def revision(self):
        return self.alpha.run(self.installed[self.alpha].python, "-c", REVISION).stdout.strip()

    def server_version(self):
        return json.loads(self.alpha.run("cat", "/root/.lehr/server.json").stdout)["version"]

    def start(self, name, *, node=None, go="go", **resources):
        """Start a run that trains slowly until ``go``; wait until it trains, if on a ``node``."""
        spec = run_spec(f"{SHARED}/corpus", name, steps=STEPS)
        spec["resources"] |= resources
        spec = paced(spec, 2.0)
        spec["env"]["PACE_UNTIL"] = f"{SHARED}/{go}"
        run = self.client.submit(spec)
        if node is not None:
            until(lambda: (run.refresh().step or 0) >= 6, within_s=300, what=f"{name} to train")
            assert node in {gpu.node for gpu in run.detail.placement}
        return run

    def on(self, node, name, **options):
        """As ``start``, with the other node closed meanwhile."""
        [other] = {"alpha", "beta"} - {node}
        self.client.exclude_node(other)
        run = self.start(name, node=node, **options)
        self.client.readmit_node(other)
        return run

    def go(self, name="go"):
        (self.shared / name).touch()

    def ended_file(self, run):
        return self.shared / "runs" / run.id / "attempt-1" / "exit.json"

    def complete_once(self, run):
        """Whether the run ends well in its one attempt, with every step on record, byte by byte."""
        run.wait(timeout_s=400)
        assert run.state == "completed", run.reason
        assert [attempt.number for attempt in run.refresh().detail.attempts] == [1]
        folder = self.shared / "runs" / run.id
        assert [path.name for path in folder.glob("attempt-*")] == ["attempt-1"]
        assert [int(s) for s in run.history("train/loss")["step"]] == list(range(1, STEPS + 1))
        kept = self.alpha.run("cat", f"/root/.lehr/replica/{run.id}-1/events.jsonl").stdout
        assert kept == (folder / "attempt-1/events.jsonl").read_text()


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    shared = tmp_path_factory.mktemp("shared")
    text_corpus(shared / "corpus")
    built = {
        "old": this_release(tmp_path_factory.mktemp("old")),
        "new": next_release(tmp_path_factory.mktemp("new"), "0.2.0"),
    }
    wheels = {}
    for which, wheel in built.items():
        (shared / wheel.name).write_bytes(wheel.read_bytes())
        wheels[which] = f"{SHARED}/{wheel.name}"
    with hosts("alpha", "beta", shared=shared) as (alpha, beta):
        yield Machines(alpha, beta, shared, wheels)


def test_server_is_upgraded_while_trainings_run(machines):
    alpha, client = machines.alpha, machines.client
    ends = machines.on("alpha", "ends-meanwhile", go="go-at-once")
    lives = machines.on("beta", "lives")
    gang = machines.start("gang", node="beta", gpus=2, nodes=2)
    waits = machines.start("waits")
    processes = {run.id: rank_pids(f"{run.id}-1") for run in (lives, gang)}
    assert [len(pids) for pids in processes.values()] == [1, 2]

    alpha.lehr("db", "backup", "/root/before")
    assert "trainings were left running" in alpha.lehr("down", "--keep-runs").stdout
    machines.installed[alpha].uninstall()
    machines.go("go-at-once")
    until(machines.ended_file(ends).exists, within_s=300, what="a training to end without any Lehr")
    machines.installed[alpha].install(machines.wheels["new"])
    machines.up()

    assert machines.version(alpha) == "0.2.0"
    assert machines.server_version() == "0.2.0"
    assert machines.revision() == NEW_REVISION
    assert alpha.lehr("db", "check").returncode == 0
    until_nodes(client, "alpha", "beta", within_s=400)
    machines.complete_once(ends)
    for run in (lives, gang):
        assert rank_pids(f"{run.id}-1") == processes[run.id]
        assert (run.refresh().state, run.attempt) == ("running", 1)
    machines.go()
    for run in (lives, gang, waits):
        machines.complete_once(run)


def test_older_version_is_back_after_a_restore(machines):
    alpha = machines.alpha
    alpha.lehr("down")
    machines.installed[alpha].install(machines.wheels["old"])
    refused = alpha.lehr("up", check=False)
    assert refused.returncode != 0
    assert "was written by a newer version of Lehr" in " ".join(refused.stderr.split())
    assert machines.revision() == NEW_REVISION

    alpha.lehr("db", "restore", "/root/before", "--replace")
    machines.up()
    alpha.lehr("db", "release")
    assert machines.server_version() == "0.1.0"
    names = {"ends-meanwhile", "lives", "gang", "waits"}
    assert {run.name for run in machines.client.runs()} == names
    for run in machines.client.runs():
        run.wait(timeout_s=400)
        assert run.state == "completed", f"{run.name}: {run.reason}"
        # Of a run that trained on, the record lacks what came between backup and last checkpoint.
        steps = [int(s) for s in run.history("train/loss")["step"]]
        assert steps == sorted(set(steps))
        assert steps[:6] == list(range(1, 7))
