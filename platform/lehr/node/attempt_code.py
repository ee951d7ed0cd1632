"""The code that an attempt trains with, on its node: the capsule, and the project's environment.

Standard library only.
"""

from __future__ import annotations

import os
import re
from typing import Any

from lehr.base import procfs
from lehr.code import code_cache, project_copy
from lehr.node.attempt_dir import AttemptDir


def is_here(launch: dict[str, Any], entry: AttemptDir) -> bool:
    """Return whether the attempt needs no capsule, or the node has it unpacked."""
    digest = launch.get("code")
    return not digest or code_cache.ready(code_cache.node_folder(entry.path), digest)


def other_protocol(launch: dict[str, Any], entry: AttemptDir) -> tuple[str, str] | None:
    """Return the failure if the capsule's trainer is one that this Lehr cannot drive."""
    digest = launch.get("code")
    if not digest:
        return None
    where = code_cache.folder(code_cache.node_folder(entry.path), digest)
    try:
        with open(os.path.join(where, FILE), encoding="utf-8", errors="replace") as file:
            text = file.read(LONGEST)
    except OSError:
        text = ""
    found = problem(text, tuple(launch["protocols"]))
    return None if found is None else ("other_protocol", found)


def environment_key(launch: dict[str, Any], entry: AttemptDir) -> str | None:
    """Return the key of the environment that the project's file names; None if it names none.

    The key is written into the attempt's entry, so that nobody removes the environment as unused.

    Raises:
        OSError: the file cannot be read.
    """
    name = launch.get("environment")
    if not name:
        return None
    node = code_cache.node_folder(entry.path)
    project = os.path.join(code_cache.folder(node, launch["code"]), code_cache.PROJECT)
    key = code_cache.environment_key(project, name)
    procfs.write_atomically(entry.file(code_cache.USED), key.encode())
    return key


def variables(launch: dict[str, Any], entry: AttemptDir, python: str | None) -> dict[str, str]:
    """Return the variables by which a training imports its capsule alone.

    ``python``: the interpreter of the environment; None: that of the node.
    """
    digest = launch.get("code")
    if not digest:
        return {}
    node = code_cache.node_folder(entry.path)
    if launch.get("program"):
        # The supervisor is of the platform; it gives the capsule to the program alone.
        found = {"LEHR_CODE_FOLDER": code_cache.folder(node, digest), "LEHR_CODE": digest}
        return found | ({"LEHR_PYTHON": python} if python else {})
    return {"PYTHONPATH": code_cache.python_path(node, digest), "LEHR_CODE": digest}


def tidy(launch: dict[str, Any]) -> None:
    """Remove drafts of checkpoints that an ended attempt has left, and what it has left unchanged
    in its copy of the project.

    Nodes of a gang share the copy, and another one may still train: then it stays.
    """
    import contextlib
    import glob
    import shutil

    where = str(launch["attempt_dir"])
    if launch["gang"].get("node_rank", 0) == 0:
        drafts = os.path.join(glob.escape(where), "checkpoints")
        for old in glob.glob(os.path.join(drafts, "*.old")):
            with contextlib.suppress(OSError):  # Its replacement is in place.
                os.rename(old, old.removesuffix(".old"))
        for ending in ("*.tmp", "*.old"):
            for draft in glob.glob(os.path.join(drafts, ending)):
                shutil.rmtree(draft, ignore_errors=True)
    if launch.get("program") and launch["gang"]["nodes"] == 1:
        index = os.path.join(where, project_copy.INDEX)
        project_copy.remove_unchanged(os.path.join(where, code_cache.WORK), index)


FILE = "trainer/lehr_trainer/contract/protocol.py"
"""In the capsule. Capsules of before there were versions lack it, and have version 1."""
LONGEST = 1 << 16  # Bytes of it that are read: it may be anybody's.
_VERSION = re.compile(r"^VERSION = (\d{1,9})$", re.MULTILINE)


def version_of(text: str) -> int:
    found = _VERSION.search(text)
    return int(found.group(1)) if found else 1


def problem(text: str, driven: tuple[int, int]) -> str | None:
    """Describe why the trainer cannot be driven; None if it can.

    ``text`` is of the capsule's file; ``driven`` the oldest and newest version that can be.
    """
    version, (oldest, newest) = version_of(text), driven
    if oldest <= version <= newest:
        return None
    known = f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}"
    advice = (
        "Train it with the Lehr that recorded it, or fork it with --code current"
        if version < oldest
        else "Upgrade Lehr, or fork it with --code current"
    )
    return (
        f"the trainer in the run's code has version {version} of the protocol between trainer and "
        f"platform, but this Lehr drives {known}. {advice}"
    )
