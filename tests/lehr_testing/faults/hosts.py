"""Machines of a cluster: each with its own network, host name, processes, home and /tmp.

They see the same installed packages, and nothing else of each other except by the network and by
folders that a test shares on purpose.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lehr import Client
from lehr_testing.specs import run as run_spec
from lehr_testing.waiting import until

_INIT = """
set -e
hostname "$1"
mount -t tmpfs none /mnt && mkdir /mnt/python /mnt/shared
mount --bind "$2" /mnt/python
[ -z "$3" ] || mount --rbind "$3" /mnt/shared
mount -t tmpfs none /root && mkdir -p "$2" && mount --bind /mnt/python "$2"
: > /mnt/resolv && mount --bind /mnt/resolv /etc/resolv.conf
mount -t tmpfs none /tmp && mount -t tmpfs none /var/tmp && chmod 1777 /tmp /var/tmp
echo up
set +e
while :; do sleep 600 & wait $!; done
"""
SHARED = "/mnt/shared"
"""Where a host sees the folder that it shares with others."""


class Switch:
    """A virtual switch; this machine has the address ``here`` on it."""

    def __init__(self) -> None:
        self.tag = secrets.token_hex(3)
        self.device = f"lb{self.tag}"
        self.net = f"10.{128 + secrets.randbelow(64)}.{secrets.randbelow(256)}"
        self.here = f"{self.net}.1"
        self.ports = 1

    def make(self) -> None:
        _ip("link", "add", self.device, "type", "bridge")
        _ip("addr", "add", f"{self.here}/24", "dev", self.device)
        _ip("link", "set", self.device, "up")

    def remove(self) -> None:
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            _ip("link", "del", self.device)


class Host:
    """A machine on a switch. ``shared``: a folder that it sees as ``SHARED``."""

    def __init__(self, name: str, switch: Switch, *, shared: Path | None = None) -> None:
        switch.ports += 1
        self.name = name
        self.switch = switch
        self.shared = shared
        self.address = f"{switch.net}.{switch.ports}"
        self.namespace = f"lh{switch.tag}{switch.ports}"
        self.cable = f"lc{switch.tag}{switch.ports}"
        self.init: subprocess.Popen[str] | None = None
        self.program = str(Path(sys.executable).parent / "lehr")

    def boot(self) -> None:
        _ip("netns", "add", self.namespace)
        _ip(
            *("link", "add", self.cable, "type", "veth"),
            *("peer", "name", "eth0", "netns", self.namespace),
        )
        _ip("link", "set", self.cable, "master", self.switch.device, "up")
        _ip("-n", self.namespace, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", self.namespace, "link", "set", device, "up")
        _ip("-n", self.namespace, "route", "add", "default", "via", self.switch.here)
        self.init = subprocess.Popen(
            [
                *("ip", "netns", "exec", self.namespace),
                *("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child"),
                *("--mount-proc", "bash", "-c", _INIT, "init"),
                *(self.name, sys.base_prefix, str(self.shared or "")),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        words = self.init.stdout.readline()
        if words != "up\n":
            pytest.skip(f"no machine can be made of namespaces here: {words.strip()}")

    def power_off(self) -> None:
        """Everything on it dies at once; its files are lost."""
        if self.init is not None:
            self.init.kill()
            self.init.wait()
            self.init.stdout.close()
            self.init = None
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            _ip("link", "del", self.cable)
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            _ip("netns", "del", self.namespace)

    def cut(self) -> None:
        """Pull its cable: packets are dropped without an error."""
        _ip("link", "set", self.cable, "down")

    def heal(self) -> None:
        _ip("link", "set", self.cable, "up")

    def run(
        self, *command: str, check: bool = True, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on it, as its root user."""
        children = Path(f"/proc/{self.init.pid}/task/{self.init.pid}/children").read_text()
        [first] = children.split()
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("LEHR_", "RAY_"))}
        done = subprocess.run(
            ["nsenter", "--target", first, "--pid", "--mount", "--uts", "--net", *command],
            env={**clean, "HOME": "/root", "OMP_NUM_THREADS": "1", "COLUMNS": "200", **(env or {})},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            cwd="/",
        )
        if check and done.returncode != 0:
            raise AssertionError(
                f"{self.name}: {' '.join(command)}: exit {done.returncode}\n{done.stdout}\n"
                f"{done.stderr}\n{self.logs()}"
            )
        return done

    def lehr(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return self.run(self.program, *arguments, **options)

    def logs(self) -> str:
        script = "tail -n 15 /root/.lehr/logs/*.log 2>/dev/null"
        return self.run("bash", "-c", script, check=False).stdout

    def lehr_json(self, *arguments: str, **options: Any) -> Any:
        return json.loads(self.lehr(*arguments, "--json", **options).stdout)

    def up(self, *arguments: str, gpus: int, **options: Any) -> str:
        """Start the server for the whole network; return what it printed."""
        return self.lehr(
            *("up", "--gpus", str(gpus), "--host", "0.0.0.0", "--insecure"),
            *("--public-url", self.url, *arguments),
            **options,
        ).stdout

    @property
    def url(self) -> str:
        return f"http://{self.address}:5347"

    def client(self) -> Client:
        """Return a client of the server on it, from this machine, by the network."""
        return Client(self.url, token=self.run("cat", "/root/.lehr/token").stdout.strip())


class Trainings:
    """What tests do with runs whose corpus and folder the hosts share."""

    def spec(self, name, *, steps, gpus=1, nodes=1):
        spec = run_spec(f"{SHARED}/corpus", name, gpus=gpus, steps=steps)
        spec["resources"]["nodes"] = nodes
        return spec

    def trains(self, run, *, at_least=6):
        until(
            lambda: (run.refresh().step or 0) >= at_least, within_s=300, what=f"{run.name} to train"
        )

    def ends(self, run):
        run.wait(timeout_s=400)
        assert run.state == "completed", run.reason
        return run

    def steps(self, run):
        return [int(step) for step in run.history("train/loss")["step"]]


def join_line(server: Host) -> tuple[dict[str, str], list[str]]:
    """Return the command that `lehr node token` prints for other machines: its variables, and its
    words without `lehr`.
    """
    printed = server.lehr("node", "token").stdout
    [line] = [line.strip() for line in printed.splitlines() if "lehr node join" in line]
    variable, program, *words = line.split()
    assert program == "lehr"
    name, _, value = variable.partition("=")
    return {name: value}, words


def nodes_in_use(client: Client) -> list[str]:
    return sorted(node.name for node in client.cluster().nodes if node.alive and not node.problems)


def until_nodes(client: Client, *names: str, within_s: float = 180) -> None:
    until(
        lambda: nodes_in_use(client) == sorted(names),
        within_s=within_s,
        what=f"the nodes {', '.join(names)} to be in use",
        every_s=0.5,
    )


@contextlib.contextmanager
def hosts(*names: str, shared: Path | None = None) -> Iterator[list[Host]]:
    """Boot machines on one switch; skip the test where the kernel does not allow it."""
    if os.geteuid() != 0:
        pytest.skip("machines of namespaces need root")
    switch = Switch()
    made = [Host(name, switch, shared=shared) for name in names]
    try:
        try:
            switch.make()
            for host in made:
                host.boot()
        except (OSError, subprocess.CalledProcessError) as error:
            words = getattr(error, "stderr", None) or str(error)
            pytest.skip(f"no machine can be made of namespaces here: {words.strip()}")
        yield made
    finally:
        for host in made:
            host.power_off()
        switch.remove()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
