"""The keeper: runs this machine's Ray node, and joins again when it ends or the head is another.

``python -P -m lehr.faces.join.keeper HOME``, as a daemon or a systemd service. When it ends, it
ends the Ray node; trainings continue, and are adopted when the machine joins again. In a job of
Slurm the node is drained before, and leaves: all processes of the job are about to be killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lehr.base import home as homes
from lehr.base import own_logs, procfs
from lehr.cluster import ray_ports, ray_process
from lehr.errors import LehrError, Unauthorized, UserError
from lehr.faces.join import drain
from lehr.faces.join import record as records
from lehr.faces.join.record import JoinRecord
from lehr.node import facts, gpu_inventory, runs_folder
from lehr.node.torchrun import TERM_GRACE_S
from lehr_trainer.files import write_atomically

if TYPE_CHECKING:
    from lehr.cluster.ray_process import RayProcess
    from lehr.schemas.cluster import JoinView

log = logging.getLogger("lehr.keeper")

POLL_S = 2.0
"""Pause between looks at the Ray node and its head."""
HEAD_CHECK_S = 10.0
"""Pause between questions whether the head is still the same."""
HEAD_REFUSES = 3
"""Refused connections in a row after which the head counts as ended. A head that does not answer at
all may be behind a cut network: then Ray decides, after a minute.
"""
LOCK_RETRY_S = 1.0
"""Pause between two tries to take the lock of a keeper that has ended."""
NOT_JOINED = 2
"""Exit code of a keeper whose machine has not joined, or has left: no reason to start it again."""
REJOIN_BACKOFF_S = (1.0, 30.0)
"""Pause before the next try to join, doubled after each failure."""


class NodeKeeper:
    def __init__(self, home_dir: Path, record: JoinRecord, stopping: threading.Event) -> None:
        self.home_dir = home_dir
        self.record = record
        self.stopping = stopping

    def run(self) -> None:
        """Keep the machine joined until ``stopping`` is set.

        Raises:
            Unauthorized: the server has another token now: this machine must join again.
        """
        pause = REJOIN_BACKOFF_S[0]
        while not self.stopping.is_set():
            try:
                view = ask(self.record)
                self._check_versions(view)
                process = self._found_or_started(view)
            except Unauthorized:
                raise
            except (LehrError, OSError) as error:  # The disk may be full for a while.
                log.warning("cannot join: %s", error)
                self.stopping.wait(pause)
                pause = min(pause * 2, REJOIN_BACKOFF_S[1])
                continue
            pause = REJOIN_BACKOFF_S[0]
            log.info("node %s has joined %s", self.record.node, view.ray_address)
            why = self._watch(process, view)
            if self.record.leaves and self.stopping.is_set():
                break  # Its runs need the node while they are drained.
            log.info("Ray node ends: %s", why)
            ray_process.end(process)
        if self.record.leaves:
            self._leave()

    def _leave(self) -> None:
        """Have the trainings save and move on, then end the node. Nothing joins again."""
        log.info("draining")
        result = drain.drain(self.home_dir, self.record, wait=False, timeout_s=TERM_GRACE_S)
        informed = result.unreachable or "informed"
        log.info("trainings: %s; the server: %s", result.trainings.counts, informed)
        process = records.read_ray(self.home_dir)
        if process is not None:
            ray_process.end(process)
        records.forget(self.home_dir)

    def _check_versions(self, view: JoinView) -> None:
        here = facts.versions()
        for name in ("python", "ray"):
            if view.versions.get(name) != here.get(name):
                raise UserError(
                    f"this machine has {name} {here.get(name)}, the server {view.versions[name]}: "
                    "install the same version on both"
                )

    def _found_or_started(self, view: JoinView) -> RayProcess:
        """Return the Ray node of an earlier keeper if it belongs to this head, else a new one."""
        process = records.read_ray(self.home_dir)
        if process is not None:
            same = (process.address, process.versions) == (view.ray_address, _versions_of(view))
            if same and process.running():
                return process
            ray_process.end(process)
        return self._start(view)

    def _start(self, view: JoinView) -> RayProcess:
        temporary = homes.ray_dir(self.home_dir / "join")
        ray_process.prepare_folder(temporary)
        ports = ray_ports.Ports(self.record.base_port or ray_ports.DEFAULT_BASE)
        host = view.ray_address.rpartition(":")[0]
        node_ip = own_address(self.record.interface, host)
        command = ray_process.command(
            f"--address={view.ray_address}",
            node_ip=node_ip,
            gpus=self.record.gpus,
            node=self.record.node,
            temporary=temporary,
            ports=ports.options(),
        )
        return ray_process.start(
            command,
            environment=self.environment(view, node_ip),
            address=view.ray_address,
            gpus=self.record.gpus,
            base_port=ports.base,
            versions=_versions_of(view),
            temporary=temporary,
            log_path=homes.logs_dir(self.home_dir) / "ray-node.log",
            record=lambda process: records.write_ray(self.home_dir, process),
            stopping=self.stopping.is_set,
        )

    def environment(self, view: JoinView, node_ip: str) -> dict[str, str]:
        """Return the environment of the Ray node, which its agent and its trainings inherit."""
        node_folder = homes.node_dir(self.home_dir)
        # By Slurm's variables a program (Lightning, submitit) would take this for a job of its own.
        inherited = {n: v for n, v in os.environ.items() if not n.startswith(("LEHR_", "SLURM"))}
        variables = ray_process.environment(
            inherited, mark=ray_process.new_mark(), node_folder=node_folder
        )
        if view.ray_token is not None:
            token = records.folder(self.home_dir) / "ray-token"
            write_atomically(token, view.ray_token, mode=0o600)
            variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        for name, value in (
            (runs_folder.RUNS, self.record.runs_dir),
            (runs_folder.DATA, self.record.data_dir),
            ("SSL_CERT_FILE", self.record.ca_file),
            (gpu_inventory.LOGICAL_VARIABLE, "1" if self.record.logical else None),
        ):
            if value is not None:
                variables[name] = value
        return variables | ray_ports.network_environment(self.record.interface, node_ip, variables)

    def _watch(self, process: RayProcess, view: JoinView) -> str:
        """Return why the Ray node is to end."""
        host, _, port = view.ray_address.rpartition(":")
        refused = 0
        ask_at = time.monotonic() + HEAD_CHECK_S
        while not self.stopping.wait(POLL_S):
            ray_process.reap([process.pid])
            if not process.running():
                return "it has ended by itself"
            refused = refused + 1 if refuses(host, int(port)) else 0
            if refused >= HEAD_REFUSES:
                return f"the head at {view.ray_address} has ended"
            if time.monotonic() < ask_at:
                continue
            ask_at = time.monotonic() + HEAD_CHECK_S
            with contextlib.suppress(OSError):
                own_logs.rotate(homes.logs_dir(self.home_dir))
            # While the server cannot be reached, nothing is known: the Ray node stays.
            with contextlib.suppress(LehrError):
                now = ask(self.record)
                if (now.ray_address, now.ray_session) != (view.ray_address, view.ray_session):
                    return "the server has another head"
        return "it is stopped"


def ask(record: JoinRecord, *, readmit: bool = False, until: float | None = None) -> JoinView:
    """Return what the machine needs to join, from the server.

    ``readmit``: have the server give it work again if it had left. ``until``: until when it is
    available, in seconds since the epoch.
    """
    from lehr.faces.client import Client

    record.trust_authority()
    with Client(record.server_url, record.node_token) as client:
        return client.join_cluster(record.node, readmit=readmit, until=until)


def refuses(host: str, port: int) -> bool:
    """Return whether the machine answers, and nothing listens on the port."""
    try:
        socket.create_connection((host, port), timeout=2.0).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def own_address(interface: str | None, head_host: str) -> str:
    """Return the address of this machine in the cluster.

    Raises:
        UserError: there is no such interface, it has no address, or only this machine can reach it.
    """
    if interface is None:
        return ray_ports.route_address(head_host)
    known = ray_ports.addresses()
    address = known.get(interface)
    if address is not None and not homes.is_loopback(address):
        return address
    others = [f"{n} ({a})" for n, a in sorted(known.items()) if not homes.is_loopback(a)]
    raise UserError(
        f"--interface {interface}: no such network interface with an IPv4 address."
        if address is None
        else f"--interface {interface}: other machines cannot reach {address}.",
        hint=f"This machine has: {', '.join(others) or 'none that others can reach'}.",
    )


def _versions_of(view: JoinView) -> str:
    """Return what a Ray node of this cluster is recorded with: it ends with its head."""
    return f"{ray_process.versions()}, head {view.ray_session}"


@contextlib.contextmanager
def only_one(home_dir: Path, stopping: threading.Event) -> Iterator[bool]:
    """Hold the home's lock for keepers; wait while another one holds it.

    A systemd unit starts its keeper again although ``lehr node join`` has started one in the
    background: two would end each other's Ray node. Yields False if it is stopped while it waits.
    """
    with (records.folder(home_dir) / "keeper.lock").open("a") as file:
        waits = False
        while not stopping.is_set():
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not waits:
                    log.info("another keeper runs in %s: this one waits for its end", home_dir)
                waits = True
                stopping.wait(LOCK_RETRY_S)
                continue
            yield True
            return
        yield False


def main(arguments: list[str] | None = None) -> int:
    [argument] = sys.argv[1:] if arguments is None else arguments
    home_dir = Path(argument)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    with only_one(home_dir, stopping) as alone:
        return _keep(home_dir, stopping) if alone else 0


def _keep(home_dir: Path, stopping: threading.Event) -> int:
    """Return the exit code of the keeper."""
    record = records.read(home_dir)
    if record is None:
        print(f"lehr: {home_dir} has not joined a server: lehr node join URL", file=sys.stderr)
        return NOT_JOINED
    procfs.write_json(
        str(records.folder(home_dir) / "keeper.json"),
        {
            "pid": os.getpid(),
            "start_time": procfs.start_time(os.getpid()),
            "boot_id": procfs.boot_id(),
        },
    )
    try:
        NodeKeeper(home_dir, record, stopping).run()
    except LehrError as error:
        log.error("%s", error)  # noqa: TRY400 - a message for people, without a traceback
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
