"""Corpora: each is a list of numbered sources of documents, in a fixed order.

A source (a file, a group of small files, a shard of a hub dataset) can be read from any document
on, so that preparation resumes where it was interrupted. The running interpreter's standard library
is one too: some 12 MB of real text on every machine, without a download.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from lehr_trainer.configs.corpus import ChatCorpus, FilesCorpus, SingleCorpus, StdlibCorpus
from lehr_trainer.data.checks import resolve_files
from lehr_trainer.errors import BadData


class CorpusReader(ABC):
    """An open corpus. Reading the same source twice gives the same documents."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return what determines the text: equal identities may share prepared shards."""

    def description(self) -> dict[str, Any]:
        """Describe for the manifest where the text came from."""
        return self.identity()

    @abstractmethod
    def sources(self) -> int:
        """Return the number of sources."""

    @abstractmethod
    def documents(self, source: int, skip: int) -> Iterator[str]:
        """Yield the documents of one source after the first ``skip``.

        Raises:
            BadData: something in it cannot be read as text.
        """

    def source_name(self, source: int, document: int) -> str:
        """Return the name under which a document's loss is reported; empty: under none."""
        del source, document
        return ""

    def size(self, source: int) -> int | None:
        """Return the bytes of a source, for progress; None if not known beforehand."""
        del source
        return None


def open_corpus(corpus: SingleCorpus) -> CorpusReader:
    """Open the corpus that the config names.

    Raises:
        BadData: a path does not exist or holds nothing to read.
    """
    if isinstance(corpus, StdlibCorpus):
        return StdlibReader()
    if isinstance(corpus, FilesCorpus):
        from lehr_trainer.data.files import FilesReader

        return FilesReader(corpus, resolve_files(corpus))
    if isinstance(corpus, ChatCorpus):
        from lehr_trainer.data.chats import ChatReader

        return ChatReader(corpus, resolve_files(corpus))
    from lehr_trainer.data.files import HubReader

    return HubReader(corpus)


_SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
)
_SKIPPED_PREFIXES = ("_sysconfigdata", "config-")
"""Modules that each build writes, so they differ between machines of one version."""


_PART_CHARACTERS = 16_384
"""Documents are held out whole: if each were a whole module, 1 % would be a handful."""


class StdlibReader(CorpusReader):
    """One source: the modules by path, long ones split, then the docstrings of built-in ones."""

    @cached_property
    def _documents(self) -> list[str]:
        root = Path(sysconfig.get_path("stdlib"))
        texts = []
        for path in _modules(root):
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                # A few modules declare an older encoding, which the compiler honours.
                text = path.read_text(encoding="latin-1")
            texts += _parts(text)
        if not texts:
            raise BadData(
                f"the standard library's sources are not at {root} (this Python ships without "
                "them); use data.corpus.kind text with paths of your own"
            )
        built_in = sorted({*sys.builtin_module_names, "builtins"} - {"__main__"})
        return texts + [doc for doc in map(_docstrings, built_in) if doc]

    def identity(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        for text in self._documents:
            digest.update(hashlib.sha256(text.encode()).digest())
        return {"kind": "stdlib", "sha256": digest.hexdigest()}

    def description(self) -> dict[str, Any]:
        version = f"{sys.implementation.name} {sysconfig.get_python_version()}"
        return {**self.identity(), "python": version}

    def sources(self) -> int:
        return 1

    def documents(self, source: int, skip: int) -> Iterator[str]:
        del source
        yield from self._documents[skip:]

    def size(self, source: int) -> int | None:
        del source
        return sum(len(text) for text in self._documents)


def _parts(text: str) -> list[str]:
    """Split a long module between top-level definitions (two blank lines)."""
    parts: list[str] = []
    size = _PART_CHARACTERS
    for piece in text.split("\n\n\n"):
        if size >= _PART_CHARACTERS:
            parts.append(piece)
            size = len(piece)
        else:
            parts[-1] += "\n\n\n" + piece
            size += len(piece)
    return [part for part in parts if part.strip()]


def _modules(root: Path) -> list[Path]:
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [
            name
            for name in folders
            if name not in _SKIPPED_FOLDERS and not name.startswith(_SKIPPED_PREFIXES)
        ]
        found += [
            Path(folder, name)
            for name in files
            if name.endswith(".py") and not name.startswith(_SKIPPED_PREFIXES)
        ]
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def _docstrings(module: str) -> str:
    """Write the documented names of a built-in module as text."""
    parts = []
    loaded = importlib.import_module(module)
    for name, member in sorted(vars(loaded).items()):
        if not (inspect.isbuiltin(member) or inspect.isclass(member)):
            continue
        if module == "builtins" and member.__module__ != module:
            continue  # Added there by a debugger or a shell.
        if doc := inspect.getdoc(member):
            parts.append(f"{module}.{name}\n\n{doc}\n")
        if inspect.isclass(member):
            for inner, method in sorted(vars(member).items()):
                own = getattr(method, "__doc__", None)
                if not inner.startswith("_") and isinstance(own, str):
                    parts.append(f"{module}.{name}.{inner}\n\n{inspect.cleandoc(own)}\n")
    return "\n".join(parts)
