"""What ``lehr node join`` checks before anything is started. Each finding has a fix."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lehr.base import filesystems
from lehr.cluster import ray_ports
from lehr.cluster.ray_ports import Ports
from lehr.control.queue_entries import CURE
from lehr.faces.check import Check, clock, space
from lehr.schemas.cluster import JoinView
from lehr_trainer.extras import install


@dataclass(frozen=True)
class Machine:
    """What this machine found out about itself."""

    versions: Mapping[str, str]
    gpus: int
    """Real GPUs, or the logical ones that were requested."""
    logical: bool
    has_driver: bool
    address: str
    ports_taken: Sequence[int]
    head_error: str | None
    """Why Ray's head cannot be reached; None if it can."""
    clock_offset_s: float
    home: Path
    home_kind: str
    """The type of the file system of Lehr's home."""
    runs_dir: Path
    runs_folder: str | None
    """The identity of the folder of runs; None if it cannot be used."""
    free_bytes: Mapping[Path, int | None]
    given_ports: frozenset[int] = frozenset()
    """Ports that the kernel gives to any connection."""


def check_machine(machine: Machine, view: JoinView, ports: Ports) -> list[Check]:
    """Return all findings. A ``bad`` one prevents joining."""
    return [
        *_versions(machine.versions, view.versions),
        *_name(machine, view),
        *_network(machine, view, ports),
        clock(machine.clock_offset_s),
        *_gpus(machine),
        *_disk(machine),
        *_folder(machine, view),
    ]


def _versions(here: Mapping[str, str], there: Mapping[str, str]) -> Iterator[Check]:
    for name, shown in (("python", "Python"), ("ray", "Ray")):
        if here.get(name) == there[name]:
            yield Check(shown, "ok", f"{here[name]}, as on the server")
        else:
            fix = (
                f"Install Python {there[name]} and a new virtual environment with lehr in it."
                if name == "python"
                else f"pip install 'ray=={there[name]}'"
            )
            yield Check(
                shown,
                "bad",
                f"{here.get(name, 'missing')} here, {there[name]} on the server: Ray requires the "
                "same version on all nodes",
                fix,
            )
    if "torch" not in here:
        yield Check("torch", "bad", "not installed", install("lehr[trainer,gpu]"))
    for name, shown in (("torch", "torch"), ("nccl", "NCCL")):
        mine, theirs = here.get(name), there.get(name)
        if theirs is None and mine is not None:
            yield Check(shown, "ok", mine)
        elif mine is not None and mine == theirs:
            yield Check(shown, "ok", f"{mine}, as on the other nodes")
        elif mine is not None:
            yield Check(
                shown,
                "bad",
                f"{mine} here, {theirs} on the other nodes: a run over both could hang, or give "
                "other losses",
                f"pip install 'torch=={there.get('torch', theirs)}'",
            )
    if here.get("lehr") != there["lehr"]:
        yield Check(
            "lehr",
            "bad",
            f"{here.get('lehr')} here, {there['lehr']} on the server",
            f"Install lehr {there['lehr']} here, from where the server's machine has it.",
        )


def _name(machine: Machine, view: JoinView) -> Iterator[Check]:
    if view.name_in_use is not None and view.name_in_use != machine.address:
        yield Check(
            "name",
            "bad",
            f"another machine of the cluster, {view.name_in_use}, is named {view.node}",
            "Choose another name: --name NAME",
        )
    else:
        yield Check("name", "ok", view.node)


def _network(machine: Machine, view: JoinView, ports: Ports) -> Iterator[Check]:
    if machine.head_error is not None:
        yield Check(
            "Ray's head",
            "bad",
            f"{view.ray_address} cannot be reached: {machine.head_error}",
            f"Open TCP ports {ports.base} to {ports.workers[-1]} and 20000 to 29999 between all "
            "nodes (docs/cluster.md).",
        )
    else:
        yield Check("Ray's head", "ok", f"{view.ray_address} can be reached")
    if machine.address.startswith("127."):
        yield Check(
            "address",
            "bad",
            f"{machine.address} is this machine's only on its own",
            "Name the network interface towards the server: --interface NAME",
        )
    else:
        yield Check("address", "ok", machine.address)
    if machine.ports_taken:
        yield Check(
            "ports",
            "bad",
            f"used by other programs: {', '.join(map(str, machine.ports_taken))}",
            f"Choose another first port: --base-port {ports.base + 200}",
        )
    elif set(ports.all) & set(ray_ports.RENDEZVOUS):
        yield Check(
            "ports",
            "bad",
            f"{ports.all[0]} to {ports.all[-1]} overlap 20000 to 29999, where the ranks of a run "
            "on several nodes meet",
            "Choose another first port: --base-port N",
        )
    elif set(ports.all) & machine.given_ports:
        # Ray fails only if one is in use when it starts.
        kept = f"{ports.all[0]}-{ports.all[-1]}"
        yield Check(
            "ports",
            "note",
            f"the kernel gives some of {ports.all[0]} to {ports.all[-1]} to any connection, e.g. "
            "of gloo and NCCL",
            f"Choose others: --base-port N. Or: sysctl -w net.ipv4.ip_local_reserved_ports={kept}",
        )
    else:
        yield Check("ports", "ok", f"{ports.base} to {ports.workers[-1]} are free")


def _gpus(machine: Machine) -> Iterator[Check]:
    what = "logical GPU" if machine.logical else "GPU"
    if machine.gpus:
        yield Check("GPUs", "ok", f"{machine.gpus} {what}{'s' if machine.gpus > 1 else ''}")
    elif machine.has_driver:
        yield Check(
            "GPUs",
            "bad",
            "a driver is installed, and lists no GPU",
            "Run nvidia-smi; reinstall the driver, or restart the machine.",
        )
    else:
        yield Check(
            "GPUs",
            "bad",
            "none, and no driver",
            "To train on this machine's CPU, declare logical GPUs: --gpus N",
        )


def _disk(machine: Machine) -> Iterator[Check]:
    if machine.home_kind in filesystems.NETWORK:
        yield Check(
            "file system",
            "bad",
            f"{machine.home} is on {machine.home_kind}, a network file system: a node's locks must "
            "be local",
            "Set LEHR_HOME to a local disk; --runs and --data may be shared storage.",
        )
    for path, free in machine.free_bytes.items():
        if free is None:
            yield Check("disk", "bad", f"{path} cannot be used", "Name another: --runs, --data")
        else:
            yield space(free, f"in {path}")


def _folder(machine: Machine, view: JoinView) -> Iterator[Check]:
    if machine.runs_folder is None:
        yield Check(
            "folder of runs",
            "bad",
            f"{machine.runs_dir} cannot be read and written",
            "Name a folder of this machine, or the shared one as it is mounted here: --runs DIR",
        )
    elif view.runs_folder is None or machine.runs_folder == view.runs_folder:
        shared = ", shared with the server" if view.runs_folder else ""
        yield Check("folder of runs", "ok", f"{machine.runs_dir}{shared}")
    else:
        yield Check(
            "folder of runs",
            "note",
            f"{machine.runs_dir} is this machine's own: a run resumes only where its checkpoint "
            "is, and cannot use several nodes",
            f"{CURE} Mounted elsewhere here: --runs DIR",
        )


def head_error(address: str) -> str | None:
    """Return why Ray's head cannot be reached from here."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5.0).close()
    except OSError as error:
        return str(error.strerror or error)
    return None
