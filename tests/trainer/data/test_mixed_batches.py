"""Batches of a mix of corpora: the exact share of each, in a fixed order."""

import hashlib
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lehr_testing.batches import SHAPE, STAGED, load, step_rows
from lehr_testing.corpora import prepare_mix
from lehr_testing.properties import examples
from lehr_trainer.configs.train import BatchConfig
from lehr_trainer.data.tokens import TrainTokens
from lehr_trainer.errors import BadData


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A mix of 3 to 1, without equal blocks."""
    folder = tmp_path_factory.mktemp("mix")
    rng = random.Random(0)
    parts = {
        name: {"weight": weight, "texts": [rng.randbytes(50).hex() for _ in range(count)]}
        for name, weight, count in (("web", 0.75, 300), ("code", 0.25, 30))
    }
    return prepare_mix(folder, parts)


def corpus_blocks(prepared, length=16):
    tokens = TrainTokens.open(prepared, "preload", length)
    every = np.arange(tokens.blocks)
    return tokens.windows(every, np.zeros_like(every), length)


def test_each_step_has_its_exact_share_of_each_corpus_and_no_block_early(mixed):
    blocks = {name: corpus_blocks(part) for name, part in mixed.parts.items()}
    known = {}
    for name, rows in blocks.items():
        for number, row in enumerate(rows.astype(np.int64)):
            known.setdefault(row.tobytes(), (name, number))
    seen = {name: np.zeros(len(rows), int) for name, rows in blocks.items()}
    assert len(known) == sum(map(len, blocks.values())), "no two blocks are the same"
    with load(mixed) as loader:
        for step in range(120):
            inputs, targets = loader.batch(step)
            rows = torch.cat([inputs, targets[:, -1:]], dim=1).numpy()
            found = [known[row.tobytes()] for row in rows]
            assert sum(name == "web" for name, _ in found) == 9
            for name, number in found:
                seen[name][number] += 1
            assert all(times.max() - times.min() <= 1 for times in seen.values())
        metrics = loader.epochs(120)
    epochs = {name: times.sum() / len(times) for name, times in seen.items()}
    assert epochs["code"] > 1.5 > epochs["web"] > 0.5
    assert metrics == pytest.approx(
        {
            "data/epoch": epochs["code"],
            "data/epoch/web": epochs["web"],
            "data/epoch/code": epochs["code"],
            "data/share/web": 0.75,
            "data/share/code": 0.25,
        }
    )


@settings(max_examples=examples(20), deadline=None)
@given(
    step=st.integers(0, 10**7),
    world_size=st.sampled_from([1, 2, 3, 6]),
    micro_batch=st.sampled_from([None, 1]),
    workers=st.sampled_from([0, 2]),
)
def test_a_step_of_a_mix_has_the_same_sequences_however_it_is_shared(
    mixed, step, world_size, micro_batch, workers
):
    shape = SHAPE.model_copy(update={"micro_batch": micro_batch})
    expected = step_rows(mixed, step, 1)
    shared = step_rows(mixed, step, world_size, shape, workers=workers)
    assert torch.equal(shared[0], expected[0])
    assert torch.equal(shared[1], expected[1])


def test_sequences_of_a_mix_may_grow_without_a_repetition(mixed):
    long = BatchConfig(sequences=6, sequence_length=32)
    for step in (0, 5, 89):
        short, _ = step_rows(mixed, step, 1, STAGED, steps=100)
        whole, _ = step_rows(mixed, step, 1, long)
        assert torch.equal(short.reshape(6, 32), whole)


def test_batches_of_a_mix_stay_bitwise_the_same(mixed):
    digest = hashlib.sha256()
    for step in (0, 1, 19, 500):
        inputs, targets = step_rows(mixed, step, 2)
        digest.update(inputs.numpy().tobytes() + targets.numpy().tobytes())
    assert digest.hexdigest()[:16] == "bde898cd3c8fc712"


def test_a_corpus_of_a_mix_that_is_too_short_is_named(mixed):
    with pytest.raises(BadData, match=r"data\.corpus\.parts\.code: .* fewer than one sequence"):
        load(mixed, BatchConfig(sequences=1, sequence_length=8192))
