"""A checkpoint that several ranks write: each its rows, read as whole tensors."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lehr_trainer.checkpointing import checkpoint
from lehr_trainer.checkpointing.saved_tensors import RankPart, SavedTensors
from lehr_trainer.errors import BadCheckpoint, DiskFull
from lehr_trainer.runtime.sharding import Rows, rows_of

RANKS = 4
WHOLE = {"matrix": torch.arange(15.0).view(5, 3), "bias": torch.arange(8.0), "step": torch.ones(())}


def exchange_of(ranks: int) -> Callable[[int], Callable[[str], list[str]]]:
    """As gloo gathers texts, among threads."""
    texts, barrier = [""] * ranks, threading.Barrier(ranks)

    def of(rank: int) -> Callable[[str], list[str]]:
        def exchange(text: str) -> list[str]:
            texts[rank] = text
            barrier.wait()
            gathered = list(texts)
            barrier.wait()
            return gathered

        return exchange

    return of


def save(directory: Path) -> None:
    """Save ``WHOLE`` by four ranks; the last has no row of the matrix."""
    exchange = exchange_of(RANKS)

    def write(rank: int) -> None:
        rows = {name: rows_of(len(WHOLE[name]), rank, RANKS) for name in ("matrix", "bias")}
        own: dict[str, Tensor] = {n: WHOLE[n][r.first : r.last] for n, r in rows.items()}
        checkpoint.write_checkpoint(
            directory,
            tensors={"model": {**own, "step": WHOLE["step"]}},
            documents={"state": {}},
            manifest=checkpoint.Manifest(step=1, tokens=1, reason="interval"),
            part=RankPart(rank, rows, True, exchange(rank)),
        )

    with ThreadPoolExecutor(RANKS) as pool:
        for done in [pool.submit(write, rank) for rank in range(RANKS)]:
            done.result()


def read(directory: Path) -> SavedTensors:
    return checkpoint.read_tensors(directory, checkpoint.verify(directory), "model")


def test_rows_of_all_ranks_are_read_as_whole_tensors(tmp_path: Path) -> None:
    save(tmp_path / "step-1")
    saved = read(tmp_path / "step-1")
    assert saved.keys() == WHOLE.keys()
    assert all(torch.equal(saved[name], WHOLE[name]) for name in WHOLE)
    assert saved.shape("matrix") == (5, 3)
    for ways in (1, 2, 3, 7):
        parts = [saved.rows("matrix", rows_of(5, place, ways)) for place in range(ways)]
        assert torch.equal(torch.cat(parts), WHOLE["matrix"])
    assert rows_of(5, 3, 4) == Rows(5, 5, 5)  # As torch.chunk: 2, 2, 1 rows.


@pytest.mark.parametrize("harm", ["missing", "exchanged", "unlisted"])
def test_a_file_of_a_rank_that_is_not_the_saved_one_is_damage(tmp_path: Path, harm: str) -> None:
    directory = tmp_path / "step-1"
    save(directory)
    one, other = (
        directory / "model-rank00000.safetensors",
        directory / "model-rank00001.safetensors",
    )
    if harm == "missing":
        other.unlink()
    elif harm == "exchanged":
        content = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(content)
    else:
        manifest = checkpoint.read_manifest(directory)
        files = {name: entry for name, entry in manifest.files.items() if name != other.name}
        listing = manifest.model_copy(update={"files": files}).model_dump_json()
        (directory / "manifest.json").write_text(listing)
    with pytest.raises(
        BadCheckpoint, match="of the 8 rows of bias" if harm == "unlisted" else "rank0000"
    ):
        read(directory)


def test_one_rank_without_space_fails_the_save_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = checkpoint.write_safetensors

    def full(path: Path, *args: object, **options: object) -> object:
        if "rank00002" in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint, "write_safetensors", full)
    with pytest.raises(DiskFull):
        save(tmp_path / "step-1")
    assert not list(tmp_path.iterdir())
