"""The checks of ``lehr doctor``. Each reports what it found and how to fix it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lehr import __version__
from lehr.base import filesystems, formats, home
from lehr.errors import LehrError
from lehr.faces.check import Check, space
from lehr.faces.cli import cluster_checks
from lehr_trainer import extras

_GB = 10**9
_SLOW_S = 60.0
_PACKAGES = {"a C compiler": "gcc", "a C++ compiler": "g++", "Python's headers": "python3-dev"}
"""By what can be missing, the package of Debian and Ubuntu that has it."""
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, never written


def run_checks() -> list[Check]:
    """Run all checks in parallel: importing torch alone takes seconds."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        found = list(pool.map(lambda check: check(), CHECKS))
    return [check for checks in found for check in checks]


def check_python() -> list[Check]:
    version = platform.python_version()
    where = (
        sys.prefix if sys.prefix != sys.base_prefix else f"{sys.prefix} (no virtual environment)"
    )
    return [Check("Python", "ok", f"{version} in {where}")]


def check_packages() -> list[Check]:
    """Check the packages of each extra by their metadata, without importing them."""
    checks = []
    for extra, needed in (
        ("server", ("fastapi", "uvicorn", "sqlmodel", "alembic", "ray", "jinja2")),
        ("trainer", ("torch", "safetensors", "numpy", "tokenizers", "psutil")),
    ):
        missing = [name for name in needed if _version(name) is None]
        if missing:
            fix = extras.install(f"lehr[{extra}]")
            checks.append(Check(f"lehr[{extra}]", "bad", f"missing: {', '.join(missing)}", fix))
        else:
            checks.append(Check(f"lehr[{extra}]", "ok", f"complete, lehr {__version__}"))
    for name in ("torch", "ray"):
        found, pinned = _version(name), _pinned(name)
        if found and pinned and found.split("+")[0] != pinned:
            why = (
                "Another version of torch can change a run's losses."
                if name == "torch"
                else "Ray refuses workers whose version differs from the head's."
            )
            checks.append(Check(name, "note", f"{found}; Lehr is tested with {pinned}", why))
    return checks


def check_torch() -> list[Check]:
    """Import torch in a subprocess and check which GPUs it finds."""
    if _version("torch") is None:
        return []
    program = (
        "import json, torch\n"
        "n = torch.cuda.device_count() if torch.cuda.is_available() else 0\n"
        "print(json.dumps({'version': torch.__version__, 'cuda': torch.version.cuda,"
        " 'gpus': [torch.cuda.get_device_name(i) for i in range(n)],"
        " 'nccl': '.'.join(map(str, torch.cuda.nccl.version())) if n else None}))"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", program],
            capture_output=True,
            text=True,
            timeout=_SLOW_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [Check("torch", "bad", f"did not import within {_SLOW_S:.0f} s")]
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        fix = "pip install --force-reinstall torch==" + (_pinned("torch") or "")
        return [Check("torch", "bad", f"does not import: {last}", fix)]
    seen = json.loads(done.stdout.strip().splitlines()[-1])
    return [
        Check("torch", "ok", f"{seen['version']}, CUDA {seen['cuda'] or 'not built in'}"),
        _check_cuda(seen["gpus"], seen["cuda"], seen["nccl"]),
    ]


def _check_cuda(gpus: list[str], cuda: str | None, nccl: str | None) -> Check:
    driver = _nvidia_smi("name,driver_version")
    if gpus:
        kinds = ", ".join(f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus))
        return Check("GPUs", "ok", f"{kinds}; NCCL {nccl}")
    if driver:
        fix = "Compare the driver with what torch needs."
        if cuda is None:
            fix = "This torch is built without CUDA: install the CUDA wheel of the same version."
        return Check("GPUs", "bad", f"{len(driver)} GPUs found by the driver, none by torch", fix)
    return Check("GPUs", "note", "none: training runs on the CPU, on logical GPUs", None)


_LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
"""By CUDA's major version, the first series of the driver that runs it (CUDA's release notes)."""
_CUDA_OF_PINNED = 13
"""CUDA's major version in the wheels of the torch that Lehr pins."""


def check_driver() -> list[Check]:
    """Check the driver against the CUDA of torch: of the installed one, else of the pinned one."""
    drivers = sorted(row.strip() for row in _nvidia_smi("driver_version"))
    installed = _version("torch") or ""
    if not drivers or installed.endswith("+cpu"):
        return []
    which = f"torch {installed}" if installed else f"torch {_pinned('torch')} (not installed yet)"
    needed = " ".join(importlib.metadata.requires("torch") or ()) if installed else ""
    named = re.search(r"[+-]cu(\d\d)|cuda-\w+[^;]*?==(\d+)", f"{installed} {needed}")
    cuda = int(named[1] or named[2]) if named else _CUDA_OF_PINNED
    least = _LEAST_DRIVER.get(cuda, 0)
    found = f"{drivers[0]}; {which} is built for CUDA {cuda}, which needs {least} or newer"
    if float(drivers[0].partition(".")[0]) >= least:
        return [Check("driver", "ok", found)]
    return [Check("driver", "bad", found, "Install such a driver, or rent a machine with it.")]


def check_gpu_use() -> list[Check]:
    """Check for processes that already hold GPU memory: a trial beside them would run out of it."""
    rows = _nvidia_smi("index,memory.used,memory.total")
    checks = []
    for row in rows:
        index, used, total = (part.strip() for part in row.split(","))
        if used.isdigit() and total.isdigit() and int(used) > 0.1 * int(total):
            found = f"GPU {index} already has {used} of {total} MiB in use"
            fix = "See which process uses it: nvidia-smi"
            checks.append(Check("GPU memory", "note", found, fix))
    return checks


def check_compiler() -> list[Check]:
    """Check for the compilers that torch.compile calls, by which trainings on a GPU run."""
    missing = _missing_for_compiling()
    if not missing:
        return [Check("compiler", "ok", "torch.compile has what it needs")]
    on_gpu = bool(_nvidia_smi("name"))
    who = (
        "Trainings on a GPU compile by default, and would fail"
        if on_gpu
        else "Trainings on a CPU do not compile by default"
    )
    packages = " ".join(_PACKAGES[name] for name in missing)
    fix = f"apt-get install {packages}, or `compile: {{scope: none}}` in each spec. {who}."
    found = f"torch.compile lacks {', '.join(missing)}"
    return [Check("compiler", "bad" if on_gpu else "note", found, fix)]


def _missing_for_compiling() -> list[str]:
    """List what is missing, as keys of ``_PACKAGES``.

    Triton compiles a small C file against Python's headers before its first kernel. Inductor
    compiles C++ for what runs on a CPU, also beside a GPU.
    """
    found = {
        "a C compiler": _program("CC", "gcc", "clang"),
        "a C++ compiler": _program("CXX", "g++"),
        "Python's headers": Path(sysconfig.get_path("include"), "Python.h").exists(),
    }
    return [name for name, there in found.items() if not there]


def _program(variable: str, *names: str) -> bool:
    """Return whether the program that the variable names is there; without it, one of ``names``."""
    chosen = os.environ.get(variable)
    return any(shutil.which(name) for name in ((chosen,) if chosen else names))


def check_disk() -> list[Check]:
    checks = []
    seen = set()
    for what, path in (("home", home.home()), ("runs", home.runs_dir()), ("data", home.data_dir())):
        existing = filesystems.nearest_existing(path)
        device = existing.stat().st_dev
        if device in seen:
            continue
        seen.add(device)
        free = shutil.disk_usage(existing).free
        if not os.access(existing, os.W_OK):
            checks.append(Check("disk", "bad", f"{existing} cannot be written", "Set LEHR_HOME."))
        else:
            checks.append(space(free, f"for {what} in {path}"))
    return checks


def check_filesystem() -> list[Check]:
    """Check the file system: SQLite's locks are unreliable on network file systems."""
    kind = filesystems.kind_of(home.home())
    if kind in filesystems.NETWORK:
        found = f"{home.home()} is on {kind}, a network file system"
        fix = "Set LEHR_HOME to a local disk; LEHR_RUNS may stay on shared storage."
        return [Check("file system", "bad", found, fix)]
    return [Check("file system", "ok", f"{home.home()} is on {kind or 'a local disk'}")]


def check_shared_memory() -> list[Check]:
    if not _SHARED_MEMORY.exists():
        return []
    total = shutil.disk_usage(_SHARED_MEMORY).total
    text = f"{_SHARED_MEMORY} has {formats.size(total)}"
    if total < 1 * _GB:
        fix = "Loader workers and Ray use shared memory. In Docker: --shm-size 8g"
        return [Check("shared memory", "note", text, fix)]
    return [Check("shared memory", "ok", text)]


def check_token() -> list[Check]:
    path = home.home() / "token"
    try:
        mode = path.stat().st_mode & 0o777
    except FileNotFoundError:
        return []
    if mode & 0o077:
        found = f"{path} can be read by others (mode {mode:04o})"
        return [Check("token", "bad", found, f"chmod 600 {path}")]
    return [Check("token", "ok", f"{path}, readable only by its owner")]


def check_server() -> list[Check]:
    """Check whether a server answers, runs this version, and what its nodes run."""
    from lehr.faces.client import Client
    from lehr.faces.client.problems import is_here

    try:
        client = Client(os.environ.get("LEHR_SERVER") or None, timeout_s=5.0)
        health = client.health()
    except LehrError as error:
        return [Check("server", "note", error.message, error.hint)]
    if health.version != __version__:
        found = f"{client.server} runs lehr {health.version}, this is {__version__}"
        where = "" if is_here(client.server) else " on its machine"
        return [Check("server", "note", found, f"Restart it{where}: lehr down, lehr up")]
    checks = [Check("server", "ok", f"lehr {health.version} at {client.server}")]
    try:
        cluster = client.cluster()
    except LehrError as error:
        return [*checks, Check("token", "bad", error.message, error.hint)]
    return [*checks, *cluster_checks.check_cluster(cluster)]


def check_socket_path() -> list[Check]:
    """Check the length of socket paths: Linux allows 107 characters, and Ray's paths are long."""
    path = home.ray_dir()
    longest = f"{path}/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store"
    if len(longest) > 107:
        found = f"{path} is too long for Ray's sockets ({len(longest)} of 107 characters)"
        return [Check("temporary files", "bad", found, "Set TMPDIR to a shorter path.")]
    return []


CHECKS: tuple[Callable[[], list[Check]], ...] = (
    check_python,
    check_packages,
    check_torch,
    check_driver,
    check_gpu_use,
    check_compiler,
    check_disk,
    check_filesystem,
    check_shared_memory,
    check_socket_path,
    check_token,
    check_server,
)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _pinned(name: str) -> str | None:
    """Return the exact version that Lehr's metadata requires."""
    for line in importlib.metadata.requires("lehr") or ():
        requirement = line.split(";")[0].strip()
        package, equals, version = requirement.partition("==")
        if equals and package.split("[")[0].strip() == name:
            return version.strip()
    return None


def _nvidia_smi(fields: str) -> list[str]:
    """Return nvidia-smi's output, one line per GPU; empty without a driver."""
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.strip().splitlines() if done.returncode == 0 else []
