"""Facts of a node that decide whether a cluster works: versions, folders, clock, the server."""

from __future__ import annotations

import http.client
import importlib.metadata
import os
import platform
import shutil
import ssl
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lehr.base.filesystems import nearest_existing
from lehr.node import runs_folder
from lehr_trainer.extras import install

PATIENCE_S = 10.0  # Limit for the server's answer.
_NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")


def versions() -> dict[str, str]:
    """Return the versions that nodes must share, read without importing the packages."""
    packages = {"ray": ("ray",), "torch": ("torch",), "nccl": _NCCL, "lehr": ("lehr",)}
    found = {"python": platform.python_version()}
    for name, distributions in packages.items():
        for distribution in distributions:
            try:
                found[name] = importlib.metadata.version(distribution)
            except importlib.metadata.PackageNotFoundError:
                continue
            break
    return found


def facts() -> dict[str, Any]:
    return {
        "versions": versions(),
        "time": time.time(),
        "free_bytes": {
            name: free_bytes(Path(value).expanduser())
            for name in (runs_folder.RUNS, runs_folder.DATA, "LEHR_NODE")
            if (value := os.environ.get(name))
        },
    }


def free_bytes(path: Path) -> int | None:
    """Return the free space at a path, or at its nearest existing parent; None if unknown."""
    try:
        return shutil.disk_usage(nearest_existing(path)).free
    except OSError:
        return None


def torch_problem(granted_gpus: int) -> str | None:
    """Return why a node with GPUs cannot train, and what to do; None if it can."""
    if granted_gpus and "torch" not in versions():
        return f"torch is not installed on it: {install('lehr[trainer,gpu]')}"
    return None


def server_problem(url: str) -> str | None:
    """Return why this machine cannot send to the server, and what to do; None if it can.

    A node that cannot send would train, be killed for its silence, and fail its runs.
    """
    address = urlsplit(url)
    secure = address.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    try:
        connection = kind(address.netloc, timeout=PATIENCE_S)
        connection.request("GET", f"{address.path.rstrip('/')}/api/v1/health")
        status = connection.getresponse().status
        connection.close()
    except ssl.SSLCertVerificationError as error:
        return (
            f"it does not trust the certificate of {url} ({error.verify_message}): join it with "
            "lehr node join --ca FILE; the server's own machine: lehr --ca FILE up"
        )
    except (OSError, http.client.HTTPException, ValueError) as error:
        return (
            f"it cannot reach the server at {url} ({type(error).__name__}: {error}): start the "
            "server with a --public-url that this machine can reach, and open that port"
        )
    if status != 200:
        return f"{url} answers it with status {status}: another program may use that address"
    return None
