"""The server as a daemon of this machine: start it, find it, and identify it later.

``<home>/up.json`` records which process ``lehr up`` started last, and how. Pids are reused, so the
process's start time is recorded with the pid.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lehr import home
from lehr.cli.output import after_ctrl_c, say
from lehr.cli.processes import ProcessId, identify, processor_s, stop
from lehr.cli.server_log import did_not_start
from lehr.errors import Conflict, LehrError, UserError
from lehr_trainer import extras
from lehr_trainer.files import write_atomically

if TYPE_CHECKING:
    from lehr.client import Client

START_TIMEOUT_S = 60.0
"""Limit for a server that does nothing. One that works has as long as it needs: it may build its
index again.
"""
_IDLE_S = 10.0
_WORK_S = 0.05
"""A server that used less processor time than this in ``_IDLE_S`` does nothing."""
_STILL_STARTING = "Starting the server: it is still reading its records. Ctrl-C stops it"
_FOLDERS = {"LEHR_RUNS": home.runs_dir, "LEHR_DATA": home.data_dir}


@dataclass(frozen=True)
class ServerOptions:
    """The options that the server was started with."""

    host: str = home.DEFAULT_HOST
    port: int | None = None
    """None: the default port, or the next free one."""
    gpus: int | None = None
    ray_address: str | None = None
    more: tuple[str, ...] = ()
    """Options passed to ``python -m lehr_api`` unchanged."""

    @property
    def has_tls(self) -> bool:
        """Return whether other machines reach it by TLS, which a proxy may serve."""
        return "--tls-certificate" in self.more or any(
            word.startswith("https:") for word in self.more
        )


@dataclass(frozen=True)
class RunningServer:
    """A server that answers, or whose process at least is alive."""

    where: Path
    url: str
    process: ProcessId
    options: ServerOptions | None
    """The options given to `lehr up`; None when something else started the server."""

    @property
    def token_hint(self) -> str:
        return f"log in with the token in {self.where / 'token'}"

    def client(self) -> Client:
        from lehr.client import Client

        home.server_runs(self.where, self.url)  # Fails if its address may be another program's.
        return Client(self.url, home.read_token(self.where))


def running_server(where: Path) -> RunningServer | None:
    """Return the living server of this home, whoever started it."""
    info = home.read_server(where)
    process = identify(info.pid) if info else None
    if info is None or process is None or home.lock_holder(where) != info.pid:
        return None
    return RunningServer(where, info.url, process, _recorded(where, process))


def start(
    where: Path, options: ServerOptions, notify: Callable[[str], object] | None = None
) -> RunningServer:
    """Start the server as a daemon, and wait until it answers.

    ``notify`` is called with a message when that takes long. If it fails, the record of the last
    start stays as it was.

    Raises:
        Conflict: another program uses the port.
        LehrError: it ended, or did nothing and did not answer; with the last lines of its log.
    """
    _need_server()
    home.ensure_home(where)
    port = _port(options)
    log = home.logs_dir(where) / "server.out"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = server_command(where, options, port)
    begin = log.stat().st_size if log.exists() else 0
    before = _last_record(where)
    child: subprocess.Popen[bytes] | None = None
    try:
        with log.open("ab") as output:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in this terminal must not reach the server.
                cwd=where,
                env=_environment(where),
            )
        if (process := identify(child.pid)) is not None:
            _record(where, process, options)
        return _until_it_answers(where, child, log, begin, notify)
    except (LehrError, KeyboardInterrupt):
        after_ctrl_c("The server that was starting may still run. Stop it: lehr down")
        if child is not None and child.poll() is None:
            _stop_starting(where, child)
        _restore(where, before)
        after_ctrl_c("The server that was starting is stopped. Start it again: lehr up")
        raise


def _stop_starting(where: Path, child: subprocess.Popen[bytes]) -> None:
    """Stop a server that is starting, and the Ray that it may have begun to start."""
    from lehr.cluster import ray_head

    say("\nStopping the server and Ray, which may take half a minute ...")
    if (process := identify(child.pid)) is not None:
        stop(process, timeout_s=START_TIMEOUT_S)
    ray_head.stop(where)


def _until_it_answers(
    where: Path,
    child: subprocess.Popen[bytes],
    log: Path,
    begin: int,
    notify: Callable[[str], object] | None,
) -> RunningServer:
    began = time.monotonic()
    deadline = began + START_TIMEOUT_S
    worked_s = 0.0
    while True:
        server = running_server(where)
        if server is not None and server.process.pid == child.pid and answers(server.url):
            return server
        if child.poll() is not None:
            raise did_not_start(f"it ended with exit code {child.returncode}", log, begin)
        if time.monotonic() > deadline:
            before, worked_s = worked_s, processor_s(child.pid)
            if worked_s - before < _WORK_S:
                raise did_not_start("it does not answer, and does nothing", log, begin)
            if notify is not None:
                notify(_STILL_STARTING)
            deadline = time.monotonic() + _IDLE_S
        # Each look takes some milliseconds of the processor that the server needs.
        time.sleep(min(0.5, 0.05 + (time.monotonic() - began) / 20))


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
        (where / "up.json").unlink(missing_ok=True)
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
    return {**passed, **named_folders(), **own}


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


def _record(where: Path, process: ProcessId, options: ServerOptions) -> None:
    record = {
        "process": asdict(process),
        "options": asdict(options),
        "folders": named_files(options),
    }
    write_atomically(where / "up.json", json.dumps(record))


def _last_record(where: Path) -> bytes | None:
    try:
        return (where / "up.json").read_bytes()
    except OSError:
        return None


def _restore(where: Path, record: bytes | None) -> None:
    """Put back the record of the last server that started: its options are those to repeat."""
    if record is None:
        (where / "up.json").unlink(missing_ok=True)
    else:
        write_atomically(where / "up.json", record.decode())


def _recorded(where: Path, process: ProcessId) -> ServerOptions | None:
    """Return the options of this process, if `lehr up` started it."""
    try:
        record = _read_record(where)
        return _options(record) if ProcessId(**record["process"]) == process else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def recorded_start(where: Path) -> tuple[ServerOptions, dict[str, str]] | None:
    """Return the options of the last server that `lehr up` started, and its ``named_files``."""
    try:
        record = _read_record(where)
        return _options(record), dict(record.get("folders", {}))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def named_folders() -> dict[str, str]:
    """Return the variables of this shell that name folders of a server, with absolute paths."""
    return {name: str(folder()) for name, folder in _FOLDERS.items() if os.environ.get(name)}


def named_files(options: ServerOptions) -> dict[str, str]:
    """Return the variables of this shell without which such a server would not be the same."""
    found = named_folders()
    authority = os.environ.get("LEHR_CA")
    if authority and options.has_tls:
        found["LEHR_CA"] = authority
    return found


def _read_record(where: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((where / "up.json").read_bytes())
    return record


def _options(record: dict[str, Any]) -> ServerOptions:
    options = record["options"]
    return ServerOptions(**{**options, "more": tuple(options["more"])})
