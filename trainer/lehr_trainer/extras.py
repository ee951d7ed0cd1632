"""What installs a missing package: an extra of Lehr from where this Lehr came from."""

from __future__ import annotations

import json
import re
from importlib import metadata
from importlib.util import find_spec
from urllib.parse import unquote, urlsplit


def install(requirement: str) -> str:
    """Return the command that installs ``requirement``, such as ``lehr[server]``.

    pip's index may not have Lehr, or have a package of that name by others. So the command names
    the clone, the wheel or the repository that pip recorded for the installed Lehr.
    """
    extras = requirement.removeprefix("lehr")
    if not extras.startswith("["):
        return f"pip install '{requirement}'"
    try:
        lehr = metadata.distribution("lehr")
    except metadata.PackageNotFoundError:  # A source tree on PYTHONPATH.
        return f"the packages of {requirement} in Lehr's pyproject.toml"
    origin = json.loads(lehr.read_text("direct_url.json") or "{}")
    url, vcs = origin.get("url", ""), origin.get("vcs_info")
    if url.startswith("file:") and not vcs:
        editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
        return f"pip install {editable}'{unquote(urlsplit(url).path)}{extras}'"
    address = f"{vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else url
    return f"pip install '{requirement}{address and f' @ {address}'}'"


def need(module: str) -> None:
    """Raise ModuleNotFoundError if a module is not installed, without importing it."""
    if find_spec(module) is None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def extra_with(module: str | None) -> str | None:
    """Return an extra of Lehr, other than ``dev``, that adds a module; None if none does."""
    package = (module or "").partition(".")[0].replace("_", "-")
    try:
        lines = metadata.requires("lehr") or ()
    except metadata.PackageNotFoundError:
        return None
    for line in lines:
        requirement = re.match(r"([\w-]+).*extra == .(?!dev)(\w+)", line)
        if requirement is not None and requirement[1].replace("_", "-") == package:
            return requirement[2]
    return None
