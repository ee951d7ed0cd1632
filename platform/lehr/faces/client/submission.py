"""What a submission sends: the spec as callers give it, and its provenance."""

from __future__ import annotations

import getpass
import platform
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from lehr import __version__
from lehr.errors import UserError
from lehr.specs.overrides import Overrides

if TYPE_CHECKING:
    from lehr.specs import Spec


def load(
    spec: Path | str | dict[str, Any] | Spec, overrides: Overrides, *, want: str | None = None
) -> tuple[Spec, Path | None]:
    """Return the validated spec, and the folder of its file if it has one.

    ``want``: the only kind that is accepted.
    """
    from lehr.specs import load_spec

    folder = None
    if isinstance(spec, BaseModel):
        # It is valid as it is; only what is laid over it must be validated with it.
        loaded = load_spec(plain(spec), overrides) if overrides else spec
    else:
        if isinstance(spec, Path) or (isinstance(spec, str) and "\n" not in spec):
            folder = Path(spec).absolute().parent
        loaded = load_spec(spec, overrides)
    if want is not None and loaded.kind != want:
        method = "submit" if loaded.kind == "run" else loaded.kind
        raise UserError(
            f"this is the spec of a {loaded.kind}, not of a {want}.",
            hint=f"Use {method}() for it.",
        )
    return loaded, folder


def plain(spec: Spec) -> dict[str, Any]:
    """Without defaults: those are the server's to fill in, and a sweep's paths need them unset."""
    return {"kind": spec.kind, **spec.model_dump(mode="json", exclude_unset=True)}


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
