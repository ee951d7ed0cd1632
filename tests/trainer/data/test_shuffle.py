"""The order of training data is a permutation, computed and not stored."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lehr_testing.properties import examples
from lehr_trainer.data.shuffle import Passes, SampleOrder, shuffled

seeds = st.integers(0, 2**63)
epochs = st.integers(0, 10_000)


@settings(max_examples=examples(40), deadline=None)
@given(size=st.integers(1, 3000), seed=seeds, epoch=epochs)
def test_each_epoch_visits_every_block_exactly_once(size, seed, epoch):
    order = shuffled(seed, epoch, size, np.arange(size))
    assert sorted(order.tolist()) == list(range(size))


@settings(deadline=None)
@given(
    size=st.integers(1, 10**12),
    seed=seeds,
    epoch=epochs,
    shares=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=40),
)
def test_place_of_a_block_does_not_depend_on_other_requests(size, seed, epoch, shares):
    indices = np.array([int(share * size) for share in shares], dtype=np.int64)
    together = shuffled(seed, epoch, size, indices)
    alone = [int(shuffled(seed, epoch, size, indices[i : i + 1])[0]) for i in range(len(shares))]
    assert together.tolist() == alone
    assert ((together >= 0) & (together < size)).all()


@settings(deadline=None)
@given(size=st.integers(1, 10**12), seed=seeds, first=st.integers(0, 10**12))
def test_different_indices_of_a_huge_corpus_give_different_blocks(size, seed, first):
    count = min(size, 500)
    indices = (first + np.arange(count)) % size
    assert np.unique(shuffled(seed, 0, size, indices)).size == count


@pytest.mark.parametrize(("other_seed", "other_epoch"), [(8, 0), (7, 1)])
def test_another_seed_or_epoch_gives_another_order(other_seed, other_epoch):
    indices = np.arange(1000)
    ours = shuffled(7, 0, 1000, indices)
    theirs = shuffled(other_seed, other_epoch, 1000, indices)
    # Two random orders of n things agree in one place on average.
    assert (ours == theirs).sum() < 10


def test_the_order_is_well_mixed():
    size = 10_000
    order = shuffled(3, 0, size, np.arange(size))
    correlation = np.corrcoef(np.arange(size), order)[0, 1]
    assert abs(correlation) < 0.05
    assert (order == np.arange(size)).sum() < 10
    # Neighbours do not stay neighbours: uniform steps are a third of the size on average.
    assert abs(np.abs(np.diff(order)).mean() / size - 1 / 3) < 0.02


def test_the_order_never_changes_between_versions():
    """A run that resumes under a newer version must get the same data."""
    assert shuffled(0, 0, 1000, np.arange(8)).tolist() == GOLDEN
    assert shuffled(42, 3, 2_000_003, np.array([0, 1, 2_000_002])).tolist() == GOLDEN_LARGE


GOLDEN = [724, 925, 846, 707, 646, 929, 305, 165]
GOLDEN_LARGE = [1194737, 708329, 797971]


@settings(max_examples=examples(25), deadline=None)
@given(
    blocks=st.integers(1, 6000),
    first=st.integers(0, 10**12),
    count=st.integers(1, 6000),
    seed=seeds,
)
def test_stream_is_the_concatenation_of_the_epochs(blocks, first, count, seed):
    stream = SampleOrder(Passes(seed, blocks))
    found = stream.blocks(first, first + count - 1)
    assert found.size == count
    for place in {0, count // 2, count - 1}:
        epoch, index = divmod(first + place, blocks)
        assert found[place] == shuffled(seed, epoch, blocks, np.array([index]))[0]
    assert np.array_equal(found, stream.blocks(first, first + count - 1))


@pytest.mark.parametrize("blocks", [1, 2, 63, 64, 65])
def test_an_epoch_may_begin_at_any_place_of_a_stretch(blocks):
    count = 64 * 65
    found = SampleOrder(Passes(5, blocks)).blocks(0, count - 1)
    epochs = [shuffled(5, n, blocks, np.arange(blocks)) for n in range(-(-count // blocks))]
    assert np.array_equal(found, np.concatenate(epochs)[:count])
