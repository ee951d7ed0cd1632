"""Whether a small corpus has enough to train on and to score, before anything is prepared."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

from lehr_trainer.configs.corpus import FilesCorpus
from lehr_trainer.configs.train import DataConfig, ValidationConfig
from lehr_trainer.data.checks import resolve_files
from lehr_trainer.data.first_file import Looks
from lehr_trainer.errors import BadData

_MOST_BYTES = 4 * 2**20
"""Larger corpora are not read: they have enough documents, or one that is too large."""
_BETWEEN = {"paragraph": "\n\n", "line": "\n"}
_MOST_SHARE = 0.5
_BYTES_A_TOKEN = 8
"""More than a subword has on average, so that the share which is named does."""


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
        BadData: it has all that is missing, and the settings that would do.
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
    documents = _documents(texts, corpus.document)
    scored = [tokens for place, tokens in documents if place < validation.share]
    trained = [tokens for place, tokens in documents if place >= validation.share]
    if min(sum(scored), sum(trained)) > sequence_length or not documents:
        return
    kinds = dict.fromkeys((corpus.document, "paragraph"))
    bytes_a_token = 1 if data.tokenizer == "byte" else _BYTES_A_TOKEN
    need = sequence_length * bytes_a_token
    shares = {kind: _least_share(_documents(texts, kind), need) for kind in kinds}
    cures = [
        ("" if kind == corpus.document else f"data.corpus.document: {kind} and ")
        + f"validation.share: {share}"
        for kind, share in shares.items()
        if share is not None
    ]
    raise BadData(
        f"data.corpus is too small: it has {len(documents):,} different documents (each a "
        f"{corpus.document}) in {len(files):,} files. By validation.share: {validation.share:g}, "
        f"{len(scored):,} are held out, with at most {sum(scored):,} tokens to score, and "
        f"{len(trained):,} are left to train on, with at most {sum(trained):,}; both need more "
        f"than the {sequence_length:,} tokens of a sequence. "
        + (f"This would do: {', or '.join(cures)}" if cures else "Take a larger corpus")
    )


def _documents(texts: Sequence[str], kind: str) -> list[tuple[float, int]]:
    """Return place and size of each different document: held out are those below the share."""
    mark = _BETWEEN.get(kind)
    parts = texts if mark is None else [part for text in texts for part in text.split(mark)]
    sizes = {document_hash(raw): len(raw) + 1 for raw in (p.encode() for p in parts if p.strip())}
    return sorted((int.from_bytes(name[:8], "big") / 2**64, size) for name, size in sizes.items())


def _least_share(documents: Sequence[tuple[float, int]], need: int) -> float | None:
    """Return the smallest share, in thousandths, that leaves more than ``need`` on both sides."""
    scored, left = 0, sum(size for _, size in documents)
    for place, size in documents:
        scored, left = scored + size, left - size
        share = math.floor(place * 1000 + 1) / 1000
        if min(scored, left) > need and share < _MOST_SHARE:
            return share
    return None
