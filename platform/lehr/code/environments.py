"""Environments of a node: what projects' requirements.txt or uv.lock name, built once by uv.

Standard library only. ::

    <node folder>/environments/<key>/        a virtual environment
    <node folder>/environments/<key>.json    written last: the environment is complete
    <node folder>/environments/<key>.lock    held (flock) by the one that builds it

The key is the digest of the file, the interpreter and the way to build. The environment is built
where it stays: scripts in it have its path in their first line.
"""

import hashlib
import json
import os
import sys

from lehr.base import procfs

FORMAT = 1
"""Version of how an environment is built; another one has other keys."""
LOCK_FILE = "uv.lock"
PROJECT_FILE = "pyproject.toml"
"""Belongs to a uv.lock."""
USED = "environment"
"""File of an attempt's folder with the key of the environment that it trains in."""


def needed(name: str) -> list[str]:
    """Return the files of the project that describe an environment."""
    if name.rpartition("/")[2] != LOCK_FILE:
        return [name]
    return [name, name.removesuffix(LOCK_FILE) + PROJECT_FILE]


def key(project: str, name: str, python: str = sys.executable) -> str:
    """Return the key of the environment that the project's file ``name`` describes.

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


def base(node: str) -> str:
    return os.path.join(node, "environments")


def folder(node: str, name: str) -> str:
    return os.path.join(base(node), name)


def python(node: str, name: str) -> str:
    """Return the interpreter of an environment."""
    return os.path.join(folder(node, name), "bin", "python")


def ready(node: str, name: str) -> bool:
    """Return whether the environment is complete; if so, mark it as used now."""
    mark = f"{folder(node, name)}.json"
    if procfs.read_json(mark) is None or not os.path.exists(python(node, name)):
        return False
    os.utime(mark)
    return True
