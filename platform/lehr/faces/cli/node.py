"""``lehr node``: the nodes of a cluster, and this machine as one of them."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from lehr.base import home, signed_tokens
from lehr.errors import Conflict, LehrError, UserError
from lehr.faces.cli.connect import connect
from lehr.faces.cli.join import TOKEN_VARIABLE, join, moment
from lehr.faces.cli.output import (
    JsonOption,
    console,
    escaped,
    minute,
    notes,
    print_fitting,
    print_json,
    print_result,
    table,
    warn,
)

app = typer.Typer(rich_markup_mode=None)
group = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="List the nodes of a cluster, set their end, add, exclude or readmit them.",
)
app.add_typer(group, name="node")

NodeArgument = Annotated[
    str, typer.Argument(metavar="NODE", help="Name of the node, as lehr status shows it.")
]


@group.command("ls")
def ls(as_json: JsonOption = False) -> None:
    """List nodes, their GPUs, which are in use, and the idle GPU-hours. JSON: ClusterView."""
    client = connect()
    view = client.cluster()
    if as_json:
        print_json(view)
        return
    rows = table("node", "GPUs", "busy", "state", right=("GPUs", "busy"))
    for node in view.nodes:
        busy = sum(gpu.busy for gpu in node.gpus)
        state = escaped(node.no_runs or "in use")
        if node.until is not None and node.ending is None:
            state += f", available until {minute(node.until)}"
        rows.add_row(escaped(node.name), str(len(node.gpus)), str(busy), state)
    print_fitting(rows, fold="state")
    past = client.cluster_history()
    sums = {one.kind: one.gpu_hours for one in past.idle if one.by == "all" and one.kind != "down"}
    if past.gpu_hours >= 0.05:  # A server that has just started has seen nothing.
        why = ", ".join(f"{hours:.1f} {kind}" for kind, hours in sums.items() if hours >= 0.05)
        idle = f"idle {sum(sums.values()):.1f} of {past.gpu_hours:.1f} GPU-hours in 24 h"
        console().print(escaped(f"{idle}: {why}" if why else idle))


@group.command("exclude")
def exclude(
    node: NodeArgument,
    reason: Annotated[str, typer.Option(help="Reason to show beside the node.")] = ("by the user"),
    as_json: JsonOption = False,
) -> None:
    """Place no new runs on a node. Its running runs continue. JSON: ClusterView."""
    view = connect().exclude_node(node, reason)
    print_result(
        view,
        f"{escaped(node)} is excluded: no new runs. Its running runs continue.",
        as_json=as_json,
    )


@group.command("readmit")
def readmit(node: NodeArgument, as_json: JsonOption = False) -> None:
    """Place runs on a node again, and clear its failure count. JSON: ClusterView."""
    view = connect().readmit_node(node)
    print_result(view, f"{escaped(node)} is readmitted: it can get new runs.", as_json=as_json)


@group.command("until")
def until(
    node: NodeArgument,
    end: Annotated[
        str,
        typer.Argument(
            metavar="TIME",
            help="Local time, e.g. 2026-12-01T18:00; may have a UTC offset. A dash (-): no end.",
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Set until when a node is available, as a rented one is. JSON: ClusterView.

    Five minutes before, its trainings save, are queued again, and resume on other nodes. No run
    starts on it that would lose work.
    """
    at = None if end == "-" else moment(end, "TIME")
    view = connect().set_node_until(node, at)
    text = "has no end" if at is None else f"is available until {minute(at)}"
    print_result(view, f"{escaped(node)} {text}.", as_json=as_json)


@group.command("token")
def token(as_json: JsonOption = False) -> None:
    """Print the command that adds another machine.

    Run it there: that machine joins this server's cluster. The command is valid for a day. If an
    authority of your own signed the server's certificate, copy its file to that machine first.

    JSON: {command, expires_at, ca_file}; ca_file: the file to copy, or null.
    """
    info, value, expires_at = invitation(signed_tokens.JOIN_LIFETIME_S)
    # Not an argument: `ps` shows those to every user of the machine.
    command = f"{TOKEN_VARIABLE}={value} lehr node join {info.url}"
    if info.ca_file is not None:
        command += f" --ca {shlex.quote(Path(info.ca_file).name)}"
    if as_json:
        print_json({"command": command, "expires_at": expires_at, "ca_file": info.ca_file})
        return
    console().print(command, markup=False, soft_wrap=True)
    if info.ca_file is not None:
        notes().print(
            f"Before that, copy {info.ca_file} to that machine, into the folder in which you run "
            "the command.",
            markup=False,
            soft_wrap=True,
        )
    elif info.url.startswith("https:"):
        notes().print(
            "If an authority of your own signed the certificate, copy its certificate to that "
            "machine, and add: --ca FILE",
            soft_wrap=True,
        )


def invitation(lifetime_s: float) -> tuple[home.ServerInfo, str, float]:
    """Return this home's server, a token for joining it, and when that expires.

    Raises:
        LehrError: no server runs here, or other machines cannot reach it.
    """
    where = home.home()
    info, secret = home.read_server(where), home.read_token(where)
    if info is None or secret is None:
        raise LehrError(
            f"no Lehr server is running for {where}.", hint="Run this on the server's machine."
        )
    if home.is_loopback(urlsplit(info.url).hostname or ""):
        raise Conflict(
            f"other machines cannot reach this server: its URL is {info.url}.",
            hint="lehr down, then lehr up --host 0.0.0.0 --public-url http://ADDRESS:5347 (docs/"
            "cluster.md)",
        )
    expires_at = time.time() + lifetime_s
    return info, signed_tokens.join_token(secret, expires_at), expires_at


group.command("join")(join)


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
    from lehr.faces.cli.shutdown import show_ends
    from lehr.faces.join import daemon, drain, record

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
        print_json({"node": node, **result.trainings.counts, "runs": list(result.runs)})
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
        hint=f"To place no more runs on its GPUs: lehr node exclude {node}\n"
        "  To save its trainings, and to stop the server: lehr down",
    )
