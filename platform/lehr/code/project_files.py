"""Files of a project: what a script needs, what is left out, and what looks like a secret."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from lehr.base.formats import counted, size
from lehr.code.archive import MOST_FILES
from lehr.code.project_copy import described
from lehr.errors import SpecError, SpecProblem
from lehr.specs.program import Code, from_root

_TIMEOUT_S = 60
NEVER = (
    *(".git/", ".hg/", ".svn/", "__pycache__/", "*.pyc", ".venv/", "venv/", "node_modules/"),
    *(".mypy_cache/", ".ruff_cache/", ".pytest_cache/", ".ipynb_checkpoints/", "*.egg-info/"),
    *(".DS_Store", "wandb/", ".lehr/"),
)
"""Left out of every project, as if .gitignore had these lines."""


def script_files(root: Path, script: str) -> tuple[list[str], str]:
    """Return the paths below ``root`` that a script needs, and in words where they come from.

    They are what git tracks there, and the script with the modules that it imports from ``root`` or
    from its own folder, directly or not. Nothing is executed.
    """
    needed = imported(root, script)
    tracked = _tracked(root)
    if not tracked:
        return needed, "the script and the modules that it imports from its folder"
    return sorted({*tracked, *needed}), "what git tracks, the script, and what it imports"


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


def imported(root: Path, script: str) -> list[str]:
    """Return a script, and the modules that it imports from ``root`` or its folder, sorted."""
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


_SHOWN = 4
_MOST = 10_000  # Folders and files that are looked at, at most.
_HIDDEN_AND_SPECS = (".*", "/*.yaml", "/*.yml")


def data_files(root: Path, names: Sequence[str], sent: Collection[str]) -> dict[str, str]:
    """Return what the spec's data are now: number, size and digest of their files, by path.

    Raises:
        SpecError: some are missing or cannot be read.
    """
    try:
        return {name: described(str(root), name, sent) for name in names}
    except OSError as error:
        message = f"trainer.data: {error.filename} cannot be read: {error.strerror}."
        hint = f"Name files or folders below code.root, {root}."
        raise SpecError([SpecProblem("trainer.data", message, hint)]) from None


def left_out(code: Code, root: Path, there: Collection[str], taken: str | None) -> list[str]:
    """Return what else is in the uppermost folder, the largest first: ``data/ (1.1 GB, 3 files)``.

    What the spec itself leaves out, hidden files and specs do not count, nor modules that the
    script does not import. With more than 10,000 files, the sizes are of those that were counted.

    Args:
        code: what the spec sends.
        root: the folder of the project.
        there: paths of files that are sent, and of data.
        taken: None if ``code.include`` names what is sent.
    """
    from pathspec import GitIgnoreSpec

    excluded = GitIgnoreSpec.from_lines(
        [*_HIDDEN_AND_SPECS, *NEVER, *code.exclude, *([] if taken is None else ["*.py"])]
    )
    included = from_root(code.include if taken is None else ["."])
    sizes: dict[str, list[int]] = defaultdict(list)
    left = _MOST
    for folder, folders, files in os.walk(root, followlinks=True):
        inside = os.path.relpath(folder, root).removeprefix(".").rstrip("/")
        inside += "/" * bool(inside)
        for one in [*folders]:
            if f"{inside}{one}" in there or excluded.match_file(f"{inside}{one}/"):
                folders.remove(one)
        for path in (inside + one for one in files[:left]):
            other = path not in there and included.match_file(path)
            if other and not excluded.match_file(path) and (root / path).is_file():
                first, slash, _ = path.partition("/")
                sizes[first + slash].append((root / path).stat().st_size)
        left -= len(files) + 1
        if left < 0:
            break
    least = "at least " * (left < 0)
    return [
        f"{name} ({least}{size(sum(each))}, {counted(len(each), 'file')})"
        for name, each in sorted(sizes.items(), key=lambda item: -sum(item[1]))
    ]


def notice(found: Sequence[str], taken: str | None) -> str:
    """Return in words what is left out, why, and how to use it."""
    if taken is None:
        why = "git ignores them"
    else:
        why = "git does not track them" if "git" in taken else "the script does not import them"
    more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    listed, name = ", ".join([*found[:_SHOWN], *more]), found[0].partition(" (")[0].rstrip("/")
    how = f"To use it: trainer.data: [{name}]"
    if "import" in why:
        how += " links it, or code.include: [.] sends all"
    return f"left out, because {why}: {listed}. {how}"


_NAMES = {
    "a file of environment variables": (".env", ".env.*", "*.env"),
    "a private key": ("*.pem", "*.key", "*.p12", "*.pfx", "id_rsa", "id_ed25519", "id_ecdsa"),
    "a file of passwords": (".netrc", "_netrc", ".pypirc", ".npmrc", ".git-credentials", ".pgpass"),
    "credentials of a cloud": ("credentials", "credentials.json", "kubeconfig", "*.kubeconfig"),
}
_HARMLESS = (".env.example", ".env.sample", ".env.template")
_FORMS = {
    "a private key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----",
    "a key of AWS": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "a token of Hugging Face": r"\bhf_[A-Za-z0-9]{30,}\b",
    "a token of GitHub": r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{40,})\b",
    "a key of W&B": r"(?i:wandb\w{0,20}\W{1,10}(?:[0-9a-f]{40}\b|wandb_v\d+_\w{20,}))",
    "an API key": r"\bsk-[A-Za-z0-9_-]{32,}",
    "a token of Slack": r"\bxox[abprs]-[A-Za-z0-9-]{20,}",
}
"""Regular expressions of secrets whose form is known."""
_CONTENT = {what: re.compile(form.encode()) for what, form in _FORMS.items()}
_READ = 1 << 20  # Bytes of a file that are searched: secrets are in small text files.


def likely_secret(path: Path) -> str | None:
    """Return what a file probably holds, without its value; None if nothing is suspicious."""
    name = path.name
    if name not in _HARMLESS:
        for what, patterns in _NAMES.items():
            if any(fnmatch(name, pattern) for pattern in patterns):
                return what
    with path.open("rb") as file:
        head = file.read(_READ)
    if b"\0" in head[:4096]:
        return None
    for what, expression in _CONTENT.items():
        match = expression.search(head)
        if match is not None:
            line = 1 + head[: match.start()].count(b"\n")
            return f"{what} in line {line}"
    return None
