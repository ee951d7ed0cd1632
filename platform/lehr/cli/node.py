"""``lehr node``: join this machine to a server's cluster, and leave it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lehr import home
from lehr.cli import check_list
from lehr.cli.cluster import moment
from lehr.cli.join_command import TOKEN_VARIABLE, join_command
from lehr.cli.output import JsonOption, console, escaped, notes, print_json, warn
from lehr.errors import Conflict, LehrError, UserError

if TYPE_CHECKING:
    from lehr.joining.record import JoinRecord

app = typer.Typer(rich_markup_mode=None)
group = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Join this machine to a server's cluster, or leave it.",
)
app.add_typer(group, name="node")
JOIN_S = 180.0
GONE_S = 60.0
"""Seconds in which a server learns that a Ray node has ended, also without a word from it."""


@group.command("token")
def token(as_json: JsonOption = False) -> None:
    """Print the command that adds another machine.

    Run it there: that machine joins this server's cluster. The command is valid for a day. If an
    authority of your own signed the server's certificate, copy its file to that machine first.

    JSON: {command, expires_at, ca_file}; ca_file: the file to copy, or null.
    """
    made = join_command(home.home())
    if as_json:
        ca_file = None if made.ca_file is None else str(made.ca_file)
        print_json({"command": made.text, "expires_at": made.expires_at, "ca_file": ca_file})
        return
    console().print(made.text, markup=False, soft_wrap=True)
    if made.about_ca is not None:
        notes().print(made.about_ca, markup=False, soft_wrap=True)


@group.command("join")
def join(
    server: Annotated[str, typer.Argument(metavar="URL", help="Public URL of the server.")],
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the node. Default: the host's name.")
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus",
            min=1,
            max=1024,
            help="Number of GPUs to offer. Default: all. Required on a machine without GPUs: the "
            "number of logical GPUs.",
        ),
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(
            "--runs",
            help="Folder of runs on this machine: the shared folder, if the cluster has one. "
            "Default: the server's path if it is shared, else a local folder.",
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder of token shards on this machine.")
    ] = None,
    interface: Annotated[
        str | None,
        typer.Option(
            "--interface",
            help="Network interface for Ray, NCCL and gloo. Default: that of the route to the "
            "server.",
        ),
    ] = None,
    base_port: Annotated[
        int | None,
        typer.Option(
            "--base-port",
            min=1024,
            max=65_000,
            help="First of 121 ports of Ray, outside the kernel's range of free ports and 20000 to "
            "29999. Default: 6379.",
        ),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(
            "--ca", envvar="LEHR_CA", help="Certificate authority of the server's TLS, a PEM file."
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="TIME",
            help="Until when the machine is available, e.g. 2026-12-01T18:00. Its trainings move "
            "on five minutes before. Change it: lehr cluster until.",
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

    JSON: {node, joined, unit, checks: [{name, status, found, fix}]}.
    """
    from lehr.cluster.ray_ports import DEFAULT_BASE, Ports
    from lehr.joining import daemon, keeper, machine, record
    from lehr.joining.checks import check_machine

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
    options = machine.JoinOptions(
        server,
        token,
        name,
        gpus,
        _absolute(runs),
        _absolute(data),
        interface,
        base_port,
        _file(ca),
        check,
    )
    wanted, view, found = machine.prepare(where, options)
    machine.refuse_changes(where, wanted)
    found = machine.without_own_ports(where, found)
    checks = check_machine(found, view, Ports(base_port or DEFAULT_BASE))
    bad = check_list.bad(checks)
    unit_path: Path | None = None
    joined = False
    if not as_json:
        check_list.show(checks)
    if not bad and not check:
        machine.make_runs_folder(wanted)
        keeper.ask(wanted, readmit=True, until=end)
        record.write(where, wanted)
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
                "checks": check_list.as_json(checks),
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


@group.command("leave")
def leave(
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", help="Let its trainings finish first. Default: they save and are requeued."
        ),
    ] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds to wait for its trainings.")
    ] = 600.0,
    as_json: JsonOption = False,
) -> None:
    """Drain this machine, and take it out of the cluster. Its trainings continue elsewhere.

    If KubeRay or `ray up` started the node, Ray is not stopped.

    JSON: {node, saved, unsaved, over, killed, runs: [names]}: numbers of trainings by how they
    ended, and their runs.
    """
    from lehr.cli.shutdown import show_ends
    from lehr.joining import daemon, drain, record

    where = home.home()
    joined = record.read(where)
    folders = drain.agents(where) if joined is None else []
    if joined is None and not folders:
        raise _nothing_to_leave(where)
    with notes().status("Draining"):
        if joined is None:
            result = drain.drain_agents(where, folders, wait=wait, timeout_s=timeout_s)
        else:
            result = drain.drain(where, joined, wait=wait, timeout_s=timeout_s)
    if joined is not None:
        daemon.retire(where)
    node = folders[-1].name if joined is None else joined.node
    if as_json:
        print_json(
            {
                "node": node,
                **result.trainings.counts,
                "runs": list(result.runs),
            }
        )
        return
    out = console()
    if joined is None:
        out.print(f"{escaped(node)} is drained. It gets no more runs until Ray starts again on it.")
    else:
        out.print(f"{escaped(node)} has left {escaped(joined.server_url)}.")
    show_ends(result.trainings.counts, then="The cluster")
    if result.runs:
        out.print(f"  stopped: {escaped(', '.join(result.runs))}")
    if result.unreachable is not None:
        warn(f"The server was not informed: {result.unreachable}")
    if joined is not None:
        out.print("To bring it back: lehr node token, on the server's machine, prints the command.")


def _nothing_to_leave(where: Path) -> UserError:
    """Return the error of a machine that is no joined one."""
    if not (where / "lehr.db").exists():
        return UserError(
            f"this machine has not joined a cluster ({where}).",
            hint="If it has joined from another home, name that: LEHR_HOME.",
        )
    node = next((path.parent.name for path in home.node_dir(where).glob("*/attempts")), "NODE")
    return Conflict(
        f"{where} is the home of a server, whose machine cannot leave its own cluster.",
        hint=f"To place no more runs on its GPUs: lehr cluster exclude {node}\n"
        "  To save its trainings, and to stop the server: lehr down",
    )


def _is_member(wanted: JoinRecord) -> bool:
    """Return whether the server has the node's agent."""
    from lehr.joining.keeper import ask

    try:
        return ask(wanted).is_member
    except LehrError:
        return False


def _write_unit(where: Path, wanted: JoinRecord, *, quiet: bool) -> Path:
    from lehr.joining import daemon
    from lehr.joining.unit import unit

    made = unit(
        daemon.command(where),
        where=where,
        node=wanted.node,
        environment=daemon.environment_of_shell(),
    )
    made.path.parent.mkdir(parents=True, exist_ok=True)
    made.path.write_text(made.text)
    if not quiet:
        out = console()
        out.print(f"\nThe unit is {made.path}. Start it:")
        for line in made.enable:
            out.print(f"  {line}", markup=False)
    return made.path


def _refuse_server(where: Path) -> None:
    from lehr.cli.daemon import running_server

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
