"""A corpus that is away: its disk is not mounted, or its file server does not answer.

A path that is wrong looks the same. So a corpus is away only if it was there before: the server
found it at the submission, this run has trained on it, or shards were prepared from its files.
Trying again later helps, and a run that resumes needs only its shards.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from lehr_trainer.configs.corpus import PathsCorpus
from lehr_trainer.configs.train import DataConfig
from lehr_trainer.data.checks import resolve_files
from lehr_trainer.data.token_dataset import MANIFEST, DatasetManifest, read_manifest
from lehr_trainer.errors import BadData, DataUnreachable

_OF_SERVERS = frozenset(
    {
        *(errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EREMOTEIO),
        *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENODEV, errno.ENXIO),
    }
)
"""Errors of a disk or file server that is away, whatever the path."""


def shards_of_absent(
    error: Exception, data: DataConfig, root: Path, trained_on: Collection[str], *, seen: bool
) -> Path:
    """Return the folder of the shards that a run was trained on, if its corpus is away.

    Args:
        error: why the corpus cannot be read.
        data: with the corpus and its mask, as the config names them.
        root: folder of all prepared corpora.
        trained_on: digests of the data that the run was prepared for before.
        seen: somebody has found the corpus before.

    Raises:
        DataUnreachable: it is away, and the shards are not there.
        BadData: it is not away; other errors of ``error`` likewise.
    """
    corpus = data.corpus
    if not isinstance(corpus, PathsCorpus) or not (why := _absent(corpus)):
        raise error
    prepared = list(_prepared(root))
    for directory, manifest in prepared:
        # Of several, path and mask say which is this one.
        alone = len(trained_on) == 1
        same = manifest.masked == data.masks_prompts and _is_of(corpus, manifest)
        if manifest.digest in trained_on and (alone or same):
            return directory
    seen = seen or bool(trained_on) or any(_is_of(corpus, one) for _, one in prepared)
    if not seen and not isinstance(why, OSError):
        raise error
    raise DataUnreachable(f"{why}. It was there before: is its disk or file server there?")


def _absent(corpus: PathsCorpus) -> Exception | None:
    """Return why files of the corpus cannot be found; None if all can."""
    for given in corpus.paths:
        try:
            Path(given).expanduser().stat()
        except OSError as error:
            if error.errno in _OF_SERVERS:
                return error
    try:
        resolve_files(corpus)
    except BadData as error:
        return error
    return None


def _prepared(root: Path) -> Iterator[tuple[Path, DatasetManifest]]:
    for path in sorted(root.glob(f"*/{MANIFEST}")):
        try:
            yield path.parent, read_manifest(path.parent)
        except BadData:
            continue


def _is_of(corpus: PathsCorpus, manifest: DatasetManifest) -> bool:
    """Return whether the shards were prepared from a file of this corpus."""
    places = [os.path.abspath(os.path.expanduser(given)) for given in corpus.paths]  # noqa: PTH100, PTH111 - may be a glob
    files = map(str, manifest.corpus.get("files", ()))
    return any(
        file.startswith(f"{place}/") or fnmatchcase(file, place)
        for file in files
        for place in places
    )
