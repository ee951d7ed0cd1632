"""``lehr node join``: check this machine, and make it a node of a server's cluster."""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lehr.base import home
from lehr.cluster import ray_ports
from lehr.cluster.ray_ports import DEFAULT_BASE, Ports
from lehr.errors import Conflict, LehrError, UserError
from lehr.faces.cli import doctor
from lehr.faces.cli.checks import check_driver
from lehr.faces.cli.output import JsonOption, console, escaped, notes, print_json

if TYPE_CHECKING:
    from lehr.faces.join.record import JoinRecord

TOKEN_VARIABLE = "LEHR_JOIN_TOKEN"  # noqa: S105 - the name of a variable
JOIN_S = 180.0
GONE_S = 60.0
"""Seconds in which a server learns that a Ray node has ended, also without a word from it."""


def join(
    server: Annotated[
        str, typer.Argument(metavar="URL", envvar="LEHR_SERVER", help="Public URL of the server.")
    ],
    name: Annotated[
        str | None, typer.Option(help="Name of the node. Default: the host's name.")
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            help="Number of GPUs to offer. Default: all. Required on a machine without GPUs: the "
            "number of logical GPUs.",
        ),
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(
            help="Folder of runs on this machine: the shared folder, if the cluster has one. "
            "Default: the server's path if it is shared, else a local folder."
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of token shards on this machine.")
    ] = None,
    interface: Annotated[
        str | None,
        typer.Option(
            help="Network interface for Ray, NCCL and gloo. Default: that of the route to the "
            "server."
        ),
    ] = None,
    base_port: Annotated[
        int | None,
        typer.Option(
            min=1024,
            max=65_000,
            help="First of 121 ports of Ray, outside the kernel's range of free ports and 20000 to "
            "29999. Default: 6379.",
        ),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(
            envvar="LEHR_CA", help="Certificate authority of the server's TLS, a PEM file."
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Until when the machine is available, e.g. 2026-12-01T18:00. Its trainings move "
            "on five minutes before. Change it: lehr node until.",
        ),
    ] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Run in this process, for containers.")
    ] = False,
    systemd: Annotated[
        bool,
        typer.Option(
            "--systemd",
            help="Write a systemd unit instead of starting a process in the background.",
        ),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only check this machine; change nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check this machine, and make it a node of a server's cluster. It rejoins after failures.

    The token for joining is read from LEHR_JOIN_TOKEN; `lehr node token` prints it.

    In a job of Slurm, --until is the job's end. With --foreground, SIGTERM drains the node, and
    it leaves.

    JSON: {node, joined, unit, checks: [{name, status, found, fix}]}.
    """
    from lehr.faces.join import daemon, keeper, machine, record, slurm
    from lehr.faces.join.checks import check_machine

    end = None if until is None else moment(until, "--until")
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token:
        raise UserError(
            f"{TOKEN_VARIABLE} is not set: a token is required to join.",
            hint="On the server's machine, lehr node token prints the command with a token.",
        )
    where = home.home() if check else home.ensure_home()
    home.check_home(where)
    _refuse_server(where)
    job = slurm.job()
    if job is not None and end is None:
        end = slurm.end_of(job)
    if job is not None and base_port is None:
        base_port = ray_ports.reserve()  # Another job may start on this machine just now.
        name = name or slurm.node_name(base_port)
    wanted, view, found = machine.prepare(
        where,
        server,
        token,
        name=name,
        gpus=gpus,
        runs_dir=_absolute(runs),
        data_dir=_absolute(data),
        interface=interface,
        base_port=base_port,
        ca_file=_file(ca),
        check=check,
    )
    machine.refuse_changes(where, wanted)
    found = machine.without_own_ports(where, found)
    checks = [*check_machine(found, view, Ports(base_port or DEFAULT_BASE)), *check_driver()]
    bad = doctor.bad(checks)
    unit_path: Path | None = None
    joined = False
    if not as_json:
        doctor.show(checks)
    if not bad and not check:
        machine.make_runs_folder(wanted)
        keeper.ask(wanted, readmit=True, until=end)
        record.write(where, replace(wanted, leaves=foreground and job is not None))
        if foreground:
            daemon.run_in_foreground(where)
        if systemd:
            unit_path = _write_unit(where, wanted, quiet=as_json)
        else:
            with notes().status("Joining"):
                if daemon.stop(where):
                    daemon.wait_until_gone(lambda: _is_member(wanted), GONE_S)
                daemon.start(where)
                daemon.wait_until_joined(where, lambda: _is_member(wanted), JOIN_S)
            joined = True
    if as_json:
        print_json(
            {
                "node": wanted.node,
                "joined": joined,
                "unit": None if unit_path is None else str(unit_path),
                "checks": [asdict(one) for one in checks],
            }
        )
    elif bad:
        console().print(f"\n{len(bad)} to fix before this machine can join.")
    elif check:
        console().print("\nThis machine can join: run the same command without --check.")
    elif joined:
        console().print(f"\n{escaped(wanted.node)} has joined {escaped(wanted.server_url)}.")
    if bad:
        raise typer.Exit(1)


def _is_member(wanted: JoinRecord) -> bool:
    """Return whether the server has the node's agent."""
    from lehr.faces.join.keeper import ask

    try:
        return ask(wanted).is_member
    except LehrError:
        return False


def _write_unit(where: Path, wanted: JoinRecord, *, quiet: bool) -> Path:
    from lehr.faces.join.daemon import unit

    made = unit(where, wanted.node)
    made.path.parent.mkdir(parents=True, exist_ok=True)
    made.path.write_text(made.text)
    if not quiet:
        out = console()
        out.print(f"\nThe unit is {made.path}. Start it:")
        for line in made.enable:
            out.print(f"  {line}", markup=False)
    return made.path


def _refuse_server(where: Path) -> None:
    from lehr.faces.cli.daemon import running_server

    server = running_server(where)
    if server is not None:
        raise Conflict(
            f"{where} has a running server, {server.url}: its machine is a node already.",
            hint="To make it a node of another server: lehr down, or another LEHR_HOME.",
        )


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.expanduser().absolute()


def _file(path: Path | None) -> Path | None:
    if path is not None and not path.expanduser().is_file():
        raise UserError(f"--ca {path}: no such file.")
    return _absolute(path)


def moment(text: str, name: str) -> float:
    """Return seconds since the epoch of a time as people write it. ``name``: of the option."""
    try:
        return dt.datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):
        raise UserError(
            f"{name} {text[:100]!r} is not a time.",
            hint="Write 2026-12-01T18:00 (local time), or 2026-12-01T18:00+00:00.",
        ) from None
