"""What installs a missing package: an extra of Lehr from where this Lehr came from."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import tomllib
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit


def install(requirement: str) -> str:
    """Return the command that adds ``requirement`` here, such as ``lehr[server]`` or ``gcsfs``.

    pip's index may not have Lehr, or have a package of that name by others. So the command names
    the clone, the wheel or the repository that pip or uv recorded for the installed Lehr.
    """
    try:
        lehr = metadata.distribution("lehr")
    except metadata.PackageNotFoundError:  # A source tree on PYTHONPATH.
        if requirement.startswith("lehr["):
            return f"the packages of {requirement} in Lehr's pyproject.toml"
        return f"{_installer()} '{requirement}'"
    receipt = Path(sys.prefix, "uv-receipt.toml")
    if not receipt.is_file():
        return f"{_installer()} {_from_origin(lehr, requirement)}"
    # `uv tool install` makes the environment anew, so its command names all that belongs in it.
    tool, *others = tomllib.loads(receipt.read_text())["tool"]["requirements"]
    extras, packages = tool.get("extras", []), [other["name"] for other in others]
    if requirement.startswith("lehr["):
        extras += requirement[5:-1].split(",")
    else:
        packages.append(requirement)
    own = f"lehr[{','.join(dict.fromkeys(extras))}]" if extras else "lehr"
    more = "".join(f" --with '{name}'" for name in packages)
    return f"uv tool install {_from_origin(lehr, own)}{more}"


def _installer() -> str:
    """Return the command that installs into this environment, also where it is not activated."""
    pip = str(Path(sys.prefix, "bin", "pip"))
    if find_spec("pip") is None:
        return f"uv pip install --python {shlex.quote(sys.prefix)}"
    return "pip install" if shutil.which("pip") == pip else f"{shlex.quote(pip)} install"


def _from_origin(lehr: metadata.Distribution, requirement: str) -> str:
    """Return a requirement as an argument; Lehr's with where the installed one came from."""
    origin = json.loads(lehr.read_text("direct_url.json") or "{}")
    url, vcs = origin.get("url", ""), origin.get("vcs_info")
    if not url or not re.match(r"lehr\b", requirement):
        return f"'{requirement}'"
    if url.startswith("file:") and not vcs:
        editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
        return f"{editable}'{unquote(urlsplit(url).path)}{requirement.removeprefix('lehr')}'"
    address = f"{vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else url
    return f"'{requirement} @ {address}'"


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
