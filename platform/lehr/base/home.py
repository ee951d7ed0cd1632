"""The home folder of a server, and how clients find the server.

Imports little, because the command line and the client import it.

::

    <home>/                  LEHR_HOME, by default ~/.lehr; never on a network file system
      lehr.db  streams.db    see lehr.store
      lehr.lock              held (flock) by the one process that may write them; its pid inside
      token                  the API token; mode 0600
      server.json            the address of the running server
      join/node.json         how this machine joined another server's cluster, if it has
      nodes.json             the nodes of its cluster, which the next server expects
      replica/ runs/ data/ logs/ node/ wandb/
"""

from __future__ import annotations

import fcntl
import hashlib
import ipaddress
import json
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lehr.base import procfs
from lehr.base.filesystems import nearest_existing
from lehr.errors import HomeUnusable, ServerUnavailable
from lehr_trainer.files import ensure_secret, write_atomically

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 5347


def home() -> Path:
    """Return ``LEHR_HOME``, or ``~/.lehr``."""
    return Path(os.environ.get("LEHR_HOME") or "~/.lehr").expanduser().absolute()


def ensure_home(where: Path | None = None) -> Path:
    """Return the home folder. Create it, readable only by its owner, if it does not exist."""
    where = home() if where is None else where
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise HomeUnusable(f"{where} cannot be Lehr's home: {error.strerror}.") from error
    return where


def check_home(where: Path) -> None:
    """Check that the home exists, or that ``ensure_home`` could create it. Changes nothing.

    Raises:
        HomeUnusable: it is no folder, or cannot be written.
    """
    existing = nearest_existing(where)
    if not existing.is_dir():
        raise HomeUnusable(f"{where} cannot be Lehr's home: {existing} is not a folder.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise HomeUnusable(f"{where} cannot be Lehr's home: {existing} cannot be written.")


def close_to_others(where: Path) -> str | None:
    """Let nobody but its owner enter the home, which holds specs, logs and code of all projects.

    Return what it was, or why it is still open; None if it was closed already.
    """
    mode = where.stat().st_mode & 0o777
    if not mode & 0o077:
        return None
    was = f"other users of this machine could enter {where} (mode {mode:04o})"
    try:
        where.chmod(mode & 0o700)
    except OSError as error:
        cure = f"Its owner should do it: chmod 700 {where}"
        return f"{was}, and still can, since it cannot be changed: {error.strerror}. {cure}"
    return f"{was}; it is closed now."


def is_loopback(host: str) -> bool:
    """Return whether the name or address is one of this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_own(address: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def runs_dir(where: Path | None = None) -> Path:
    """Return the folder of run directories: ``LEHR_RUNS``, or ``<home>/runs``. May be shared
    storage.
    """
    return _from_env("LEHR_RUNS", where, "runs")


def data_dir(where: Path | None = None) -> Path:
    """Return the folder of prepared token shards: ``LEHR_DATA``, or ``<home>/data``."""
    return _from_env("LEHR_DATA", where, "data")


def hold(where: Path, why: str) -> None:
    """Let no server of this home start a run, until ``lehr db release``."""
    write_atomically(where / "held", why)


def release(where: Path) -> bool:
    """Let servers of this home start runs again. Return whether it was held."""
    was_held = (where / "held").exists()
    (where / "held").unlink(missing_ok=True)
    return was_held


def held(where: Path) -> str | None:
    """Return why a server of this home starts no run, and what to do; None if it starts runs."""
    try:
        why = (where / "held").read_text("utf-8")
    except FileNotFoundError:
        return None
    return f"{why}. So nothing starts until: lehr db release"


def replica_dir(where: Path | None = None) -> Path:
    return (home() if where is None else where) / "replica"


def logs_dir(where: Path | None = None) -> Path:
    return (home() if where is None else where) / "logs"


def node_dir(where: Path | None = None) -> Path:
    return (home() if where is None else where) / "node"


def ray_dir(where: Path | None = None) -> Path:
    """Return Ray's temporary folder: a short path, because unix sockets allow 107 characters."""
    where = home() if where is None else where
    digest = hashlib.sha256(os.fsencode(where.absolute())).hexdigest()[:10]
    return Path(tempfile.gettempdir()) / f"lehr-ray-{digest}"


def _from_env(variable: str, where: Path | None, name: str) -> Path:
    value = os.environ.get(variable)
    if value:
        return Path(value).expanduser().absolute()
    return (home() if where is None else where) / name


def read_token(where: Path) -> str | None:
    try:
        return (where / "token").read_text("ascii").strip() or None
    except FileNotFoundError:
        return None


def ensure_token(where: Path) -> str:
    """Return the token of this home; create it, readable only by its owner, at the first start.

    A token that others can read is rejected, because anybody could use it.
    """
    path = ensure_home(where) / "token"
    found = ensure_secret(path, f"{secrets.token_urlsafe(32)}\n".encode("ascii")).decode("ascii")
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise HomeUnusable(
            f"{path} can be read by others (mode {mode:04o}).", hint=f"chmod 600 {path}"
        )
    return found.strip()


def own_network() -> str:
    """Return the machine and network namespace of this process: where its 127.0.0.1 is."""
    try:
        return f"{procfs.boot_id()} {Path('/proc/self/ns/net').readlink()}"
    except OSError:  # Not Linux.
        return socket.gethostname()


@dataclass(frozen=True)
class ServerInfo:
    """The content of ``server.json``: the running server, or the last one."""

    url: str
    pid: int
    version: str
    ca_file: str | None = None
    """The certificate of the authority that signed the server's, if it was started with --ca."""
    network: str = field(default_factory=own_network)  # The server's ``own_network``.


def server_url(where: Path | None = None) -> str | None:
    """Return ``LEHR_SERVER``, or the address of the home's server; None when none runs."""
    given = os.environ.get("LEHR_SERVER")
    if given:
        return given.rstrip("/")
    info = read_server(home() if where is None else where)
    return info.url if info else None


def read_server(where: Path) -> ServerInfo | None:
    """Return the content of ``server.json``; None if it is missing or unreadable."""
    try:
        data = json.loads((where / "server.json").read_bytes())
        url, pid, version = str(data["url"]).rstrip("/"), int(data["pid"]), str(data["version"])
        return ServerInfo(url, pid, version, data.get("ca_file"), str(data["network"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def server_runs(where: Path, url: str) -> bool:
    """Return whether the home's server runs at ``url``, so that no other program has its port:
    the process in ``server.json`` holds the lock.

    Raises:
        ServerUnavailable: it may run in another network, where its address is another program's.
    """
    info = read_server(where)
    if info is None or info.url != url or lock_holder(where) != info.pid:
        return False
    if info.network != own_network():
        # A home that a container or another machine sees too: a stranger may have the port here.
        raise ServerUnavailable(
            f"the server of {where} ({url}) may be in another network than this process, on "
            "another machine or in a container; the token was not sent.",
            hint="Name the server and a token: LEHR_SERVER=URL LEHR_TOKEN=TOKEN",
        )
    return True


def joined_server(where: Path) -> str | None:
    """Return the URL of the server that this machine is a node of; None if it has not joined."""
    try:
        return str(json.loads((where / "join" / "node.json").read_bytes())["server_url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_server(where: Path, info: ServerInfo) -> None:
    write_atomically(ensure_home(where) / "server.json", json.dumps(asdict(info)) + "\n")


def remove_server(where: Path) -> None:
    """Remove ``server.json`` if this process wrote it."""
    info = read_server(where)
    if info is not None and info.pid == os.getpid():
        (where / "server.json").unlink(missing_ok=True)


_held: dict[Path, tuple[int, int]] = {}
"""Locks held by this process, shared by all its callers: descriptor and number of holders."""
_held_guard = threading.Lock()


@contextmanager
def lock(where: Path) -> Iterator[None]:
    """Hold ``<home>/lehr.lock``: one process per home. May be nested within the process.

    The kernel releases an flock when its process ends, so it never becomes stale.
    """
    acquire_lock(where)
    try:
        yield
    finally:
        release_lock(where)


def acquire_lock(where: Path) -> None:
    path = ensure_home(where).resolve() / "lehr.lock"
    with _held_guard:
        if path in _held:
            descriptor, holders = _held[path]
            _held[path] = descriptor, holders + 1
            return
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        if not _try_lock(descriptor):
            pid = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            holder = f"process {pid}" if pid else "another process"
            raise HomeUnusable(
                f"{where} is in use by {holder}: only one Lehr server can use a home.",
                hint="Stop it with `lehr down`, or use another LEHR_HOME.",
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
        _held[path] = descriptor, 1


def _try_lock(descriptor: int) -> bool:
    for _ in range(20):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.01)  # Another process may only check the lock (lock_holder).
        else:
            return True
    return False


def release_lock(where: Path) -> None:
    path = where.resolve() / "lehr.lock"
    with _held_guard:
        descriptor, holders = _held.pop(path)
        if holders > 1:
            _held[path] = descriptor, holders - 1
            return
        os.ftruncate(descriptor, 0)
        os.close(descriptor)


def lock_holder(where: Path, name: str = "lehr.lock") -> int | None:
    """Return the pid of the process that holds a lock of the home, -1 if that is not known; None
    if none does, or the lock cannot be read. ``up.lock`` is that of a command which starts or
    stops the server.
    """
    try:
        descriptor = os.open(where / name, os.O_RDONLY)  # The home may be read-only here.
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        return int(text) if text.isdigit() else -1
    else:
        return None
    finally:
        os.close(descriptor)
