"""Whether a small corpus has enough to train on and to score, before anything is prepared."""

from __future__ import annotations

import hashlib

from lehr_trainer.configs.corpus import FilesCorpus
from lehr_trainer.configs.train import DataConfig, ValidationConfig
from lehr_trainer.data.checks import counted, resolve_files
from lehr_trainer.data.first_file import Looks
from lehr_trainer.errors import BadData

_MOST_BYTES = 4 * 2**20
"""Larger corpora are not read: they have enough documents, or one that is too large."""
_BETWEEN = {"paragraph": "\n\n", "line": "\n"}


def document_hash(text: bytes) -> bytes:
    """Hash a text; texts that differ only in surrounding white space have equal hashes."""
    return hashlib.sha256(text.strip()).digest()[:16]


def is_held_out(name: bytes, share: float) -> bool:
    """Decide by the hash alone, so a copy of a held-out document is never trained on."""
    return int.from_bytes(name[:8], "big") < share * 2**64


def check_size(
    data: DataConfig, validation: ValidationConfig, sequence_length: int, looks: Looks | None = None
) -> None:
    """Read a corpus of at most 4 MiB of text files, and check its division by the held-out share.

    A document counts as many tokens as it has bytes, and one: no tokenizer makes more.

    Args:
        data: with the corpus; its files are on this machine.
        validation: with the share that is held out.
        sequence_length: tokens of the shortest sequence.
        looks: limits how many entries of folders are read; beyond, nothing is checked.

    Raises:
        BadData: it has all that is missing, and the settings that change it.
    """
    corpus = data.corpus
    if not isinstance(corpus, FilesCorpus) or corpus.kind != "text":
        return
    if looks is not None and not all(looks.few(path) for path in corpus.paths):
        return
    files = resolve_files(corpus)
    try:
        packed = any(path.suffix in {".gz", ".zst"} for path in files)
        sizes = [path.stat().st_size for path in files]
        if packed or sum(sizes) > _MOST_BYTES:
            return
        # Special files, such as those of /proc, have no size, and may have no end.
        sized = zip(files, sizes, strict=True)
        texts = [path.read_text("utf-8", errors="replace") for path, size in sized if size]
    except OSError:  # The preparation names it.
        return
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
    divide = f"divide the corpus by data.corpus.document: {finer}, " if finer else ""
    raise BadData(
        f"data.corpus is too small: it has {counted(len(documents), 'different document')} (each a "
        f"{corpus.document}) in {counted(len(files), 'file')}. By validation.share: "
        f"{validation.share:g}, "
        f"{len(scored):,} are held out, with at most {sum(scored):,} tokens to score, and "
        f"{len(trained):,} (with repeats) are left to train on, with at most {sum(trained):,}; "
        f"both need more than the {sequence_length:,} tokens of a sequence. "
        f"Change validation.share, {divide}or take a larger corpus"
    )
