"""Tensors of a checkpoint: the part that a rank saves, and the whole that a reader sees."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lehr_trainer.contract import layout
from lehr_trainer.contract.manifest import Manifest
from lehr_trainer.errors import BadCheckpoint
from lehr_trainer.runtime.sharding import Rows


def open_tensors(path: Path) -> Any:
    """Open a safetensors file.

    Raises:
        BadCheckpoint: it is something else, such as a pickle.
    """
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise BadCheckpoint(f"{path} is not a safetensors file: {error}") from error


@dataclass(frozen=True)
class RankPart:
    """What one of several ranks writes of a checkpoint."""

    rank: int
    rows: Mapping[str, Rows]
    """Of the tensors that are rows of a whole; rank 0 alone writes the others."""
    writes: bool
    """Whether this rank writes its rows; another one may have the same."""
    exchange: Callable[[str], list[str]]
    """Gathers a text of each rank."""


class SavedTensors(Mapping[str, Tensor]):
    """Whole tensors by name, mapped from disk; those that several ranks saved are joined when read.

    Joining copies, so take one after the other.
    """

    def __init__(self, pieces: Mapping[str, list[tuple[int, int, Tensor]]]) -> None:
        """Take each tensor's pieces: first row, number of rows of the whole, rows."""
        self._pieces = {name: sorted(held, key=lambda p: p[0]) for name, held in pieces.items()}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Take tensors that are whole."""
        lengths = {name: len(tensor) if tensor.ndim else 1 for name, tensor in tensors.items()}
        return cls({name: [(0, lengths[name], tensor)] for name, tensor in tensors.items()})

    def __getitem__(self, name: str) -> Tensor:
        pieces = [piece for _, _, piece in self._pieces[name]]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def __iter__(self) -> Iterator[str]:
        return iter(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the whole tensor."""
        _, whole, piece = self._pieces[name][0]
        return (whole, *piece.shape[1:]) if piece.ndim else ()

    def rows(self, name: str, rows: Rows | None) -> Tensor:
        """Return some rows of it; no others are read. None: all."""
        if rows is None:
            return self[name]
        held = [
            piece[max(0, rows.first - first) : max(0, rows.last - first)]
            for first, _, piece in self._pieces[name]
        ]
        return held[0] if len(held) == 1 else torch.cat(held)


def read_tensors(directory: Path, manifest: Manifest, kind: str) -> SavedTensors:
    """Map all tensors of one kind from disk, without reading them.

    Raises:
        BadCheckpoint: rows of a tensor are missing.
    """
    pieces: dict[str, list[tuple[int, int, Tensor]]] = {}
    for name in manifest.files:
        if layout.file_kind(name) == kind:
            with open_tensors(directory / name) as file:
                parts = file.metadata() or {}
                for key in file.keys():  # noqa: SIM118
                    tensor = file.get_tensor(key)
                    whole = len(tensor) if tensor.ndim else 1
                    rows = parts.get(key, f"0:{whole}:{whole}").split(":")
                    pieces.setdefault(key, []).append((int(rows[0]), int(rows[2]), tensor))
    for key, held in pieces.items():
        if (count := sum(len(t) if t.ndim else 1 for *_, t in held)) != held[0][1]:
            raise BadCheckpoint(f"{directory} has {count} of the {held[0][1]} rows of {key}")
    return SavedTensors(pieces)


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadCheckpoint(f"{path} is not JSON: {error}") from error


def read_document(directory: Path, name: str) -> Any:
    return read_json(directory / f"{name}.json")
