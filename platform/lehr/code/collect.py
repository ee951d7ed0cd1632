"""Collect the files of a capsule: Lehr's trainer as installed, and the project around the spec."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from lehr.base import home
from lehr.code.archive import MOST_FILES, PROJECT, TRAINER, BadArchive, SourceFile, check_name
from lehr.code.code_cache import LOCK_FILE, needed
from lehr.code.project_files import NEVER, likely_secret, script_files
from lehr.errors import SpecError, SpecProblem, did_you_mean
from lehr.specs.program import Code, compiled, from_root
from lehr_trainer.contract import layout

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

PACKAGES = ("lehr_trainer", "lehr_log")  # Lehr's packages that run in a training process.
_MARKS = ("lehr.db", layout.RUNS_MARKER)
"""Files of a home of Lehr, and of a folder of runs: neither is ever part of a project."""
_OTHER_FILE = re.compile(r"\s*(-r|-c|-e|--requirement|--constraint|--editable|\.{0,2}/|file:)")
_SHOWN = 5
_TRAINER_MB = 20
"""Size of a trainer that is sent whatever code.limit_mb says. Lehr's own has about one."""
_MOST_LOOKED_AT = 1_000_000


@dataclass(frozen=True)
class Project:
    """The files of a project that belong to a capsule."""

    sources: list[SourceFile]
    size: int
    left_out: list[str]  # Links that lead out of the project, and other things that are not files.
    taken: str | None = None
    """Where the files come from in words, if ``include`` does not name them."""


def trainer_sources() -> list[SourceFile]:
    """Return the files of Lehr's trainer as it is installed or checked out here."""
    return [source for name in PACKAGES for source in _package(name)]


def _package(name: str) -> Iterator[SourceFile]:
    found = importlib.util.find_spec(name)
    assert found is not None
    assert found.submodule_search_locations is not None
    for root in found.submodule_search_locations:
        for folder, folders, files in os.walk(root):
            folders[:] = sorted(f for f in folders if f != "__pycache__")
            inside = os.path.relpath(folder, root)
            for file in files:
                if not file.endswith(".pyc") and os.path.isfile(f"{folder}/{file}"):  # noqa: PTH113
                    path = os.path.normpath(f"{TRAINER}/{name}/{inside}/{file}")
                    yield SourceFile(path, f"{folder}/{file}", False)


def refuse_unfit_trainer(sources: Sequence[SourceFile], code: Code) -> None:
    """Raise SpecError if the trainer holds secrets or is too large: it may be somebody's checkout.

    ``sources`` are those of ``trainer_sources``.
    """
    if not sources:
        return
    folder = _folder_of(sources[0])
    where = f"the trainer that is sent with the run, {folder}"
    found = _likely_secrets(sources, code.send_secrets)
    if found:
        first = found[0][0]
        raise _problem(
            "code",
            f"these files of {where}, look like secrets: {_listed(found)}. Nothing was sent.",
            f"Move them out of it. Or send them: code.send_secrets: [{first}]",
        )
    limit = max(code.limit_mb, _TRAINER_MB) * 1_000_000
    sizes = [(os.stat(source.path).st_size, source.name) for source in sources]  # noqa: PTH116
    if sum(size for size, _ in sizes) > limit or len(sizes) > MOST_FILES:
        raise _problem(
            "code",
            f"{where}, {_too_much(sizes, limit)}",
            "Move data and checkpoints out of it. Or raise code.limit_mb.",
        )


def _folder_of(source: SourceFile) -> str:
    """Return the folder of the packages that a file of the trainer comes from."""
    return source.path.removesuffix(source.name.removeprefix(f"{TRAINER}/")).rstrip("/")


def project_sources(code: Code, folder: Path, script: str | None = None) -> Project:
    """Return the files of the project that ``code`` includes; relative roots begin at ``folder``.

    ``script``: if ``code`` includes nothing, what belongs to this script.

    Raises:
        SpecError: there is no such folder, nothing matches, a file cannot be read or looks like a
            secret, or it is too large.
    """
    if not code.sends_files and script is None:
        return Project([], 0, [])
    root = _root(folder, code.root)
    if _is_of_lehr(root):
        raise _problem("code.root", f"{root} is a folder of Lehr itself, not of a project.")
    names, taken = (None, None) if code.include or script is None else script_files(root, script)
    tree = _Tree(root, code, names)
    try:
        found = replace(tree.collect(), taken=taken)
    except BadArchive as error:
        raise _problem("code.include", f"{error}.", "Leave it out: code.exclude") from None
    if code.environment is not None:
        refuse_missing_environment(code.environment, [source.name for source in found.sources])
        _refuse_other_files(code.environment, root)
    tree.refuse_unmatched()
    limit = code.limit_mb * 1_000_000
    if found.size > limit or len(found.sources) > MOST_FILES:
        raise _too_large(found, limit)
    _refuse_secrets(found.sources, code.send_secrets)
    return found


def _root(folder: Path, given: str) -> Path:
    try:
        root = (folder / given).resolve()
        is_folder = root.is_dir()
    except OSError as error:
        raise _problem("code.root", f"{given[:200]} cannot be opened: {error.strerror}.") from None
    except (ValueError, RuntimeError):  # It contains a NUL, or links in a circle.
        raise _problem("code.root", f"{given[:200]!r} is not the path of a folder.") from None
    if not is_folder:
        raise _problem("code.root", f"there is no folder {root}.")
    return root


def refuse_missing_script(script: str, names: Sequence[str]) -> None:
    """Raise SpecError unless the script is among these files of a capsule."""
    if f"{PROJECT}/{script}" in names:
        return
    there = [name.partition("/")[2] for name in names if name.startswith(f"{PROJECT}/")]
    scripts = [name for name in there if name.endswith(".py")]
    hint = did_you_mean(script, scripts) or f"It has: {', '.join(scripts[:10]) or 'no script'}."
    raise _problem("trainer.script", f"the code has no file {script}.", hint)


def refuse_missing_parts(parts: Mapping[str, str], names: Sequence[str]) -> None:
    """Raise SpecError unless the modules of replaced parts are among these files of a capsule."""
    there = [name.partition("/")[2] for name in names if name.startswith(f"{PROJECT}/")]
    for part, given in parts.items():
        path = given.partition(":")[0].replace(".", "/")
        if f"{path}.py" in there or f"{path}/__init__.py" in there:
            continue
        scripts = [name for name in there if name.endswith(".py")]
        hint = f"It has: {', '.join(scripts[:10]) or 'no module'}."
        raise _problem(f"train.parts.{part}", f"the code has no module {path}.py.", hint)


def refuse_missing_environment(environment: str, names: Sequence[str]) -> None:
    """Raise SpecError unless the files of the environment are among these files of a capsule."""
    for name in needed(environment):
        if f"{PROJECT}/{name}" not in names:
            raise _problem("code.environment", f"the code has no file {name}.")


def _refuse_other_files(environment: str, root: Path) -> None:
    """Raise SpecError if a requirements.txt names files: the environment is known by its own."""
    if environment.endswith(LOCK_FILE):
        return
    for line in (root / environment).read_text("utf-8", "replace").splitlines():
        if _OTHER_FILE.match(line):
            raise _problem(
                "code.environment",
                f"{environment} names another file or folder: {line.strip()[:80]!r}. An "
                "environment is built from this one file.",
                "Write the packages into it, e.g. with: uv pip compile",
            )


class _Tree:
    def __init__(self, root: Path, code: Code, names: Sequence[str] | None = None) -> None:
        """``names``: the files that belong to it by name, in place of patterns."""
        from pathspec import GitIgnoreSpec

        self._root, self._patterns = root, code.include
        # Included by name, whatever the patterns and .gitignore say.
        self._environment = _with_folders(needed(code.environment) if code.environment else [])
        self._names = None if names is None else _with_folders(names)
        self._include = from_root(code.include)
        self._others: list[str] = []  # Files that no pattern includes.
        self._exclude = GitIgnoreSpec.from_lines([*NEVER, *code.exclude])
        self._ignored: dict[Path, GitIgnoreSpec] = {}
        self._git = next((p for p in (root, *root.parents) if (p / ".git").exists()), root)
        self._sources: list[SourceFile] = []
        self._left_out: list[str] = []
        self._size = 0
        self._looked_at = 0

    def collect(self) -> Project:
        self._folder(self._root, "")
        return Project(sorted(self._sources), self._size, self._left_out)

    def _folder(self, folder: Path, inside: str) -> None:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            raise _unreadable(inside or str(folder), error) from None
        for entry in entries:
            self._looked_at += 1
            if self._looked_at > _MOST_LOOKED_AT:
                message = f"{self._root} has more than {_MOST_LOOKED_AT:,} files."
                raise _problem("code.root", message, "Name a smaller folder.")
            name = f"{inside}{entry.name}"
            is_folder = entry.is_dir(follow_symlinks=False)
            path = f"{name}/" if is_folder else name
            ours = path in self._environment
            named = self._names is not None and path in self._names
            if not ours and (
                self._exclude.match_file(path)
                or (self._names is not None and not named)
                or (not named and self._is_ignored(Path(entry.path), is_folder))
            ):
                continue
            if is_folder:
                if not _is_of_lehr(Path(entry.path)):
                    self._folder(Path(entry.path), path)
            elif ours or named or self._include.match_file(name):
                self._file(entry, name)
            else:
                self._others.append(name)

    def refuse_unmatched(self) -> None:
        """Raise SpecError if a pattern of ``include`` matches no file, and name the nearest one."""
        there = [source.name.partition("/")[2] for source in self._sources]
        for pattern in self._patterns:
            if pattern.startswith("!") or any(map(from_root([pattern]).match_file, there)):
                continue
            deeper = from_root([f"**/{pattern}"])
            near = next(filter(deeper.match_file, [*self._others, *there]), None)
            hint = f"{near} matches **/{pattern}: a pattern begins at the project's root."
            if near is None:
                names = sorted(entry.name for entry in self._root.iterdir())
                hint = (
                    did_you_mean(pattern.rstrip("/"), [*names, *self._others])
                    or f"It has: {', '.join(names[:10])}"
                )
            message = f"no file of {self._root} matches {pattern}."
            raise _problem("code.include", message, hint)

    def _file(self, entry: os.DirEntry[str], name: str) -> None:
        try:
            if entry.is_symlink() and not Path(entry.path).resolve().is_relative_to(self._root):
                self._left_out.append(f"{name}: a link out of the project")
                return
            status = entry.stat()
        except (OSError, RuntimeError):
            self._left_out.append(f"{name}: a link to nothing")
            return
        if not stat.S_ISREG(status.st_mode):
            what = "a link to a folder" if stat.S_ISDIR(status.st_mode) else "not a file"
            self._left_out.append(f"{name}: {what}")
            return
        if not os.access(entry.path, os.R_OK):
            raise _unreadable(name, PermissionError(13, "Permission denied"))
        check_name(f"{PROJECT}/{name}")
        executable = bool(status.st_mode & 0o100)
        self._sources.append(SourceFile(f"{PROJECT}/{name}", entry.path, executable))
        self._size += status.st_size

    def _is_ignored(self, path: Path, is_folder: bool) -> bool:
        """Return whether a .gitignore of its folder, or of one above it, leaves it out."""
        from pathspec import GitIgnoreSpec

        verdict = False
        folders = [self._git]
        for part in path.parent.relative_to(self._git).parts:
            folders.append(folders[-1] / part)
        for folder in folders:
            if folder not in self._ignored:
                file = folder / ".gitignore"
                self._ignored[folder] = _rules(file) if file.is_file() else GitIgnoreSpec([])
            rules = self._ignored[folder]
            if len(rules):
                relative = path.relative_to(folder).as_posix() + ("/" if is_folder else "")
                answer = rules.check_file(relative).include
                verdict = verdict if answer is None else answer
        return verdict


def _rules(file: Path) -> GitIgnoreSpec:
    """Return the rules of a .gitignore without lines that are no pattern; git skips them, too."""
    from pathspec import GitIgnoreSpec

    try:
        lines = file.read_text("utf-8", "replace").splitlines()
    except OSError as error:
        raise _unreadable(str(file), error) from None
    found = compiled(lines)
    if found is None:
        found = compiled([line for line in lines if compiled([line]) is not None])
    return found if found is not None else GitIgnoreSpec([])


def _is_of_lehr(folder: Path) -> bool:
    """Return whether it is a home of Lehr or its folder of runs, with other runs' code in it."""
    if any(os.path.exists(folder / name) for name in _MARKS):  # noqa: PTH110 - it may be closed
        return True
    with contextlib.suppress(OSError):
        return folder.samefile(home.home())
    return False


def _with_folders(names: Iterable[str]) -> set[str]:
    """Return the names, and the folders that they are in, which end in a slash."""
    folders = {f"{folder}/" for name in names for folder in PurePosixPath(name).parents}
    return {*names, *folders}


def _likely_secrets(sources: Sequence[SourceFile], allowed: Sequence[str]) -> list[tuple[str, str]]:
    """Return the names of files that look like secrets, each with what it probably holds."""
    from pathspec import GitIgnoreSpec

    sent = GitIgnoreSpec.from_lines(allowed)
    found = []
    for source in sources:
        name = source.name.partition("/")[2]
        if sent.match_file(name):
            continue
        try:
            what = likely_secret(Path(source.path))
        except OSError as error:
            raise _unreadable(name, error) from None
        if what is not None:
            found.append((name, what))
    return found


def _listed(found: Sequence[tuple[str, str]]) -> str:
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(f"{name} ({what})" for name, what in found[:_SHOWN]) + more


def _refuse_secrets(sources: Sequence[SourceFile], allowed: Sequence[str]) -> None:
    found = _likely_secrets(sources, allowed)
    if found:
        first = found[0][0]
        raise _problem(
            "code.include",
            f"these files look like secrets: {_listed(found)}. Nothing was sent.",
            f"Leave them out: code.exclude: [{first}]   Or send them: code.send_secrets: [{first}]",
        )


def _too_large(found: Project, limit: int) -> SpecError:
    sizes = [(os.stat(source.path).st_size, source.name) for source in found.sources]  # noqa: PTH116
    hint = "Leave data and checkpoints out: code.exclude. Or raise code.limit_mb."
    return _problem("code.include", f"the code {_too_much(sizes, limit)}", hint)


def _too_much(sizes: Sequence[tuple[int, str]], limit: int) -> str:
    """Return what is too much of files with these sizes and names."""
    listed = ", ".join(
        f"{name.partition('/')[2]} ({size / 1e6:,.1f} MB)"
        for size, name in sorted(sizes, reverse=True)[:_SHOWN]
    )
    total = sum(size for size, _ in sizes)
    return (
        f"has {len(sizes):,} files of {total / 1e6:,.0f} MB together; the limit is "
        f"{limit / 1e6:,.0f} MB and {MOST_FILES:,} files. The largest: {listed}."
    )


def _unreadable(name: str, error: OSError) -> SpecError:
    return _problem(
        "code.include", f"{name} cannot be read: {error.strerror}.", f"code.exclude: [{name}]"
    )


def _problem(path: str, message: str, hint: str | None = None) -> SpecError:
    return SpecError([SpecProblem.of(path, message, hint)])
