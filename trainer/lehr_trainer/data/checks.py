"""Checks of a data config at submission: only small texts are read, no network is used.

Nothing heavy is imported, so that the platform can check every spec.
"""

from __future__ import annotations

import contextlib
import difflib
import glob
import hashlib
import itertools
import os
from pathlib import Path

from lehr_trainer.configs.corpus import (
    ChatCorpus,
    Corpus,
    FilesCorpus,
    HubCorpus,
    PathsCorpus,
    corpora,
)
from lehr_trainer.configs.stages import corpus_places
from lehr_trainer.configs.train import DataConfig, TrainConfig, ValidationConfig
from lehr_trainer.data.first_file import GaveUp, Looks
from lehr_trainer.data.lines import MESSAGES_EXAMPLE, json_values, messages_of
from lehr_trainer.errors import BadConfig, BadData, TrainerError

TOKENIZER_SIZES = {"byte": 257, "tekken": 131_072}
"""The built-in tokenizers and their vocabularies."""

OFFLINE_TOKENIZERS = f"{' or '.join(reversed(TOKENIZER_SIZES))}, or the path of a tokenizer.json"
"""What data.tokenizer can be on a machine without a network."""
_ON_THE_HUB = {"gpt2": "openai-community/gpt2"}
"""Names of tokenizers that people know, and their ids in the Hugging Face hub."""

_JSONL = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".jsonl.zst", ".json.gz", ".json.zst")
_SUFFIXES = {
    "text": (".txt", ".text", ".md", ".rst", ".py", ".txt.gz", ".txt.zst"),
    "jsonl": _JSONL,
    "chat": _JSONL,
    "parquet": (".parquet", ".pq"),
}
"""Endings that a folder is searched for; a file that is named itself may have any ending."""
_NAMED = 5
"""Skipped files that are named."""
_MOST_NAMES = 1000
"""In a folder, to find the nearest one: a comparison takes some microseconds."""


def check_data(data: DataConfig, vocab_size: int, looks: Looks | None = None) -> None:
    """Check what would otherwise only fail on the node.

    ``looks``: limits how many entries of folders are read. What is not found within the limit is
    left to the node.

    Raises:
        BadData: a corpus path or the tokenizer does not exist; the nearest one is named.
        BadConfig: the tokenizer does not fit the model's vocabulary.
    """
    check_corpus(data.corpus, looks)
    check_tokenizer(data.tokenizer)
    check_vocabulary(data.tokenizer, TOKENIZER_SIZES.get(data.tokenizer, 0), vocab_size)


def problems(config: TrainConfig, looks: Looks | None = None) -> list[TrainerError]:
    """Check the data of each stage; see :func:`check_data` and :func:`check_small`."""
    found: dict[str, TrainerError] = {}
    for place, own in corpus_places(config):
        try:
            check_data(own.data, own.model.vocab_size, looks)
            check_small(own.data, own.validation, own.batch.sequence_length, looks)
        except TrainerError as error:
            text = f"{place if str(error).startswith('data.corpus') else ''}{error}"
            found.setdefault(text, type(error)(text))
    return list(found.values())


def check_corpus(corpus: Corpus, looks: Looks | None = None) -> None:
    """Check the corpus part of a data config; see :func:`check_data`.

    Raises:
        BadData: a path does not exist or holds nothing to read; the nearest one is named.
    """
    looks = looks or Looks()
    for field, one in corpora(corpus, "data.corpus").items():
        if isinstance(one, PathsCorpus):
            for given in one.paths:
                with contextlib.suppress(GaveUp):
                    _check_path(given, one, field, looks)
        elif isinstance(one, HubCorpus) and one.id.count("/") > 1:
            raise BadData(
                f"{field}.id {one.id!r} is not a dataset of the hub (OWNER/NAME); for files "
                "on this machine use kind text, jsonl, parquet or chat with paths"
            )


def _check_path(given: str, corpus: PathsCorpus, field: str, looks: Looks) -> None:
    path = _path(given)
    if os.path.isfile(path):
        return
    if os.path.isdir(path):
        found = looks.holds(str(path), _SUFFIXES[corpus.kind])
    else:
        found = looks.matches_file(str(path))
    if not found:
        raise _nothing_at(given, corpus, field)


def resolve_files(corpus: PathsCorpus, field: str = "data.corpus") -> list[Path]:
    """List the files of a corpus: folders searched, globs expanded, sorted within each path.

    ``field`` is the path of the corpus in the config, for errors.

    Raises:
        BadData: a path matches nothing.
    """
    found: dict[Path, None] = {}
    for given in corpus.paths:
        path = _path(given)
        if os.path.isfile(path):
            matches = [path]
        elif os.path.isdir(path):
            suffixes = _SUFFIXES[corpus.kind]
            matches = sorted(p for p in path.rglob("*") if p.name.endswith(suffixes))
        else:
            matches = sorted(Path(p) for p in glob.glob(str(path), recursive=True))
        matches = [match for match in matches if os.path.isfile(match)]
        if not matches:
            raise _nothing_at(given, corpus, field)
        found.update(dict.fromkeys(match.absolute() for match in matches))
    return list(found)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 file``, ``8 files``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def files_read(corpus: Corpus, looks: Looks | None = None) -> str | None:
    """Describe how many files are read, and which files of its folders are not, and why.

    None for a corpus without files of this machine, or with more than ``looks`` allows to list.
    """
    read: set[Path] = set()
    below: set[Path] = set()
    for field, one in corpora(corpus, "data.corpus").items():
        if isinstance(one, PathsCorpus):
            if looks is not None and not all(map(looks.few, one.paths)):
                return None
            read.update(resolve_files(one, field))
            for given in filter(os.path.isdir, map(_path, one.paths)):
                below.update(path.absolute() for path in given.rglob("*") if path.is_file())
    skipped = sorted(path.name for path in below - read)
    if not skipped:
        return f"{counted(len(read), 'file')} read" if read else None
    names = ", ".join(skipped[:_NAMED]) + (", ..." if len(skipped) > _NAMED else "")
    return (
        f"{counted(len(read), 'file')} read, {len(skipped):,} skipped ({names}: ending not known)"
    )


def _nothing_at(given: str, corpus: PathsCorpus, field: str) -> BadData:
    path = _path(given)
    if os.path.isdir(path):
        return BadData(
            f"{field}.paths: the folder {given} holds no {corpus.kind} file "
            f"({', '.join(_SUFFIXES[corpus.kind])}); name the files or a glob"
        )
    with contextlib.suppress(OSError, ValueError):  # No link, or one that may not be read.
        target = os.readlink(path)
        return BadData(f"{field}.paths: {given} is a link to {target}, which does not exist")
    return BadData(f"{field}.paths: {given} does not exist{_nearest(path)}")


def _path(given: str) -> Path:
    """Return the path; ``~`` of a user that does not exist stays as it is."""
    return Path(os.path.expanduser(given))


def _nearest(path: Path) -> str:
    """Describe the deepest existing folder and the nearest name in it, as the end of a sentence."""
    absolute = path.absolute()
    parent = absolute.parent
    missing = absolute.name
    while not os.path.exists(parent):
        parent, missing = parent.parent, parent.name
    try:
        with os.scandir(parent) as entries:
            names = [entry.name for entry in itertools.islice(entries, _MOST_NAMES)]
        names = sorted(name for name in names if name != missing)
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
    path = _path(name)
    if os.path.isdir(path):
        path /= "tokenizer.json"
    if os.path.isfile(path):
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


_MOST_BYTES = 4 * 2**20
"""Larger corpora are not read: they have enough documents, or one that is too large."""
_BETWEEN = {"paragraph": "\n\n", "line": "\n"}


def document_hash(text: bytes) -> bytes:
    """Hash a text; texts that differ only in surrounding white space have equal hashes."""
    return hashlib.sha256(text.strip()).digest()[:16]


def is_held_out(name: bytes, share: float) -> bool:
    """Decide by the hash alone, so a copy of a held-out document is never trained on."""
    return int.from_bytes(name[:8], "big") < share * 2**64


def check_small(
    data: DataConfig, validation: ValidationConfig, sequence_length: int, looks: Looks | None = None
) -> None:
    """Read each corpus of at most 4 MiB of text files or chats, and check what is in it.

    Of text the division by the held-out share is checked, of chats each message. A document counts
    as many tokens as it has bytes, and one: no tokenizer makes more.
    Files that ``looks`` does not allow to list are not checked.

    Raises:
        BadData: it has all that is missing, and the settings that change it; or what is wrong in
            which line.
    """
    for field, corpus in corpora(data.corpus, "data.corpus").items():
        if not isinstance(corpus, PathsCorpus) or corpus.kind not in {"text", "chat"}:
            continue
        if looks is not None and not all(looks.few(path) for path in corpus.paths):
            continue
        files = resolve_files(corpus, field)
        texts = _small_texts(files)
        if isinstance(corpus, FilesCorpus) and texts:
            _check_size(
                list(texts.values()), len(files), corpus, field, validation, sequence_length
            )
        elif isinstance(corpus, ChatCorpus):
            name, example = corpus.messages_field, MESSAGES_EXAMPLE
            try:
                for path, text in texts.items():
                    lines = text.split("\n")
                    for line, value in json_values(lines, path, 0, name, "messages_field", example):
                        if line:
                            messages_of(value, name, line)
            except BadData as error:
                raise BadData(f"{field}: {error}") from None


def _small_texts(files: list[Path]) -> dict[Path, str]:
    """Return the texts of at most 4 MiB of files; empty if they are more, or cannot be read."""
    try:
        packed = any(path.suffix in {".gz", ".zst"} for path in files)
        sizes = [path.stat().st_size for path in files]
        if packed or sum(sizes) > _MOST_BYTES:
            return {}
        # Special files, such as those of /proc, have no size, and may have no end.
        sized = zip(files, sizes, strict=True)
        return {path: path.read_text("utf-8", errors="replace") for path, size in sized if size}
    except OSError:  # The preparation names it.
        return {}


def _check_size(
    texts: list[str],
    files: int,
    corpus: FilesCorpus,
    field: str,
    validation: ValidationConfig,
    sequence_length: int,
) -> None:
    mark = _BETWEEN.get(corpus.document)
    parts = texts if mark is None else [part for text in texts for part in text.split(mark)]
    raw = [part.encode() for part in parts if part.strip()]
    hashed = [(document_hash(document), len(document) + 1) for document in raw]
    documents = dict(hashed)
    scored = [size for name, size in documents.items() if is_held_out(name, validation.share)]
    # Only the held-out set is without repeats.
    trained = [size for name, size in hashed if not is_held_out(name, validation.share)]
    if min(sum(scored), sum(trained)) > sequence_length or not documents:
        return
    finer = {"file": "paragraph or line", "paragraph": "line"}.get(corpus.document)
    divide = f"divide the corpus by {field}.document: {finer}, " if finer else ""
    raise BadData(
        f"{field} is too small: it has {counted(len(documents), 'different document')} (each a "
        f"{corpus.document}) in {counted(files, 'file')}. By validation.share: "
        f"{validation.share:g}, "
        f"{len(scored):,} are held out, with at most {sum(scored):,} tokens to score, and "
        f"{len(trained):,} (with repeats) are left to train on, with at most {sum(trained):,}; "
        f"both need more than the {sequence_length:,} tokens of a sequence. "
        f"Change validation.share, {divide}or take a larger corpus"
    )
