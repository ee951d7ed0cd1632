"""``lehr up`` and ``lehr down``: start and stop the server of this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from lehr import home
from lehr.cli import last_start
from lehr.cli.daemon import (
    RunningServer,
    ServerOptions,
    answers,
    one_at_a_time,
    run_in_foreground,
    running_server,
    start,
)
from lehr.cli.output import (
    JsonOption,
    after_ctrl_c,
    console,
    escaped,
    notes,
    own_name,
    print_json,
    warn,
)
from lehr.errors import Conflict, LehrError, UserError

if TYPE_CHECKING:
    from lehr.client import Client

app = typer.Typer(rich_markup_mode=None)


@app.command("up")
def up(
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus",
            min=0,
            max=1024,
            help="Number of GPUs to offer; logical GPUs on a machine without GPUs. 0: run only the "
            "server here. Default: all GPUs of this machine. Without GPUs: as many logical GPUs as "
            "last time, or 8.",
        ),
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option("--ray-address", help="Address of an existing Ray cluster to use.")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=1,
            max=65535,
            help="Port to listen on. Default: 5347, or the next free port.",
        ),
    ] = None,
    tls_certificate: Annotated[
        str | None,
        typer.Option("--tls-certificate", help="TLS certificate, a PEM file. Requires --tls-key."),
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option("--tls-key", help="Key of the TLS certificate, a PEM file.")
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(
            "--public-url",
            help="URL at which workers and browsers reach the server, if it differs from --host.",
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option("--allowed-host", help="Additional host name to accept. May be repeated."),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Allow addresses other than loopback without TLS."),
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
    earlier, runs = last_start.last_options(home.home()), last_start.runs_folder(home.home())
    server, started = bring_up(options)
    if as_json:
        print_json(
            {
                "url": server.url,
                "pid": server.process.pid,
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
    if started and (taken := port_taken(options, server)):
        out.print(f"  port       {taken}")
    if started and (shared := cores_shared(options, server.where)):
        out.print(f"  GPUs       {shared}", soft_wrap=True)
    if not home.is_loopback(urlsplit(server.url).hostname or ""):
        out.print("  add a node lehr node token prints the command for it")
    lehr = own_name()
    if (held := home.held(server.where)) is not None:
        warn(held)
    if started and (dropped := last_start.missing_options(options, earlier)):
        _warn_of_dropped(dropped, last_start.up_command(earlier, lehr), lehr)
    # Without the variable, it is among the dropped ones, or the question is about a running server.
    now = home.runs_dir(server.where)
    if os.environ.get("LEHR_RUNS") and runs not in {None, now}:
        _warn_of_other_runs(
            str(runs), str(now), last_start.up_command(earlier, lehr), started=started
        )
    out.print(f"  next       {lehr} status     {lehr} sweep FILE     {lehr} down", style="dim")


def _warn_of_dropped(dropped: list[str], command: str, lehr: str) -> None:
    warn(
        f"The last server had {', '.join(dropped)}; this one does not. Machines that joined may "
        "not reach it, and runs may miss their files. To start it as before: "
        f"{lehr} down --keep-runs, then"
    )
    console().print(f"    {command}", markup=False, soft_wrap=True)


def _warn_of_other_runs(before: str, now: str, command: str, *, started: bool) -> None:
    lehr = own_name()
    if not started:
        warn(
            f"The running server has its runs in {before}. LEHR_RUNS={now} counts only for a "
            f"server that starts: {lehr} down, then {lehr} up"
        )
        return
    warn(
        f"The last server had its runs in {before}; this one has them in {now}. Earlier runs may "
        f"miss their files. To start it as before: {lehr} down --keep-runs, then"
    )
    console().print(f"    {command}", markup=False, soft_wrap=True)


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
            f"the server, process {server.process.pid}, does not answer at {server.url}.",
            hint="Restart it: lehr down --keep-runs, then lehr up",
        )
    if not as_it_stands:
        _check_same(server, options)
    return server, False


def _check_same(server: RunningServer, options: ServerOptions) -> None:
    """Check that explicitly given options match the running server."""
    if server.options is None:
        return
    given, has = options, server.options
    gpus = has.gpus if has.gpus is not None or given.gpus is None else _gpus_by_default(server, has)
    differs = [
        f"{option} {now} (it has {before if before is not None else 'none'})"
        for option, now, before, default in (
            ("--gpus", given.gpus, gpus, None),
            ("--ray-address", given.ray_address, has.ray_address, None),
            ("--host", given.host, has.host, ServerOptions.host),
            ("--port", given.port, _port_of(server.url), None),
        )
        if now not in {default, before}
    ]
    if differs:
        raise Conflict(
            f"the server at {server.url} was started without {', '.join(differs)}.",
            hint="Stop it first: lehr down (trainings are saved; they continue after lehr up)",
        )


def _gpus_by_default(server: RunningServer, has: ServerOptions) -> int | None:
    """Return the GPUs that a server chose when it was started without --gpus."""
    from lehr.node.gpu_inventory import gpus_to_offer

    return gpus_to_offer(None, server.where) if has.ray_address is None else None


@app.command("down")
def down(
    keep_runs: Annotated[
        bool,
        typer.Option("--keep-runs", help="Leave runs training. The next `up` adopts them."),
    ] = False,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout",
            min=1,
            help="Seconds to wait for runs to save and for copies to finish.",
        ),
    ] = 120.0,
    as_json: JsonOption = False,
) -> None:
    """Stop only what `up` started: trainings of this machine (saved first), server, Ray.

    After the next `up`, stopped trainings resume from where they were saved. Runs that use only
    other machines continue, and the next `up` adopts them. If the server was started with options,
    the command that starts it again is printed. Pending copies of checkpoints are finished first,
    unless their storage fails. Unfinished copies are listed, and continue after the next `up`.

    JSON: {stopped: [names], runs: {saved, unsaved, over, killed, kept}, uncopied: {location:
    checkpoints}}. over: completed or failed meanwhile, or paused or cancelled before.
    """
    from lehr.cli.shutdown import show_ends, take_down

    with notes().status("Stopping"):
        report = take_down(home.home(), keep_runs=keep_runs, timeout_s=timeout_s)
    if not report.anything:
        _refuse_joined(home.home())
    trainings = report.trainings
    if as_json:
        print_json(
            {
                "stopped": report.stopped,
                "runs": {**trainings.counts, "kept": report.kept},
                "uncopied": {place: number for place, (number, _) in trainings.uncopied.items()},
            }
        )
        return
    out = console()
    if not report.anything:
        out.print("Lehr is not running.")
        return
    out.print(f"Stopped: {', '.join(report.stopped) or 'nothing'}.")
    show_ends(trainings.counts, then="The next lehr up")
    if report.kept:
        kept = "1 training was" if report.kept == 1 else f"{report.kept} trainings were"
        out.print(f"  {kept} left running, for the next lehr up to adopt.")
    for place, (number, why) in trainings.uncopied.items():
        points = "1 checkpoint is" if number == 1 else f"{number} checkpoints are"
        warn(
            f"{points} not copied to {place} yet{f' ({why})' if why else ''}: "
            "the next lehr up continues copying. Keep this machine's disk until then."
        )
    if started_with := last_start.last_options(home.home()):
        out.print("To start it again as it was:")
        again = last_start.up_command(started_with, own_name())
        out.print(f"    {again}", markup=False, soft_wrap=True)


def _refuse_joined(where: Path) -> None:
    """Say how a machine that has joined, and so runs no server, leaves the cluster."""
    from lehr.joining import record

    joined = record.read(where)
    if joined is not None:
        raise Conflict(
            f"this machine runs no server: it is node {joined.node} of {joined.server_url}.",
            hint="To take it out of the cluster: lehr node leave",
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


def port_taken(options: ServerOptions, server: RunningServer) -> str | None:
    """Explain why a new server does not use the default port."""
    port = _port_of(server.url)
    if options.port is not None or port in {None, home.DEFAULT_PORT} or _has_public_url(options):
        return None
    return f"{port} (another program uses {home.DEFAULT_PORT})"


def _has_public_url(options: ServerOptions) -> bool:
    return "--public-url" in options.more


def _port_of(url: str) -> int | None:
    return urlsplit(url).port


def _absolute(path: str | None) -> str | None:
    """Make a path absolute: the server runs in its home, so a relative path would break."""
    if path is None:
        return None
    found = Path(path).expanduser().absolute()
    if not found.is_file():
        raise UserError(f"{path}: no such file.")
    return str(found)
