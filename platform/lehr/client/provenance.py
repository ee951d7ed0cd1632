"""Provenance of a submission: commit, uncommitted changes, host, command, versions."""

from __future__ import annotations

import getpass
import platform
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from lehr import __version__

_DIFF_LIMIT = 256 * 1024
_GIT_TIMEOUT_S = 5.0


def provenance(folder: Path | None = None) -> dict[str, Any]:
    """Collect the provenance of this process and of the git tree that contains ``folder``."""
    return {
        "command": sys.argv,
        "host": socket.gethostname(),
        "user": _user(),
        "folder": str(Path.cwd()),
        "versions": {"lehr": __version__, "python": platform.python_version()},
        "git": _git(folder or Path.cwd()),
    }


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None  # A container may run as a user id without a name.


def _git(folder: Path) -> dict[str, Any] | None:
    commit = _ask_git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    # --no-ext-diff and --no-textconv: a repository's settings must not start programs.
    diff = _ask_git(folder, "diff", "--no-ext-diff", "--no-textconv", "HEAD") or ""
    remote = _ask_git(folder, "config", "--get", "remote.origin.url")
    return {
        "commit": commit.strip(),
        "branch": (_ask_git(folder, "rev-parse", "--abbrev-ref", "HEAD") or "").strip() or None,
        "remote": _without_secret(remote.strip()) if remote else None,
        "dirty": bool(diff),
        "diff": diff[:_DIFF_LIMIT],
        "diff_cut": len(diff) > _DIFF_LIMIT,
    }


def _without_secret(remote: str) -> str:
    """Remove credentials from a URL: ``https://user:token@host/x``."""
    scheme, separator, rest = remote.partition("://")
    if not separator:
        return remote
    authority, slash, path = rest.partition("/")
    return f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}"


def _ask_git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments],
            capture_output=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None
