"""The environment builder: builds the environment of an attempt on its node, by uv.

Run as ``python -I environment_builder.py ENTRY`` by the shim, before the training starts, if the
node lacks the environment. Standard library only; uv is a program. Exit code 1: it could not be
built; the end of uv's output is on stdout.

uv gets no variable of the spec: an environment is shared by all runs with the same file, so nothing
else may decide what is in it.
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable

sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from lehr.base import killpoints, procfs
from lehr.code import code_cache
from lehr.node.attempt_dir import AttemptDir

KEEP_S = 14 * 86_400.0  # Seconds that an unused environment stays on the node.
_TAIL_LINES = 30
_INHERITED = "_lehr_node.pth"

Notify = Callable[[str], None]


class BuildFailed(Exception):
    """uv could not build it; the message has the end of its output."""


def build(node: str, project: str, name: str, notify: Notify) -> str:
    """Build an environment, unless another attempt does; then wait for that one. Return its key.

    Raises:
        BuildFailed: uv is missing, or could not build it.
        OSError: it cannot be written here.
    """
    found = code_cache.environment_key(project, name)
    os.makedirs(code_cache.environments(node), mode=0o700, exist_ok=True)
    where = code_cache.environment_folder(node, found)
    lock = os.open(f"{where}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _wait_for(lock, notify)
        if code_cache.environment_ready(node, found):
            return found
        began = time.monotonic()
        shutil.rmtree(where, ignore_errors=True)  # What a killed builder has left.
        uv = find_uv()
        notify(f"building the environment of {name} by uv")
        _run([uv, "venv", "--quiet", "--python", sys.executable, where], notify)
        _inherit(where)
        killpoints.reached("environment builder: before packages are installed")
        _install(uv, project, name, where, notify)
        into = ["--python", os.path.join(where, "bin", "python")]
        listed = _run([uv, "pip", "list", "--format", "json", *into], notify)
        killpoints.reached("environment builder: before the environment is complete")
        os.sync()  # After a power cut, a complete environment has all its files.
        packages = json.loads(listed.strip().splitlines()[-1])
        procfs.write_json(f"{where}.json", {"file": name, "packages": packages}, durable=True)
        took = time.monotonic() - began
        notify(f"built the environment of {name}: {len(packages)} packages in {took:.0f} s")
        return found
    finally:
        os.close(lock)


def _wait_for(lock: int, notify: Notify) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        notify("waiting for another attempt that builds the same environment")
        fcntl.flock(lock, fcntl.LOCK_EX)


def find_uv() -> str:
    """Return the path of uv: beside this interpreter, as a package of it, or on the PATH.

    Raises:
        BuildFailed: this node has none.
    """
    beside = os.path.join(sysconfig.get_path("scripts"), "uv")
    if os.access(beside, os.X_OK):
        return beside
    if importlib.util.find_spec("uv") is not None:
        return str(importlib.import_module("uv").find_uv_bin())
    on_path = shutil.which("uv")
    if on_path is None:
        from lehr_trainer.extras import install  # Imported for this only: it takes milliseconds.

        raise BuildFailed(f"this node has no uv, which builds environments: {install('uv')}")
    return on_path


def _inherit(where: str) -> None:
    """Let the environment import the node's packages, after its own."""
    lines = []
    own = sysconfig.get_path("stdlib")
    for path in sys.path:
        if not os.path.isdir(path) or path == os.path.dirname(os.path.abspath(__file__)):
            continue
        if os.path.basename(path) in {"site-packages", "dist-packages"}:
            lines.append(f"import site; site.addsitedir({path!r})")
        elif path != own and not path.startswith(os.path.join(own, "")):
            lines.append(path)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    target = os.path.join(where, "lib", version, "site-packages", _INHERITED)
    with open(target, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def _install(uv: str, project: str, name: str, where: str, notify: Notify) -> None:
    given = os.path.join(project, name)
    if len(code_cache.needed(name)) == 1:
        into = ["--python", os.path.join(where, "bin", "python")]
        _run([uv, "pip", "install", *into, "--requirements", given], notify)
        return
    # From the lock's own sources. The project itself is imported from the capsule.
    options = ["--frozen", "--active", "--inexact", "--no-dev", "--no-install-project"]
    _run([uv, "sync", *options, "--project", os.path.dirname(given)], notify, VIRTUAL_ENV=where)


def _run(command: list[str], notify: Notify, **variables: str) -> str:
    """Run uv; its lines are notices of the run.

    Raises:
        BuildFailed: it failed.
    """
    lines: list[str] = []
    own = {n: v for n, v in os.environ.items() if n not in {"VIRTUAL_ENV", "PYTHONPATH"}}
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**own, **variables},
        cwd="/",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip())
            if line.startswith(("Resolved ", "Prepared ", "Downloading ", "Installed ")):
                notify(line.strip())
    if process.returncode != 0:
        verb = " ".join(word for word in command[1:3] if not word.startswith("-"))
        tail = "\n".join(lines[-_TAIL_LINES:])
        raise BuildFailed(f"uv {verb} ended with {process.returncode}:\n{tail}")
    return "\n".join(lines)


def remove_unused(node: str, used: set[str], *, keep_s: float = KEEP_S) -> list[str]:
    """Remove environments that no attempt here uses and that none has used for a long time."""
    there = code_cache.environments(node)
    removed = []
    for file in sorted(os.listdir(there)):
        name, _, ending = file.partition(".")
        mark = os.path.join(there, f"{name}.json")
        if ending != "lock" or name in used:
            continue
        path = os.path.join(there, file)
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            last = os.stat(mark if os.path.exists(mark) else path).st_mtime
            if time.time() - last < keep_s:
                continue
            # The mark first: from here on nobody takes the environment for complete. The lock's
            # file stays, or one could hold a lock on it that another does not see.
            if os.path.exists(mark):
                os.unlink(mark)
                removed.append(name)
            shutil.rmtree(code_cache.environment_folder(node, name), ignore_errors=True)
        except BlockingIOError:
            continue  # Somebody builds it.
        finally:
            os.close(lock)
    return removed


def _used(attempts: str) -> set[str]:
    found = set()
    for name in os.listdir(attempts):
        path = os.path.join(attempts, name, code_cache.USED)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                found.add(file.read().strip())
    return found


def _notifier(events: str | None) -> Notify:
    """Return what writes a notice into the stream of the run, and into this process's log."""

    def notify(message: str) -> None:
        print(message, flush=True)
        if events is not None:
            record = {
                "kind": "notice",
                "time": time.time(),
                "phase": "environment",
                "message": message,
            }
            with open(events, "ab", buffering=0) as file:
                file.write(json.dumps(record).encode() + b"\n")

    return notify


def main() -> None:
    entry = AttemptDir(sys.argv[1])
    launch = entry.launch()
    assert launch is not None
    node = code_cache.node_folder(entry.path)
    project = os.path.join(code_cache.folder(node, str(launch["code"])), code_cache.PROJECT)
    # The first node writes the run's stream.
    first = launch["gang"]["node_rank"] == 0
    events = os.path.join(str(launch["attempt_dir"]), "events.jsonl") if first else None
    name = str(launch["environment"])
    try:
        build(node, project, name, _notifier(events))
    except (BuildFailed, OSError) as error:
        print(f"the environment of {name} could not be built: {error}", flush=True)
        sys.exit(1)
    remove_unused(node, _used(os.path.dirname(entry.path)))


if __name__ == "__main__":
    main()
