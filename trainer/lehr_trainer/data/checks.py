"""Checks of a data config at submission: no text is read, no network is used.

Nothing heavy is imported, so that the platform can check every spec.
"""

from __future__ import annotations

import difflib
import glob
from pathlib import Path

from lehr_trainer.configs.corpus import corpora
from lehr_trainer.configs.train import Corpus, DataConfig, FilesCorpus, HubCorpus, SingleCorpus
from lehr_trainer.errors import BadConfig, BadData

TOKENIZER_SIZES = {"byte": 257, "tekken": 131_072}
"""The built-in tokenizers and their vocabularies."""

OFFLINE_TOKENIZERS = f"{' or '.join(reversed(TOKENIZER_SIZES))}, or the path of a tokenizer.json"
"""What data.tokenizer can be on a machine without a network."""
_ON_THE_HUB = {"gpt2": "openai-community/gpt2"}
"""Names of tokenizers that people know, and their ids in the Hugging Face hub."""

_SUFFIXES = {
    "text": (".txt", ".text", ".md", ".rst", ".py", ".txt.gz", ".txt.zst"),
    "jsonl": (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".jsonl.zst", ".json.gz", ".json.zst"),
    "parquet": (".parquet", ".pq"),
}
"""Endings that a folder is searched for; a file that is named itself may have any ending."""


def check_data(data: DataConfig, vocab_size: int) -> None:
    """Check what would otherwise only fail on the node.

    Raises:
        BadData: a corpus path or the tokenizer does not exist; the nearest one is named.
        BadConfig: the tokenizer does not fit the model's vocabulary.
    """
    check_corpus(data.corpus)
    check_tokenizer(data.tokenizer)
    check_vocabulary(data.tokenizer, TOKENIZER_SIZES.get(data.tokenizer, 0), vocab_size)


def check_corpus(corpus: Corpus) -> None:
    """Check the corpus part of a data config; see :func:`check_data`.

    Raises:
        BadData: a path does not exist or holds nothing to read; the nearest one is named.
    """
    for field, one in corpora(corpus, "data.corpus").items():
        _check_single(one, field)


def _check_single(corpus: SingleCorpus, field: str) -> None:
    if isinstance(corpus, FilesCorpus):
        resolve_files(corpus, field)
    elif isinstance(corpus, HubCorpus) and corpus.id.count("/") > 1:
        raise BadData(
            f"{field}.id {corpus.id!r} is not a dataset of the hub (OWNER/NAME); for files "
            "on this machine use kind text, jsonl or parquet with paths"
        )


def resolve_files(corpus: FilesCorpus, field: str = "data.corpus") -> list[Path]:
    """List the files of a corpus: folders searched, globs expanded, sorted within each path.

    ``field`` is the path of the corpus in the config, for errors.

    Raises:
        BadData: a path matches nothing.
    """
    found: dict[Path, None] = {}
    for given in corpus.paths:
        path = Path(given).expanduser()
        if path.is_file():
            matches = [path]
        elif path.is_dir():
            suffixes = _SUFFIXES[corpus.kind]
            matches = sorted(p for p in path.rglob("*") if p.name.endswith(suffixes))
            if not matches:
                raise BadData(
                    f"{field}.paths: the folder {given} holds no {corpus.kind} file "
                    f"({', '.join(suffixes)}); name the files or a glob"
                )
        else:
            matches = sorted(Path(p) for p in glob.glob(str(path), recursive=True))  # noqa: PTH207 - absolute
        matches = [match for match in matches if match.is_file()]
        if not matches and path.is_symlink():
            raise BadData(
                f"{field}.paths: {given} is a link to {path.readlink()}, which does not exist"
            )
        if not matches:
            raise BadData(f"{field}.paths: {given} does not exist{_nearest(path)}")
        found.update(dict.fromkeys(match.absolute() for match in matches))
    return list(found)


def _nearest(path: Path) -> str:
    """Describe the deepest existing folder and the nearest name in it, as the end of a sentence."""
    absolute = path.absolute()
    parent = absolute.parent
    missing = absolute.name
    while not parent.exists():
        parent, missing = parent.parent, parent.name
    try:
        names = sorted(entry.name for entry in parent.iterdir()) if parent.is_dir() else []
        names = [name for name in names if name != missing]
    except OSError:
        names = []
    near = difflib.get_close_matches(missing, names, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {parent / near[0]}?"
    return f"; the nearest folder that exists is {parent}"


def check_tokenizer(name: str) -> Path | None:
    """Return the JSON file that ``name`` refers to; None for a built-in tokenizer or a hub id.

    Raises:
        BadData: it can be neither.
    """
    if name in TOKENIZER_SIZES:
        return None
    path = Path(name).expanduser()
    if path.is_dir():
        path /= "tokenizer.json"
    if path.is_file():
        return path
    if name.count("/") == 1 and not name.startswith((".", "/", "~")) and path.suffix != ".json":
        return None
    if name in _ON_THE_HUB:
        raise BadData(
            f"data.tokenizer {name!r}: write {_ON_THE_HUB[name]} to download it from the Hugging "
            f"Face hub; without a network, give {OFFLINE_TOKENIZERS}"
        )
    near = difflib.get_close_matches(name, TOKENIZER_SIZES, n=1)
    raise BadData(
        f"data.tokenizer {name!r} is neither {' nor '.join(TOKENIZER_SIZES)}, nor a tokenizers "
        "JSON file that exists, nor a hub id (OWNER/NAME)"
        + (f"; did you mean {near[0]}?" if near else "")
    )


def check_vocabulary(tokenizer: str, needed: int, vocab_size: int) -> None:
    """Refuse a tokenizer that can make tokens beyond the model's embedding.

    Raises:
        BadConfig: it names both sizes.
    """
    if needed > vocab_size:
        raise BadConfig(
            f"data.tokenizer {tokenizer!r} has {needed:,} tokens, but model.vocab_size is "
            f"{vocab_size:,}; set model.vocab_size to at least {needed} or use a smaller "
            "tokenizer (byte has 257)"
        )
