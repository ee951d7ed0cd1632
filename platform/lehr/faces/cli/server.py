"""``lehr up``: start the server of this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from lehr.base import home
from lehr.errors import Conflict, LehrError, UserError
from lehr.faces.cli import last_start
from lehr.faces.cli.daemon import (
    RunningServer,
    answers,
    one_at_a_time,
    run_in_foreground,
    running_server,
    start,
)
from lehr.faces.cli.last_start import ServerOptions, Start
from lehr.faces.cli.output import (
    JsonOption,
    after_ctrl_c,
    console,
    escaped,
    notes,
    print_json,
    warn,
)

if TYPE_CHECKING:
    from lehr.faces.client import Client

app = typer.Typer(rich_markup_mode=None)


@app.command("up")
def up(
    gpus: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=1024,
            help="Number of GPUs to offer; logical GPUs on a machine without GPUs. 0: run only the "
            "server here. Default: all GPUs of this machine. Without GPUs: as many logical GPUs as "
            "last time, or 8.",
        ),
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="Address of an existing Ray cluster to use.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="Port to listen on. Default: 5347, or the next free port."
        ),
    ] = None,
    tls_certificate: Annotated[
        str | None, typer.Option(help="TLS certificate, a PEM file. Requires --tls-key.")
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(help="Key of the TLS certificate, a PEM file.")
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(
            help="URL at which workers and browsers reach the server, if it differs from --host."
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="Additional host name to accept. May be repeated.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow addresses other than loopback without TLS.")
    ] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Run in this process, for systemd and containers.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Start the server on this machine, or show its address if it is running. Adopts runs that an
    earlier server left training.

    JSON: {url, pid, started, home, token_file}.
    """
    more = []
    for option, value in (
        ("--tls-certificate", _absolute(tls_certificate)),
        ("--tls-key", _absolute(tls_key)),
        ("--public-url", public_url),
    ):
        more += [option, value] if value else []
    for name in allowed_host or []:
        more += ["--allowed-host", name]
    more += ["--insecure"] if insecure else []
    options = ServerOptions(
        host=host, port=port, gpus=gpus, ray_address=ray_address, more=tuple(more)
    )
    if foreground:
        run_in_foreground(home.home(), options)
    earlier = last_start.read(home.home())
    server, started = bring_up(options)
    if as_json:
        print_json(
            {
                "url": server.url,
                "pid": server.pid,
                "started": started,
                "home": str(server.where),
                "token_file": str(server.where / "token"),
            }
        )
        return
    out = console()
    out.print(f"Lehr {'is running' if started else 'is already running'}.")
    out.print(f"  dashboard  {server.url}   ({server.token_hint})")
    with server.client() as client:
        out.print(f"  log in     {one_time_login(client)}", soft_wrap=True)
    if started and (shared := cores_shared(options, server.where)):
        out.print(f"  GPUs       {shared}", soft_wrap=True)
    if not home.is_loopback(urlsplit(server.url).hostname or ""):
        out.print("  add a node lehr node token prints the command for it")
    if (held := home.held(server.where)) is not None:
        warn(held)
    if started and earlier is not None and server.start is not None:
        dropped = last_start.dropped_options(server.start, earlier)
        if dropped:
            warn(
                f"The last server had {', '.join(dropped)}; this one does not. Machines that "
                "joined may not reach it, and runs may miss their files. To start it as before: "
                "lehr down --keep-runs, then"
            )
            out.print(f"    {earlier.command}", markup=False, soft_wrap=True)
    out.print("  next       lehr status     lehr sweep FILE     lehr down", style="dim")


def one_time_login(client: Client) -> str:
    """Return the address that logs a browser in once, or where to get one."""
    try:
        return f"{client.login_link().url}   (works once, within 5 minutes)"
    except LehrError as error:
        return escaped(f"lehr admin login-link prints an address ({error.message})")


def bring_up(options: ServerOptions, *, as_it_stands: bool = False) -> tuple[RunningServer, bool]:
    """Return the server of this home, and whether this call started it.

    ``as_it_stands`` accepts a running server with other options.

    Raises:
        Conflict: a server with other options is running.
        LehrError: a running server does not answer, or a new one did not start.
    """
    where = home.ensure_home()
    with one_at_a_time(where):
        server = running_server(where)
        if server is None:
            with notes().status("Starting the server") as status:
                server = start(where, options, status.update)
            after_ctrl_c("The server goes on. Look at it: lehr status        Stop it: lehr down")
            return server, True
    if not answers(server.url):
        raise LehrError(
            f"the server, process {server.pid}, does not answer at {server.url}.",
            hint="Restart it: lehr down --keep-runs, then lehr up",
        )
    if not as_it_stands:
        _check_same(server, options)
    return server, False


def _check_same(server: RunningServer, options: ServerOptions) -> None:
    """Check that the running server has the options that are given."""
    if server.start is None:
        return
    given = Start(0, options, last_start.named_files(options)).non_default
    differs = [option for option in given if option not in server.start.non_default]
    if differs:
        raise Conflict(
            f"the server at {server.url} was started by {server.start.command}, without "
            f"{', '.join(last_start.shell_words(differs))}.",
            hint="Stop it first: lehr down (trainings are saved; they continue after lehr up)",
        )


def cores_shared(options: ServerOptions, where: Path) -> str | None:
    """Return what more logical GPUs than cores mean for trainings; None where there are not."""
    from lehr.node.gpu_inventory import gpus_to_offer, real_gpus

    gpus = gpus_to_offer(None, where) if options.gpus is None else options.gpus
    cores = len(os.sched_getaffinity(0))
    if options.ray_address is not None or gpus <= cores or real_gpus():
        return None
    return (
        f"{gpus} logical ones share {cores} CPU cores, so {gpus} trainings at a time are slow. "
        f"Fewer: lehr down, then lehr up --gpus {cores}"
    )


def _absolute(path: str | None) -> str | None:
    """Make a path absolute: the server runs in its home, so a relative path would break."""
    if path is None:
        return None
    found = Path(path).expanduser().absolute()
    if not found.is_file():
        raise UserError(f"{path}: no such file.")
    return str(found)
