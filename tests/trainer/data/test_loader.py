"""Batches: a pure function of the step, the same for any number of ranks and way of loading."""

from __future__ import annotations

import hashlib
import mmap
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lehr_testing.batches import SHAPE, STAGED, load, naive_rows, step_rows
from lehr_testing.corpora import documents, prepare_texts
from lehr_testing.properties import examples
from lehr_trainer.configs.train import BatchConfig
from lehr_trainer.data.loader import MODULUS, Loader, added, sequences_digest
from lehr_trainer.data.token_dataset import read_manifest
from lehr_trainer.data.tokens import TrainTokens, choose_loading
from lehr_trainer.errors import BadConfig, BadData


def test_batches_of_a_config_stay_bitwise_the_same(prepared):
    """Compare with recorded values: a run that resumes with a newer version must not change."""
    found = {}
    for batch in (SHAPE, STAGED):
        digest = hashlib.sha256()
        for step in (0, 1, 19, 500):
            inputs, targets = step_rows(prepared, step, 2, batch, steps=20)
            digest.update(inputs.numpy().tobytes() + targets.numpy().tobytes())
        found[len(batch.stages)] = digest.hexdigest()[:16]
    assert found == {0: "967fa9c87491dc3c", 1: "db61c54ca29c360c"}


@pytest.mark.parametrize("step", [0, 1, 77, 10_000])
def test_batch_matches_its_definition(prepared, step):
    rows = naive_rows(prepared, step)
    inputs, targets = step_rows(prepared, step, 1)
    assert torch.equal(inputs, rows[:, :-1])
    assert torch.equal(targets, rows[:, 1:])
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.is_contiguous()
    assert targets.is_contiguous()


@settings(max_examples=examples(30), deadline=None)
@given(
    step=st.integers(0, 10**9),
    world_size=st.sampled_from([1, 2, 3, 4, 6, 12]),
    micro_batch=st.sampled_from([None, 1]),
    workers=st.sampled_from([0, 2]),
    loading=st.sampled_from(["memmap", "preload"]),
)
def test_a_step_has_the_same_sequences_however_it_is_shared_and_loaded(
    prepared, step, world_size, micro_batch, workers, loading
):
    shape = SHAPE.model_copy(update={"micro_batch": micro_batch})
    expected = step_rows(prepared, step, 1)
    shared = step_rows(prepared, step, world_size, shape, workers=workers, loading=loading)
    assert torch.equal(shared[0], expected[0])
    assert torch.equal(shared[1], expected[1])


def test_resumed_loader_gives_the_batches_of_an_undisturbed_one(prepared):
    with load(prepared, workers=2) as first:
        undisturbed = [first.batch(step)[0] for step in range(20)]
    with load(prepared, workers=2) as resumed:
        for step in range(11, 20):
            assert torch.equal(resumed.batch(step)[0], undisturbed[step])


@settings(max_examples=examples(20), deadline=None)
@given(places=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2)), min_size=1, max_size=25))
def test_batches_may_be_requested_in_any_order(prepared, places):
    shape = SHAPE.model_copy(update={"micro_batch": 4})
    with load(prepared, shape, workers=3, prefetch=2) as ahead, load(prepared, shape) as plain:
        for step, micro in places:
            assert torch.equal(ahead.batch(step, micro)[0], plain.batch(step, micro)[0])


def test_workers_make_batches_ahead(prepared, monkeypatch):
    made = []
    monkeypatch.setattr(Loader, "_make", remembering(Loader._make, made))
    with load(prepared, workers=2, prefetch=3) as loader:
        loader.batch(0)
        deadline = time.monotonic() + 20
        while len(made) < 7 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert sorted(made) == [(step, 0) for step in range(7)]
        for step in range(1, 5):
            loader.batch(step)
    assert len(made) == len(set(made))


def remembering(make, made):
    def wrapped(self, place):
        batch = make(self, place)
        made.append(place)
        return batch

    return wrapped


def test_the_wait_for_data_is_measured(prepared, monkeypatch):
    make = Loader._make

    def slow(self, place):
        time.sleep(0.05)
        return make(self, place)

    monkeypatch.setattr(Loader, "_make", slow)
    with load(prepared) as loader:
        loader.batch(0)
        assert loader.waited_s >= 0.05
        before = loader.waited_s
        loader.batch(1)
        assert loader.waited_s - before >= 0.05


@settings(max_examples=examples(20), deadline=None)
@given(
    step=st.integers(0, 10**6),
    world_size=st.sampled_from([1, 2, 3, 6]),
    micro_batch=st.sampled_from([None, 1, 2]),
    workers=st.sampled_from([0, 2]),
)
def test_digest_of_a_step_is_the_same_however_it_is_shared(
    prepared, step, world_size, micro_batch, workers
):
    shape = SHAPE.model_copy(update={"micro_batch": micro_batch})
    parts = []
    for rank in range(world_size):
        with load(prepared, shape, rank=rank, world_size=world_size, workers=workers) as loader:
            loader.batch(step)  # As ``assemble`` does before the first step.
            for micro_step in range(loader.micro_steps(step)):
                loader.batch(step, micro_step)
            parts.append(loader.digest)
    rows = naive_rows(prepared, step).numpy().astype("<u4")
    assert added(*parts) == sequences_digest(rows)


@pytest.mark.parametrize("batch", ["SHAPE", "STAGED"])
def test_epoch_is_the_share_of_blocks_that_were_visited(prepared, batch):
    shape = {"SHAPE": SHAPE, "STAGED": STAGED}[batch]
    with load(prepared, shape, steps=100) as loader:
        blocks, length = loader.stream.tokens[0].blocks, shape.longest_sequence
        assert loader.epochs(0) == {"data/epoch": 0.0}
        for step in (1, 50, 95, 100):
            passed = step * SHAPE.tokens_per_step / length / blocks
            assert loader.epochs(step) == {"data/epoch": pytest.approx(passed)}
        assert loader.epochs(blocks)["data/epoch"] == pytest.approx(12 * 16 / length)


@pytest.mark.parametrize(
    ("shape", "world_size", "says"),
    [
        (SHAPE, 5, "12 sequences a step cannot be shared by 5 ranks"),
        (SHAPE.model_copy(update={"micro_batch": 5}), 2, "5 does not divide the 6 sequences"),
        (STAGED, 4, "6 sequences a step cannot be shared by 4 ranks"),
    ],
)
def test_a_batch_that_does_not_divide_is_refused_at_the_start(prepared, shape, world_size, says):
    with pytest.raises(BadConfig, match=says):
        load(prepared, shape, world_size=world_size, steps=10)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_token_outside_the_vocabulary_names_its_shard(tmp_path, workers):
    small = prepare_texts(tmp_path, documents(50))
    shard = small.directory / "train-00000.bin"
    tokens = np.fromfile(shard, dtype=small.dtype)
    tokens[:] = 300
    tokens.tofile(shard)
    with (
        load(small, workers=workers) as loader,
        pytest.raises(BadData, match="token 300") as caught,
    ):
        loader.batch(0)
    assert str(shard) in str(caught.value)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("device", ["cuda:1", "cuda"])
def test_batches_for_a_gpu_are_pinned_and_copied_without_a_wait(
    prepared, monkeypatch, workers, device
):
    """torch's calls are replaced: this machine has no driver that could pin or copy."""
    pinned, copies, chosen = [], [], []
    empty, to = torch.empty, torch.Tensor.to

    def pin(*args, pin_memory=False, **kwargs):
        made = empty(*args, **kwargs)
        if pin_memory:
            pinned.append(made.data_ptr())
        return made

    def copy(tensor, target, **options):
        if torch.device(target).type != "cuda":
            return to(tensor, target, **options)
        copies.append((tensor.data_ptr(), str(target), options))
        return tensor

    monkeypatch.setattr(torch, "empty", pin)
    monkeypatch.setattr(torch.Tensor, "to", copy)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    shape = BatchConfig(sequences=8, sequence_length=32, micro_batch=4)
    with Loader(prepared, shape, seed=1, device=device, workers=workers) as loader:
        for step in range(3):
            for micro_step in range(2):
                loader.batch(step, micro_step)
    assert [(target, options) for _, target, options in copies] == [
        ("cuda:1", {"non_blocking": True})
    ] * 6
    assert all(pointer in pinned for pointer, _, _ in copies)
    # A thread without a device would open a context on the first GPU.
    assert set(map(str, chosen)) == ({"cuda:1"} if workers else set())


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


WORD = 2**64


def mixed(value: int) -> int:
    """SplitMix64's finalizer on Python's whole numbers."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % WORD
    return value ^ (value >> 31)


def digest_by_definition(rows: list[list[int]]) -> int:
    total = 0
    for row in rows:
        factors = [mixed((at + 1) * 0x9E3779B97F4A7C15 % WORD) | 1 for at in range(len(row))]
        dot = sum(factor * token for factor, token in zip(factors, row, strict=True))
        total += mixed((dot + len(row)) % WORD)
    return total % MODULUS


batches = st.integers(2, 12).flatmap(
    lambda length: st.lists(
        st.lists(st.integers(0, 2**17 - 1), min_size=length, max_size=length),
        min_size=1,
        max_size=8,
    )
)


@settings(max_examples=examples(50), deadline=None)
@given(rows=batches, data=st.data())
def test_digest_is_a_sum_over_sequences_whatever_their_order_and_their_parts(rows, data):
    array = np.array(rows, dtype=np.uint32)
    digest = sequences_digest(array)
    assert digest == digest_by_definition(rows)
    cut = data.draw(st.integers(0, len(rows)))
    order = data.draw(st.permutations(range(len(rows))))
    shuffled = array[list(order)]
    assert added(sequences_digest(shuffled[:cut]), sequences_digest(shuffled[cut:])) == digest
    assert float(digest) == digest < MODULUS


@pytest.mark.parametrize("bits", [1, 16, 2**15])
def test_one_other_token_gives_another_digest(bits):
    rows = np.random.default_rng(1).integers(0, 2**16, (3, 17)).astype("<u4")
    seen = {sequences_digest(rows)}
    for place in np.ndindex(rows.shape):
        other = rows.copy()
        other[place] ^= bits
        seen.add(sequences_digest(other))
    assert len(seen) == 1 + rows.size


def test_a_sequence_that_is_there_twice_counts_twice():
    row = np.arange(9, dtype="<u2")[None]
    once = sequences_digest(row)
    assert sequences_digest(np.repeat(row, 2, axis=0)) == 2 * once % MODULUS != once


def test_shorter_sequences_of_zeros_differ():
    assert sequences_digest(np.zeros((1, 8), "<u2")) != sequences_digest(np.zeros((1, 9), "<u2"))


def test_definition_of_the_digest_stays():
    """Compare with a recorded value: runs of different versions must stay comparable."""
    rows = (np.arange(4 * 17) * 977 % 50_000).astype("<u2").reshape(4, 17)
    assert sequences_digest(rows) == 686778758999491
