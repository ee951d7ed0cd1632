"""Unpacked capsules and built environments of a node. Standard library only.

::

    <node folder>/code/<digest>/         trainer/ and project/, unpacked once; files are read-only
    <node folder>/code/<digest>.index    sizes and times of its files as they were unpacked
    <node folder>/environments/<key>/        a virtual environment, built once by uv
    <node folder>/environments/<key>.json    written last: the environment is complete
    <node folder>/environments/<key>.lock    held (flock) by the one that builds it

Bytecode is in the capsule's own folder, so two versions of a file never share it. A program gets a
copy of the project (`project_copy.py`). A
folder whose files are not those of its index is set aside, and the capsule is fetched again. So is
one that was unpacked before the machine started: its last files may not have reached the disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys

from lehr.base import procfs

TRAINER, PROJECT = "trainer", "project"
BYTECODE = "__pycache__"
WORK = "work"  # Folder of an attempt with a program's own copy of its project.


def node_folder(entry: str) -> str:
    """Return the node's folder that holds the entry of an attempt."""
    return os.path.dirname(os.path.dirname(entry))


def folder(node: str, digest: str) -> str:
    return os.path.join(node, "code", digest)


def ready(node: str, digest: str) -> bool:
    """Return whether the capsule is unpacked here, with all its files as they were unpacked."""
    where = folder(node, digest)
    files = index(node, digest)
    if files is None or files != state_of(where):
        return False
    os.utime(f"{where}.index")
    return True


def index(node: str, digest: str) -> dict[str, list[int]] | None:
    """Return the files of a capsule as they were unpacked since the machine started, else None."""
    found = procfs.read_json(f"{folder(node, digest)}.index")
    if not isinstance(found, dict) or found.get("boot_id") != procfs.boot_id():
        return None
    files: dict[str, list[int]] = found["files"]
    return files


def write_index(node: str, digest: str, files: dict[str, list[int]]) -> None:
    """Declare the capsule complete."""
    content = {"boot_id": procfs.boot_id(), "files": files}
    procfs.write_json(f"{folder(node, digest)}.index", content)


def python_path(node: str, digest: str) -> str:
    """Return the folders that a training imports from, before all installed packages."""
    where = folder(node, digest)
    return os.pathsep.join([os.path.join(where, TRAINER), os.path.join(where, PROJECT)])


def state_of(where: str) -> dict[str, list[int]]:
    """Return size and time of each file but bytecode, which Python writes when it imports one."""
    found: dict[str, list[int]] = {}
    pending = [where]
    above = len(where) + 1
    while pending:
        here = pending.pop()
        try:
            entries = list(os.scandir(here))
        except OSError:
            return {}
        for entry in entries:
            if entry.name == BYTECODE:
                continue
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
            else:
                status = entry.stat(follow_symlinks=False)
                found[entry.path[above:]] = [status.st_size, status.st_mtime_ns]
    return found


FORMAT = 1  # Version of how an environment is built; another one has other keys.
LOCK_FILE = "uv.lock"
PROJECT_FILE = "pyproject.toml"  # Belongs to a uv.lock.
USED = "environment"
"""File of an attempt's folder with the key of the environment that it trains in."""


def needed(name: str) -> list[str]:
    """Return the files of the project that describe an environment."""
    if name.rpartition("/")[2] != LOCK_FILE:
        return [name]
    return [name, name.removesuffix(LOCK_FILE) + PROJECT_FILE]


def environment_key(project: str, name: str, python: str = sys.executable) -> str:
    """Return the key of the environment that the project's file ``name`` describes: the digest of
    the file, the interpreter and the way to build.

    Raises:
        OSError: the project lacks the file.
    """
    digest = hashlib.sha256()
    for file in needed(name):
        with open(os.path.join(project, file), "rb") as content:
            digest.update(hashlib.sha256(content.read()).digest())
    kind = LOCK_FILE if len(needed(name)) > 1 else "requirements"
    digest.update(json.dumps([FORMAT, kind, python, sys.version]).encode())
    return digest.hexdigest()


def environments(node: str) -> str:
    return os.path.join(node, "environments")


def environment_folder(node: str, key: str) -> str:
    return os.path.join(environments(node), key)


def environment_python(node: str, key: str) -> str:
    return os.path.join(environment_folder(node, key), "bin", "python")


def environment_ready(node: str, key: str) -> bool:
    """Return whether the environment is complete; if so, mark it as used now."""
    mark = f"{environment_folder(node, key)}.json"
    if procfs.read_json(mark) is None or not os.path.exists(environment_python(node, key)):
        return False
    os.utime(mark)
    return True
