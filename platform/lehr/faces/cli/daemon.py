"""The server as a daemon of this machine: start it, find it, stop it, explain why it failed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lehr.base import home, procfs
from lehr.errors import Conflict, LehrError, UserError
from lehr.faces.cli import last_start
from lehr.faces.cli.last_start import ServerOptions, Start
from lehr.faces.cli.output import after_ctrl_c, say
from lehr_trainer import extras

if TYPE_CHECKING:
    from lehr.faces.client import Client

NOTICE_S = 60.0
"""After this time a server that has not answered is said to be still starting."""
LIMIT_S = 3600.0
"""After this time it is stopped. Before, it may build its index again."""
_STILL_STARTING = "Starting the server: it is still reading its records. Ctrl-C stops it"
_LINES = 12
_FRAME = re.compile(r'Traceback \(|  File "|    |[ |]*\^')
_CHATTER = {"debug", "info"}
"""Levels of lines that explain no failure."""


@dataclass(frozen=True)
class RunningServer:
    """A server that answers, or whose process at least is alive."""

    where: Path
    url: str
    pid: int
    start: Start | None
    """How `lehr up` started it; None when something else did."""

    @property
    def token_hint(self) -> str:
        return f"log in with the token in {self.where / 'token'}"

    def client(self) -> Client:
        from lehr.faces.client import Client

        home.server_runs(self.where, self.url)  # Fails if its address may be another program's.
        return Client(self.url, home.read_token(self.where))


def running_server(where: Path) -> RunningServer | None:
    """Return the living server of this home, whoever started it."""
    info = home.read_server(where)
    if info is None or home.lock_holder(where) != info.pid:
        return None
    start = last_start.read(where)
    own = start is not None and start.pid == info.pid
    return RunningServer(where, info.url, info.pid, start if own else None)


def start(
    where: Path, options: ServerOptions, notify: Callable[[str], object] | None = None
) -> RunningServer:
    """Start the server as a daemon, and wait until it answers. If it does not, the record of the
    start before stays.

    ``notify`` is called with a message when that takes long.

    Raises:
        Conflict: another program uses the port.
        LehrError: it ended, or did not answer; with the last lines of its log.
    """
    _need_server()
    home.ensure_home(where)
    port = _port(options)
    log = home.logs_dir(where) / "server.out"
    log.parent.mkdir(parents=True, exist_ok=True)
    begin = log.stat().st_size if log.exists() else 0
    with log.open("ab") as output:
        child = subprocess.Popen(
            server_command(where, options, port),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in this terminal must not reach the server.
            cwd=where,
            env=_environment(where),
        )
    began = time.monotonic()
    earlier = last_start.read(where)
    # Before it answers: if this command is killed, `lehr down` knows the server for its own.
    last_start.write(where, Start(child.pid, options, last_start.named_files(options)))
    try:
        while True:
            server = running_server(where)
            if server is not None and server.pid == child.pid and answers(server.url):
                return server
            if child.poll() is not None:
                raise did_not_start(f"it ended with exit code {child.returncode}", log, begin)
            waited_s = time.monotonic() - began
            if waited_s > LIMIT_S:
                raise did_not_start(f"no answer within {LIMIT_S / 60:.0f} minutes", log, begin)
            if notify is not None and waited_s > NOTICE_S:
                notify(_STILL_STARTING)
            # Each look takes some milliseconds of the processor that the server needs.
            time.sleep(min(0.5, 0.05 + waited_s / 20))
    except (LehrError, KeyboardInterrupt):
        after_ctrl_c("The server that was starting may still run. Stop it: lehr down")
        if child.poll() is None:
            _stop_starting(where, child.pid)
        last_start.write(where, earlier)
        after_ctrl_c("The server that was starting is stopped. Start it again: lehr up")
        raise


def _stop_starting(where: Path, pid: int) -> None:
    """Stop a server that is starting, and the Ray that it may have begun to start."""
    from lehr.cluster import ray_head

    say("\nStopping the server and Ray, which may take half a minute ...")
    procfs.end(pid, NOTICE_S)
    ray_head.stop(where)


def did_not_start(why: str, log: Path, begin: int) -> LehrError:
    """Return the error of a server that did not start, whose output begins at a byte of ``log``."""
    with log.open("rb") as file:
        file.seek(begin)
        lines = explaining_lines(file.read().decode("utf-8", "replace"))
    tail = "\n".join(f"    {line}" for line in lines)
    hint = f"The end of {log}:\n{tail}" if tail else f"Its log: {log}"
    return LehrError(f"the server did not start: {why}.", hint=hint)


def explaining_lines(output: str) -> list[str]:
    """Return the last lines that explain a failure, without the frames of tracebacks; if there are
    none, the last of all lines.
    """
    explaining: list[str] = []
    others: list[str] = []
    for line in output.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        text, level = line, None
        if isinstance(event, dict) and "event" in event:
            text, level = str(event["event"]), event.get("level")
        kept = [part for part in text.splitlines() if part.strip() and not _FRAME.match(part)]
        (others if level in _CHATTER else explaining).extend(kept)
    return (explaining or others)[-_LINES:]


def server_command(where: Path, options: ServerOptions, port: int) -> list[str]:
    """Return the command line. -P: a random.py in the folder must not replace the standard
    library's.
    """
    command = [sys.executable, "-P", "-m", "lehr_api", "--home", str(where)]
    command += ["--host", options.host, "--port", str(port)]
    if options.gpus is not None:
        command += ["--gpus", str(options.gpus)]
    if options.ray_address is not None:
        command += ["--ray-address", options.ray_address]
    return [*command, *options.more]


def run_in_foreground(where: Path, options: ServerOptions) -> None:
    """Replace this process by the server, for systemd and containers. Does not return."""
    _need_server()
    home.ensure_home(where)
    command = server_command(where, options, _port(options))
    if running_server(where) is None:
        # Its service manager has the options: those of an earlier `lehr up` no longer hold.
        last_start.write(where, None)
    os.chdir(where)
    os.execve(command[0], command, _environment(where))  # noqa: S606 - an argv list, no shell


def _need_server() -> None:
    for module in ("structlog", "uvicorn", "fastapi", "sqlmodel", "alembic", "ray"):
        extras.need(module)


def answers(url: str) -> bool:
    """Return whether /health answers. Uses no HTTP library, because importing it takes longer."""
    from http.client import HTTPConnection, HTTPException

    address = urlsplit(url)
    if address.scheme == "https":
        return True  # Any certificate will do: this only checks that the server is alive.
    try:
        connection = HTTPConnection(address.hostname or "", address.port, timeout=5.0)
        connection.request("GET", "/api/v1/health")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False


@contextmanager
def one_at_a_time(where: Path) -> Iterator[None]:
    """Hold a lock, so that the second of two ``lehr up`` finds the server of the first."""
    with (where / "up.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _environment(where: Path) -> dict[str, str]:
    # The server of this home must not use the address of another server.
    passed = {k: v for k, v in os.environ.items() if k not in {"LEHR_SERVER", "LEHR_TOKEN"}}
    own = {"LEHR_HOME": str(where), "PYTHONUNBUFFERED": "1"}
    return {**passed, **last_start.named_folders(), **own}


def _port(options: ServerOptions) -> int:
    """Return the port to listen on.

    Raises:
        Conflict: the requested port is taken.
        UserError: the server cannot listen at this address, or at this port.
    """
    if options.port is not None:
        if not _free(options.host, options.port):
            raise Conflict(
                f"port {options.port} is used by another program.",
                hint="Omit --port to use a free one.",
            )
        return options.port
    for port in range(home.DEFAULT_PORT, home.DEFAULT_PORT + 100):
        if _free(options.host, port):
            return port
    raise Conflict(f"no free port at or above {home.DEFAULT_PORT}.", hint="Choose one: --port N")


def _free(host: str, port: int) -> bool:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except socket.gaierror as error:
        raise UserError(f"--host {host}: {error.strerror}.") from None
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Bind as the server will: a port in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise UserError(
                    f"--host {host} is no address of this machine.", hint=_own_addresses()
                ) from None
            if error.errno == errno.EACCES:
                raise UserError(
                    f"--port {port}: this user may not listen there.",
                    hint="Ports from 1024 on need no rights. For 80 or 443, put a proxy in front.",
                ) from None
            return False
    return True


def _own_addresses() -> str:
    from lehr.cluster import ray_ports

    own = ", ".join(address for _, address in sorted(ray_ports.addresses().items()))
    return f"It has {own}. For all of them: --host 0.0.0.0"
