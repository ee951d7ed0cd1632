"""The files that belong to a script whose spec includes none."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from lehr.code.archive import MOST_FILES

_TIMEOUT_S = 60


def script_files(root: Path, script: str) -> tuple[list[str], str]:
    """Return the paths below ``root`` that a script needs, and in words where they come from.

    They are what git tracks there, and the script with the modules that it imports from ``root`` or
    from its own folder, directly or not. Nothing is executed.
    """
    imported = _imported(root, script)
    tracked = _tracked(root)
    if not tracked:
        return imported, "the script and the modules that it imports from its folder"
    return sorted({*tracked, *imported}), "what git tracks, the script, and what it imports"


def _tracked(root: Path) -> list[str]:
    """Return what git tracks below ``root``; nothing without git."""
    # A project's own settings must not start a program.
    command = ["git", "-c", "core.fsmonitor=false", "ls-files", "-z", "--recurse-submodules"]
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, check=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [name.decode(errors="surrogateescape") for name in done.stdout.split(b"\0") if name]


def _imported(root: Path, script: str) -> list[str]:
    files, waiting = {script}, [script]
    while waiting and len(files) < MOST_FILES:
        name = waiting.pop()
        try:
            tree = ast.parse((root / name).read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue  # The run will show what is wrong with it.
        for folder, module in _modules(tree, PurePosixPath(name), PurePosixPath(script)):
            path = folder
            for part in module.split("."):
                for file in (path / f"{part}.py", path / part / "__init__.py"):
                    if file.as_posix() not in files and (root / file).is_file():
                        files.add(file.as_posix())
                        waiting.append(file.as_posix())
                path /= part
    return sorted(files)


def _modules(
    tree: ast.AST, file: PurePosixPath, script: PurePosixPath
) -> Iterator[tuple[PurePosixPath, str]]:
    """Yield each module that may be imported, and the folder in which its name is looked up."""
    everywhere = (script.parent, PurePosixPath())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((folder, one.name) for one in node.names for folder in everywhere)
        elif isinstance(node, ast.ImportFrom):
            folders = (file.parents[min(node.level, len(file.parents)) - 1],)
            for one in node.names:  # It may be a module itself.
                module = f"{node.module}.{one.name}" if node.module else one.name
                yield from ((folder, module) for folder in (folders if node.level else everywhere))
