"""The containers of deploy/compose.yaml as machines of namespaces, from what the files say.

Commands, environments, volumes and names come from compose.yaml; the user, the folders and the
entrypoint from the Dockerfiles, whose own commands make them. Not Docker itself: no image is built.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from lehr import Client
from lehr.errors import LehrError
from lehr_testing.faults.hosts import SHARED, hosts, until_nodes
from lehr_testing.paths import ROOT
from lehr_testing.server import TRAINER
from lehr_testing.specs import run as run_spec
from lehr_testing.specs import text_corpus
from lehr_testing.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(1200)]
COMPOSE = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
TOKEN = "t" * 43
BIN = Path(sys.executable).parent


def instructions(dockerfile):
    text = re.sub(r"^\s*#.*\n", "", dockerfile.read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip()]


class Container:
    """A machine that is one service; ``volumes``: a folder that both see, for those they share."""

    def __init__(self, host, name, names):
        self.host, self.name = host, name
        self.service = COMPOSE["services"][name]
        self.image = instructions(ROOT / self.service["build"]["dockerfile"])
        lines = "".join(f"{address} {other}\n" for other, address in names.items())
        # A machine's /etc of its own, for the image's user and for the names of the network.
        host.run(
            *("bash", "-ec"),
            "cp -a /etc /mnt/etc && mount --bind /mnt/etc /etc\n"
            # As in the base image, nobody has the number of the image's user.
            "sed -i '/:x:1000:/d' /etc/passwd /etc/group && sed -i '/^lehr:/d' /etc/shadow\n"
            f"printf '127.0.0.1 localhost\\n%b' {shlex.quote(lines)} > /etc/hosts\n"
            "mount -t tmpfs none /var/lib && mkdir -p /mnt/opt && mount -t tmpfs none /home\n",
        )
        [run] = self.of_last_stage("RUN")
        host.run("bash", "-ec", run[run.index("useradd") :])
        for volume in self.service["volumes"]:
            source, target = volume.split(":")
            shared = sum(volume in one["volumes"] for one in COMPOSE["services"].values()) > 1
            folder = f"{SHARED}/{source}" if shared else f"/mnt/volumes/{source}"
            # A new volume gets the owner and the mode of the image's folder.
            host.run(
                *("bash", "-ec"),
                f"[ -e {folder} ] || {{ mkdir -p {folder} && chown --reference={target} {folder} "
                f"&& chmod --reference={target} {folder}; }}; mount --bind {folder} {target}",
            )

    def of_last_stage(self, word):
        last = max(n for n, line in enumerate(self.image) if line.startswith("FROM "))
        return [
            line.removeprefix(f"{word} ")
            for line in self.image[last:]
            if line.startswith(f"{word} ")
        ]

    def command(self):
        words = [word.replace("$$", "$") for word in self.service["command"]]
        for entry in self.of_last_stage("ENTRYPOINT"):
            words = [*json.loads(entry), *words]
        return words

    def environment(self):
        found = {}
        for line in self.of_last_stage("ENV"):
            found |= dict(word.split("=", 1) for word in shlex.split(line))
        for name, value in self.service["environment"].items():
            found[name] = re.sub(r"\$\{LEHR_TOKEN:\?.*\}", TOKEN, value)
        # The programs of this working tree stand for those in the image's /opt/venv.
        assert found["PATH"].startswith("/opt/venv/bin:")
        return found | {"PATH": f"{BIN}:/usr/sbin:/usr/bin:/sbin:/bin"}

    def start(self, *more, env=None):
        """Start it as its user; `restart: unless-stopped` starts it again when it has ended."""
        assert self.service["restart"] == "unless-stopped"
        [user] = self.of_last_stage("USER")
        as_user = [
            "setpriv",
            f"--reuid={user}",
            f"--regid={user}",
            "--clear-groups",
            "--no-new-privs",
        ]
        command = shlex.join([*as_user, *self.command(), *more])
        again = f"while :; do {command}; sleep 2; done"
        self.host.run(
            *("bash", "-c"),
            f"setsid bash -c {shlex.quote(again)} > /tmp/container.log 2>&1 &",
            env={**self.environment(), **(env or {}), "HOME": f"/home/{user}"},
        )

    def log(self):
        return self.host.run("tail", "-n", "25", "/tmp/container.log", check=False).stdout


@pytest.fixture(scope="module")
def composition(tmp_path_factory):
    shared = tmp_path_factory.mktemp("shared")
    shared.chmod(0o755)
    text_corpus(shared / "corpus")
    with hosts("server", "gpus", shared=shared) as machines:
        names = {host.name: host.address for host in machines}
        server, gpus = (Container(host, host.name, names) for host in machines)
        trainer = {"LEHR_TRAINER_MODULE": str(TRAINER)}
        server.start(env=trainer)
        client = Client(f"http://{server.host.address}:5347", TOKEN)

        def answers():
            with contextlib.suppress(LehrError):
                return bool(client.health())
            return False

        try:
            until(answers, within_s=200, what="the server to answer", every_s=1)
            # Logical ones in place of the machine's GPUs.
            gpus.start("--gpus", "2")
            until_nodes(client, "gpus", "server", within_s=400)
        except AssertionError:
            print(server.log(), gpus.log())
            raise
        yield server, gpus, client, shared


def test_run_trains_in_the_composition_as_the_user_of_the_image(composition):
    server, _, client, shared = composition
    run = client.submit(run_spec(f"{SHARED}/corpus", "composed", steps=6))
    run.wait(timeout_s=400)
    assert run.state == "completed", run.reason
    assert {gpu.node for gpu in run.detail.placement} == {"gpus"}
    uid = int(server.host.run("id", "-u", "lehr").stdout)
    assert uid == 1000
    made = [shared / "runs" / run.id, *(shared / "runs" / run.id).rglob("*")]
    assert {path.stat().st_uid for path in made} == {uid}
    token = server.host.run("stat", "-c", "%u %a", "/var/lib/lehr/token").stdout.split()
    assert token == [str(uid), "600"]


def test_server_that_is_killed_comes_back_with_its_runs_and_its_node(composition):
    server, _, client, _ = composition
    before = {run.id for run in client.runs()}
    server.host.run("pkill", "-9", "-u", "lehr", "-f", "lehr_api --home")

    def restarted():
        with contextlib.suppress(LehrError):
            return {run.id for run in client.runs()} == before
        return False

    until(restarted, within_s=200, what="the server to be back", every_s=1)
    until_nodes(client, "gpus", "server", within_s=400)
    run = client.submit(run_spec(f"{SHARED}/corpus", "after", steps=6))
    run.wait(timeout_s=400)
    assert run.state == "completed", run.reason


def test_new_volume_of_the_home_is_closed_to_others(composition):
    server, *_ = composition
    found = server.host.run("stat", "-c", "%U %a", "/var/lib/lehr").stdout.split()
    assert found == ["lehr", "700"]
