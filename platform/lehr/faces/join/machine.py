"""Look at this machine before it joins, and choose what was not given."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from pathlib import Path

from lehr.base import filesystems, home
from lehr.cluster import ray_ports
from lehr.cluster.ray_ports import DEFAULT_BASE, Ports
from lehr.errors import Conflict, RayStarting, UserError
from lehr.faces.client import Client
from lehr.faces.join import daemon, record
from lehr.faces.join.checks import Machine, head_error
from lehr.faces.join.keeper import own_address
from lehr.faces.join.record import JoinRecord, own_name
from lehr.node import facts, gpu_inventory
from lehr.node.runs_folder import folder_id, known_id
from lehr.schemas.cluster import NODE_NAME, JoinView

HEAD_S = 60.0
RETRY_S = 1.0
_LONGEST_NAME = 63


def ask(client: Client, name: str, *, check: bool = False) -> tuple[JoinView, tuple[float, float]]:
    """Return the server's answer to a machine that joins, and the times around its answer.

    A server that was just started has no Ray yet: the request is repeated, for at most ``HEAD_S``.

    Raises:
        Conflict: other machines cannot join this server.
        RayStarting: Ray is not up after ``HEAD_S``.
    """
    deadline = time.monotonic() + HEAD_S
    while True:
        asked_at = time.time()
        try:
            return client.join_cluster(name, check=check), (asked_at, time.time())
        except RayStarting:
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)


def prepare(
    home_dir: Path,
    server_url: str,
    token: str,
    *,
    name: str | None,
    gpus: int | None,
    runs_dir: Path | None,
    data_dir: Path | None,
    interface: str | None,
    base_port: int | None,
    ca_file: Path | None,
    check: bool,
) -> tuple[JoinRecord, JoinView, Machine]:
    """Return how the machine would join, what the server answered, and what was found here.

    Of the options of ``lehr node join``, None: choose. ``check``: a dry run, which receives no
    secrets.

    Raises:
        LehrError: the server does not answer, or rejects the token.
        UserError: an option is wrong.
    """
    name = name or own_name()
    if not re.fullmatch(NODE_NAME, name) or len(name) > _LONGEST_NAME:
        raise UserError(
            f"--name {name!r} is not a node's name.",
            hint="Use letters, digits, dots, dashes and underscores, at most 63: --name gpu-2",
        )
    if ca_file is not None:
        os.environ["SSL_CERT_FILE"] = str(ca_file)
    with Client(server_url, token) as client:
        view, between = ask(client, name, check=check)
    real = gpu_inventory.visible_gpus()
    if real and gpus is not None and gpus > real:
        raise UserError(
            f"--gpus {gpus}: this machine has {real} GPU{'s' if real > 1 else ''}.",
            hint="Omit --gpus to use all.",
        )
    ports = Ports(base_port or DEFAULT_BASE)
    shared = view.runs_folder is not None and known_id(Path(view.runs_dir)) == view.runs_folder
    runs_dir = runs_dir or (Path(view.runs_dir) if shared else home.runs_dir(home_dir))
    data_dir = data_dir or home.data_dir(home_dir)
    record = JoinRecord(
        server_url=server_url.rstrip("/"),
        node=name,
        node_token=view.node_token,
        gpus=(real if gpus is None else gpus) if real else gpus or 0,
        logical=not real,
        runs_dir=str(runs_dir),
        data_dir=str(data_dir),
        interface=interface,
        base_port=ports.base,
        ca_file=None if ca_file is None else str(ca_file),
    )
    return record, view, _look(home_dir, record, view, ports, between)


def _look(
    home_dir: Path, record: JoinRecord, view: JoinView, ports: Ports, between: tuple[float, float]
) -> Machine:
    runs, data = Path(record.runs_dir or ""), Path(record.data_dir or "")
    host = view.ray_address.rpartition(":")[0]
    return Machine(
        versions=facts.versions(),
        gpus=record.gpus,
        logical=record.logical,
        has_driver=gpu_inventory.has_driver(),
        address=own_address(record.interface, host),
        ports_taken=ports.taken(head=False),
        head_error=head_error(view.ray_address),
        # The server read its clock at some moment between the two.
        clock_offset_s=min(max(view.time, between[0]), between[1]) - view.time,
        home=home_dir,
        home_kind=filesystems.kind_of(home_dir) or "",
        runs_dir=runs,
        runs_folder=known_id(runs),
        given_ports=ray_ports.given_by_kernel(),
        free_bytes={path: facts.free_bytes(path) for path in dict.fromkeys((runs, data))},
    )


def without_own_ports(home_dir: Path, machine: Machine) -> Machine:
    """Return the machine as if its ports were free, if its own Ray node uses them.

    The keeper of that node may have been killed; the next one adopts the node.
    """
    return replace(machine, ports_taken=()) if is_running(home_dir) else machine


def is_running(home_dir: Path) -> bool:
    """Return whether this machine has a keeper, or the Ray node of an earlier one."""
    process = record.read_ray(home_dir)
    return daemon.keeper_pid(home_dir) is not None or (process is not None and process.running())


def refuse_changes(home_dir: Path, wanted: JoinRecord) -> None:
    """Raise Conflict if this machine is in the cluster, and its trainings may use what changes."""
    before = record.read(home_dir)
    if before is None or not is_running(home_dir):
        return
    changes = record.changes(before, wanted)
    if changes:
        raise Conflict(
            f"this machine is in the cluster of {before.server_url}, and would change: "
            f"{', '.join(changes)}.",
            hint="To change that: lehr node leave, then join.",
        )


def make_runs_folder(wanted: JoinRecord) -> None:
    """Make the folder of runs, and draw its identity.

    Raises:
        UserError: the folder cannot be used.
    """
    folder = Path(wanted.runs_dir or "")
    if folder_id(folder) is None:
        raise UserError(
            f"the folder of runs, {folder}, cannot be read and written.",
            hint="Name a folder of this machine, or the shared one as it is mounted here: --runs "
            "DIR",
        )
