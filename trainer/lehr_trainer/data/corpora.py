"""Corpora: each is a list of numbered sources of documents, in a fixed order.

A source (a file, a group of small files, a shard of a hub dataset) can be read from any document
on, so that preparation resumes where it was interrupted.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from lehr_trainer.configs.train import FilesCorpus, SingleCorpus, StdlibCorpus
from lehr_trainer.data.checks import resolve_files


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
        from lehr_trainer.data.stdlib import StdlibReader

        return StdlibReader()
    if isinstance(corpus, FilesCorpus):
        from lehr_trainer.data.files import FilesReader

        return FilesReader(corpus, resolve_files(corpus))
    from lehr_trainer.data.hub import HubReader

    return HubReader(corpus)


def identity_digest(identity: dict[str, Any]) -> str:
    """Return a key for ``identity``, the same in every process."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
