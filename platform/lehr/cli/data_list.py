"""The prepared corpora of this machine, read from their manifests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_MOST_NAMES = 3


@dataclass(frozen=True)
class PreparedCorpus:
    """A folder of token shards."""

    folder: str
    corpus: str
    """Where its text came from; empty if the folder is not finished."""
    tokenizer: str
    tokens: int | None
    """Training tokens; None if the folder is not finished."""
    size_bytes: int
    written_at: float

    @property
    def finished(self) -> bool:
        return self.tokens is not None

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "finished": self.finished}


def prepared_corpora(folder: Path) -> list[PreparedCorpus]:
    """List what ``folder`` has, the newest first, without folders of other things."""
    if not folder.is_dir():
        return []
    return sorted(_read(folder), key=lambda one: -one.written_at)


def _read(folder: Path) -> Iterator[PreparedCorpus]:
    for path in folder.iterdir():
        manifest = path / "manifest.json"
        try:
            if path.suffix == ".partial" and path.is_dir():
                yield PreparedCorpus(path.name, "", "", None, _size(path), path.stat().st_mtime)
            elif manifest.is_file():
                found = json.loads(manifest.read_text())
                yield PreparedCorpus(
                    path.name,
                    _described(found["corpus"]),
                    found["tokenizer"],
                    sum(shard["tokens"] for shard in found["train"]),
                    _size(path),
                    manifest.stat().st_mtime,
                )
        except (OSError, ValueError, KeyError, TypeError):
            continue  # It is being removed, or is not Lehr's.


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir() if file.is_file())


def _described(corpus: dict[str, Any]) -> str:
    """Describe a corpus by its kind and what else identifies it to people."""
    files = [Path(one).name for one in corpus.get("files", [])]
    more = f" and {len(files) - _MOST_NAMES} more" if len(files) > _MOST_NAMES else ""
    names = ", ".join(files[:_MOST_NAMES]) + more
    return " ".join(filter(None, [str(corpus["kind"]), names or str(corpus.get("dataset", ""))]))
