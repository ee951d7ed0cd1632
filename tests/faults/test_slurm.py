"""Jobs of a real Slurm whose nodes join: their ends, cancellations and preemption.

``alpha`` has the server and slurmctld, ``beta`` and ``gamma`` are nodes of Slurm alone.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lehr_testing.fakes import paced
from lehr_testing.faults.hosts import SHARED, Trainings, hosts, nodes_in_use, until_nodes
from lehr_testing.server import TRAINER
from lehr_testing.specs import text_corpus
from lehr_testing.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(1800)]
FREEZER = Path("/sys/fs/cgroup/freezer")
CONF = f"{SHARED}/slurm/slurm.conf"
UP = {
    "LEHR_RUNS": f"{SHARED}/runs",
    "LEHR_DATA": f"{SHARED}/data",
    "LEHR_TRAINER_MODULE": str(TRAINER),
    "SLURM_CONF": CONF,
}
_CONF = """\
ClusterName=test
SlurmctldHost=alpha({alpha})
SlurmUser=root
AuthInfo=socket=/tmp/munge/socket,cred_expire=5
StateSaveLocation=/tmp/slurmctld
SlurmdSpoolDir=/tmp/slurmd
SlurmctldPidFile=/tmp/slurmctld.pid
SlurmdPidFile=/tmp/slurmd.pid
ProctrackType=proctrack/cgroup
TaskPlugin=task/none
SelectType=select/linear
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=beta NodeAddr={beta} CPUs=1
NodeName=gamma NodeAddr={gamma} CPUs=1
PartitionName=low Nodes=beta,gamma Default=YES PriorityTier=1
PartitionName=high Nodes=beta,gamma PriorityTier=2
"""
_MUNGED = f"""
mkdir -p -m 711 /tmp/munge
munged --force --key-file={SHARED}/slurm/key --socket=/tmp/munge/socket --pid-file=/tmp/munge/pid \
    --log-file=/tmp/munge/log --seed-file=/tmp/munge/seed
"""
# A network namespace has a /sys of its own, without cgroups.
_CGROUP = f"""
mount -t tmpfs none {FREEZER.parent} && mkdir {FREEZER} /tmp/slurmd
mount -t cgroup -o freezer none {FREEZER}
"""


class Slurm(Trainings):
    """A cluster of Slurm, and a server of Lehr beside its controller."""

    def __init__(self, alpha):
        self.alpha = alpha
        alpha.up(gpus=4, env=UP)
        self.client = alpha.client()
        until_nodes(self.client, "alpha", within_s=400)

    def run(self, *command):
        return self.alpha.run(*command, env=UP).stdout.strip()

    def up(self, time, *options, nodes=1):
        """Submit a job by `lehr slurm up`; return its id. ``options``: of sbatch."""
        words = ("--json", "--logical-gpus=2", f"--nodes={nodes}", f"--time={time}", "--", *options)
        log = f"--output={SHARED}/slurm/%j.out"
        return json.loads(self.alpha.lehr("slurm", "up", *words, log, env=UP).stdout)["job"]

    def until_state(self, job, state, *, within_s=120):
        words = ("squeue", "--noheader", "--states=all", "--jobs", job, "-o", "%T")
        until(lambda: self.run(*words) == state, within_s=within_s, what=f"job {job}: {state}")

    def left(self):
        return [node.name for node in self.client.cluster().nodes if node.left]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    if missing := [name for name in ("slurmctld", "slurmd", "munged") if not shutil.which(name)]:
        pytest.skip(f"Slurm is not installed: no {', '.join(missing)}; apt install slurm-wlm")
    if not FREEZER.is_dir():
        pytest.skip(f"Slurm's proctrack/cgroup is set up here for cgroup v1: no {FREEZER}")
    shared = tmp_path_factory.mktemp("shared")
    text_corpus(shared / "corpus")
    (shared / "slurm").mkdir()
    (shared / "slurm" / "key").write_bytes(b"k" * 128)
    (shared / "slurm" / "key").chmod(0o600)
    with hosts("alpha", "beta", "gamma", shared=shared) as (alpha, *nodes):
        addresses = {host.name: host.address for host in (alpha, *nodes)}
        (shared / "slurm" / "slurm.conf").write_text(_CONF.format(**addresses))
        (shared / "slurm" / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        for host in (alpha, *nodes):
            host.run("bash", "-c", _MUNGED)
            if host is not alpha:
                host.run("bash", "-c", _CGROUP)
            host.run("slurmctld" if host is alpha else "slurmd", "-f", CONF)
        made = Slurm(alpha)
        until(lambda: "idle" in made.run("sinfo", "-h"), within_s=60, what="nodes of Slurm")
        yield made


@pytest.fixture(autouse=True)
def nothing_left(slurm):
    """Only nodes of Slurm train; no job is left after a test."""
    yield
    slurm.run("scancel", "--user=root")
    until(lambda: not slurm.run("squeue", "-h"), within_s=120, what="the jobs to end")
    slurm.client.readmit_node("alpha")


def test_run_that_outlives_its_job_ends_equal_on_the_node_of_the_next_job(slurm):
    steps = 600
    plain = slurm.ends(slurm.client.submit(slurm.spec("undisturbed", steps=steps)))
    slurm.client.exclude_node("alpha")
    run = slurm.client.submit(paced(slurm.spec("outlives", steps=steps), 0.2))
    # Its training is stopped after two minutes: five minutes before the end.
    first = slurm.up("7m", "--nodelist=beta")
    slurm.trains(run)
    assert [gpu.node for gpu in run.detail.placement] == ["beta"]
    until(lambda: run.refresh().state == "queued", within_s=120, what="its node's end")
    slurm.up("30m", "--nodelist=gamma")
    slurm.ends(run)
    assert run.attempt == 2
    assert [gpu.node for gpu in run.detail.placement] == ["gamma"]
    assert any("node beta is available until" in event.message for event in run.events())
    for metric in ("data/digest", "train/loss"):
        mine, undisturbed = run.history(metric), plain.history(metric)
        assert list(mine["step"]) == list(undisturbed["step"]) == list(range(1, steps + 1))
        assert list(mine[metric]) == list(undisturbed[metric])
    # Slurm's signal comes 120 to 180 s before the job's end.
    slurm.until_state(first, "COMPLETED", within_s=300)
    assert slurm.left() == ["beta"]


def test_cancelled_job_loses_no_run_and_starts_none_twice(slurm):
    slurm.client.exclude_node("alpha")
    small = slurm.client.submit(paced(slurm.spec("small", steps=200), 0.2))
    never = slurm.up("1h", "--hold", nodes=2)
    early = slurm.up("1h", nodes=2)
    slurm.until_state(early, "RUNNING")
    slurm.run("scancel", early)
    slurm.until_state(early, "CANCELLED")
    assert nodes_in_use(slurm.client) == ["alpha"]
    assert (small.refresh().state, small.attempt) == ("queued", 0)
    joined = slurm.up("1h", nodes=2)
    slurm.trains(small, at_least=1)
    until_nodes(slurm.client, "alpha", "beta", "gamma")
    wide = slurm.client.submit(paced(slurm.spec("wide", steps=200, gpus=2, nodes=2), 0.2))
    slurm.trains(wide, at_least=1)
    slurm.run("scancel", joined)
    until(lambda: slurm.left() == ["beta", "gamma"], within_s=60, what="both to leave")
    slurm.run("scontrol", "release", never)
    for run in (small, wide):
        slurm.ends(run)
        assert run.attempt == 2
        assert any("and saved" in event.message for event in run.events())
        assert slurm.steps(run) == list(range(1, 201))


def test_node_of_a_preempted_job_saves_leaves_and_comes_back_with_it(slurm):
    slurm.client.exclude_node("alpha")
    run = slurm.client.submit(paced(slurm.spec("preempted", steps=200), 0.2))
    job = slurm.up("1h", "--requeue")
    slurm.trains(run)
    slurm.run("sbatch", "--partition=high", "--nodes=2", "--wrap=sleep 20")
    until(lambda: run.refresh().state == "queued", within_s=120, what="it to be queued again")
    assert any("and saved" in event.message for event in run.events())
    slurm.ends(run)
    slurm.until_state(job, "RUNNING")
    assert run.attempt == 2
