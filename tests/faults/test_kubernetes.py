"""The pods of deploy/kubernetes/ as machines of namespaces, from what the files say.

Commands, options, environments, folders and names come from the files; a machine stands for each
pod, and the server's two containers have mounts of their own. Not Kubernetes itself: images, the
operator, probes by the kubelet and the storage are not proven here.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path

import pytest

from lehr import Client
from lehr.errors import LehrError
from lehr_testing.fakes import paced
from lehr_testing.faults.hosts import SHARED, hosts, until_nodes
from lehr_testing.kubernetes import container, environment, ray_start, shell_script
from lehr_testing.server import TRAINER
from lehr_testing.specs import run as run_spec
from lehr_testing.specs import text_corpus
from lehr_testing.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(1200)]
SECRETS = {"lehr-ray": "ray-token-" + "r" * 40, "lehr-server": "s" * 48}
BIN = Path(sys.executable).parent
GPUS = "--num-gpus=2"
"""In place of the eight of the file: logical ones, on few cores."""


class Pod:
    def __init__(self, host, which, names):
        self.host, self.which = host, which
        lines = "".join(f"{address} {name}\n" for name, address in names.items())
        # Its own mounts for the names of the cluster, and the folders of its volumes.
        self.host.run(
            *("bash", "-ec"),
            f"printf '127.0.0.1 localhost\\n%b' {shlex.quote(lines)} > /mnt/hosts\n"
            "mount --bind /mnt/hosts /etc/hosts\n"
            f"mkdir -p /runs && mount --bind {SHARED} /runs\n",
        )

    def start(self, name, command, *, env=None, mounts=""):
        """Start a container: a process with mounts of its own. ``mounts``: made in it first."""
        variables = {
            **environment(container(self.which, name), SECRETS),
            **(env or {}),
            "PATH": f"{BIN}:/usr/sbin:/usr/bin:/sbin:/bin",
        }
        line = shlex.quote(f"{mounts}\nexec {shlex.join(command)}")
        # The kubelet starts a container again that has ended: on a busy machine, Ray gives up at its
        # start.
        again = f"while :; do unshare --mount bash -ec {line}; sleep 2; done"
        self.host.run(
            *("bash", "-c"),
            f"setsid bash -c {shlex.quote(again)} > /tmp/{name}.log 2>&1 &",
            env=variables,
        )

    def log(self, name):
        return self.host.run("tail", "-n", "20", f"/tmp/{name}.log", check=False).stdout

    def execute(self, name, *command):
        """Run a command in a container, as `kubectl exec` and preStop do."""
        variables = environment(container(self.which, name), SECRETS)
        path = f"{BIN}:/usr/sbin:/usr/bin:/sbin:/bin"
        return self.host.run(*command, env={**variables, "PATH": path})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    shared = tmp_path_factory.mktemp("shared")
    text_corpus(shared / "corpus")
    with hosts("head", "worker-a", "worker-b", "server", shared=shared) as machines:
        head, first, second, server = machines
        names = {"lehr-ray-head-svc": head.address, "lehr": server.address}
        names |= {host.name: host.address for host in machines}
        pods = {
            "head": Pod(head, "head", names),
            "a": Pod(first, "worker", names),
            "b": Pod(second, "worker", names),
            "server": Pod(server, "server", names),
        }
        pods["head"].start("ray", ray_start("head"))
        sockets = (
            "mkdir -p /mnt/ray && mount -t tmpfs none /tmp && mkdir /tmp/ray "
            "&& mount --bind /mnt/ray /tmp/ray"
        )
        pods["server"].start("raylet", ray_start("raylet"), mounts=sockets)
        script = shell_script(container("server", "server"))
        server.run("mkdir", "-p", "/mnt/home", "/var/lib/lehr")
        folders = f"mount --bind /mnt/home /var/lib/lehr; {sockets}"
        trainer = {"LEHR_TRAINER_MODULE": str(TRAINER)}
        pods["server"].start("server", ["sh", "-ec", script], env=trainer, mounts=folders)
        words = [GPUS if word.startswith("--num-gpus=") else word for word in ray_start("worker")]
        for name in ("a", "b"):
            host = pods[name].host
            host.run(
                "bash", "-c", "mkdir -p /var/lib/lehr /data && mount -t tmpfs none /var/lib/lehr"
            )
            pods[name].start("ray", words, env={"LEHR_LOGICAL_GPUS": "1"})
        client = Client(f"http://{server.address}:5347", SECRETS["lehr-server"])

        def answers():
            with contextlib.suppress(LehrError):
                return bool(client.health())
            return False

        try:
            until(answers, within_s=200, what="the server to answer", every_s=1)
            until_nodes(client, "worker-a", "worker-b", within_s=400)
        except AssertionError:
            print({name: (pod.log("ray"), pod.log("server")) for name, pod in pods.items()})
            raise
        yield pods, client


def spec(name, *, steps, gpus=1):
    return run_spec("/runs/corpus", name, gpus=gpus, steps=steps)


def test_run_trains_on_a_pod_of_the_file(cluster):
    _, client = cluster
    run = client.submit(spec("first", steps=6))
    run.wait(timeout_s=400)
    assert run.state == "completed", run.reason
    assert {gpu.node for gpu in run.detail.placement} <= {"worker-a", "worker-b"}


def test_probe_of_a_raylet_is_answered_without_a_token(cluster):
    pods, _ = cluster
    probe = container("worker", "ray")["readinessProbe"]["httpGet"]
    url = f"http://{pods['a'].host.address}:{probe['port']}{probe['path']}"
    script = f"import urllib.request as u; print(u.urlopen({url!r}, timeout=20).status)"
    assert pods["server"].host.run(sys.executable, "-c", script).stdout.strip() == "200"


def test_pre_stop_has_trainings_save_and_continue_on_the_other_pod(cluster):
    pods, client = cluster
    client.exclude_node("worker-b")
    run = client.submit(paced(spec("drained", steps=60), 0.3))
    until(lambda: (run.refresh().step or 0) >= 6, within_s=300, what="the training")
    assert {gpu.node for gpu in run.detail.placement} == {"worker-a"}
    client.readmit_node("worker-b")
    stop = container("worker", "ray")["lifecycle"]["preStop"]["exec"]["command"]
    pods["a"].execute("ray", *stop)
    problems = {node.name: node.problems for node in client.cluster().nodes}
    assert any("leaving" in one for one in problems["worker-a"])
    run.wait(timeout_s=400)
    assert run.state == "completed", run.reason
    assert {gpu.node for gpu in run.detail.placement} == {"worker-b"}
    assert sorted(set(run.history("train/loss")["step"])) == list(range(1, 61))
    # It was drained once, and its node was never lost.
    assert run.view.attempt == 2
