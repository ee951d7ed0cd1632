"""Token shards in memory and on disk."""

import mmap

import numpy as np
import pytest

from lehr_trainer.data.token_dataset import read_manifest
from lehr_trainer.data.tokens import TrainTokens, choose_loading


def test_memory_and_disk_have_the_same_tokens(prepared):
    mapped = TrainTokens.open(prepared, "memmap", 16)
    loaded = TrainTokens.open(prepared, "preload", 16)
    assert len(mapped.shards) == len(loaded.shards) > 3
    for ours, theirs in zip(mapped.shards, loaded.shards, strict=True):
        assert np.array_equal(ours, theirs)
    assert not mapped.shards[0].flags.writeable


def test_auto_preloads_for_one_rank_what_fits_in_half_of_the_free_memory(monkeypatch):
    monkeypatch.setattr("lehr_trainer.data.tokens.free_memory", lambda: 1000)
    assert choose_loading("auto", 500) == "preload"
    assert choose_loading("auto", 501) == "memmap"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert choose_loading("auto", 1) == "memmap"
    assert choose_loading("preload", 10**9) == "preload"


@pytest.mark.parametrize(
    ("room", "advice"), [(0, "MADV_RANDOM"), (1.5, None), (3, "MADV_WILLNEED")]
)
def test_a_map_that_fits_in_half_of_the_free_memory_is_read_ahead(
    prepared, monkeypatch, room, advice
):
    advised = []

    class Watched(mmap.mmap):
        def madvise(self, kind):
            advised.append(kind)
            super().madvise(kind)

    shards = read_manifest(prepared.directory).train
    size = sum((prepared.directory / shard.name).stat().st_size for shard in shards)
    monkeypatch.setattr("lehr_trainer.data.tokens.mmap.mmap", Watched)
    monkeypatch.setattr("lehr_trainer.data.tokens.free_memory", lambda: room * size)
    TrainTokens.open(prepared, "memmap", 16)
    assert advised == ([getattr(mmap, advice)] * len(shards) if advice else [])
