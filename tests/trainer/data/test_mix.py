"""The order of a mix: exact proportions, no early repetition, a function of the position alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lehr_testing.properties import examples
from lehr_trainer.data.mix import Interleave, MixOrder, part_seed, whole_weights
from lehr_trainer.data.shuffle import Passes

few_weights = st.lists(st.integers(1, 60), min_size=2, max_size=6)
any_weights = st.lists(st.integers(1, 2**27), min_size=2, max_size=12)


@settings(max_examples=examples(20), deadline=None)
@given(weights=any_weights, start=st.integers(0, 2**50))
def test_each_prefix_and_window_has_the_weights_proportions(weights, start):
    count = 400
    interleave = Interleave(weights)
    parts, before = interleave.turns(np.arange(start, start + count, dtype=np.int64))
    total = sum(weights)
    counted = interleave.counts(start)
    assert sum(counted) == start
    for at in range(count):
        part = int(parts[at])
        assert before[at] == counted[part], "turns are numbered without gaps"
        counted[part] += 1
    assert counted == interleave.counts(start + count)
    for position in (start, start + count // 2, start + count):
        for have, weight in zip(interleave.counts(position), weights, strict=True):
            # Whole numbers: a float would not hold the product.
            assert abs(have * total - position * weight) < 2 * total


@settings(max_examples=examples(20), deadline=None)
@given(weights=few_weights, period=st.integers(0, 1000))
def test_a_period_has_each_part_exactly_as_often_as_its_weight(weights, period):
    total = sum(weights)
    positions = np.arange(period * total, (period + 1) * total, dtype=np.int64)
    parts, _ = Interleave(weights).turns(positions)
    assert np.bincount(parts, minlength=len(weights)).tolist() == weights


@pytest.mark.parametrize(
    ("weights", "whole"),
    [
        ({"a": 0.7, "b": 0.3}, {"a": 7, "b": 3}),
        ({"a": 2.0, "b": 2.0}, {"a": 1, "b": 1}),
        ({"a": 627.3e9, "b": 15.2e9}, {"a": 6273, "b": 152}),
        ({"a": 1e-3, "b": 0.5, "c": 0.499}, {"a": 1, "b": 500, "c": 499}),
    ],
)
def test_weights_become_whole_numbers_in_the_same_proportion(weights, whole):
    assert whole_weights(weights) == whole


def test_weights_without_a_small_common_denominator_are_rounded():
    found = whole_weights({"a": math.pi, "b": math.e})
    assert sum(found.values()) < 2**31
    assert found["a"] / found["b"] == pytest.approx(math.pi / math.e, rel=1e-8)
    assert whole_weights({"a": 1e-300, "b": 1.0})["a"] == 1


orders = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**63),
        "weights": few_weights,
        "window": st.integers(1, 40),
        "data": st.data(),
    }
)


@settings(max_examples=examples(20), deadline=None)
@given(drawn=orders)
def test_no_block_comes_again_before_its_corpus_is_through(drawn):
    weights = drawn["weights"]
    sizes = drawn["data"].draw(
        st.lists(st.integers(1, 50), min_size=len(weights), max_size=len(weights))
    )
    order = mix_order(drawn["seed"], weights, sizes, drawn["window"])
    steps = 300 // drawn["window"] + 1
    seen = [np.zeros(size, dtype=int) for size in sizes]
    for step in range(steps):
        parts, blocks = order.blocks(step * drawn["window"], (step + 1) * drawn["window"] - 1)
        counted = np.bincount(parts, minlength=len(weights))
        due = np.subtract(
            order.interleave.counts((step + 1) * drawn["window"]),
            order.interleave.counts(step * drawn["window"]),
        )
        assert counted.tolist() == due.tolist(), "the shuffle stays within the step"
        for part, times in enumerate(seen):
            np.add.at(times, blocks[parts == part], 1)
            assert times.max() - times.min() <= 1, "all blocks come once before one comes twice"


@settings(max_examples=examples(20), deadline=None)
@given(drawn=orders, first=st.integers(0, 10_000), count=st.integers(1, 300))
def test_order_from_any_position_is_that_of_the_whole(drawn, first, count):
    weights = drawn["weights"]
    sizes = [7 * weight + 3 for weight in weights]
    order = mix_order(drawn["seed"], weights, sizes, drawn["window"])
    whole = order.blocks(0, first + count)
    again = mix_order(drawn["seed"], weights, sizes, drawn["window"])
    assert np.array_equal(again.blocks(first, first + count), whole[:, first:])


def test_each_epoch_of_a_corpus_has_a_new_order():
    order = mix_order(3, [1, 1], [50, 70], 2)
    parts, blocks = order.blocks(0, 199)
    mine = blocks[parts == 0]
    assert sorted(mine[:50]) == sorted(mine[50:]) == list(range(50))
    assert mine[:50].tolist() != mine[50:].tolist()


def mix_order(seed, weights, sizes, window):
    names = [f"part-{number}" for number in range(len(weights))]
    passes = [Passes(part_seed(seed, name), size) for name, size in zip(names, sizes, strict=True)]
    return MixOrder(seed, dict(zip(names, weights, strict=True)), passes, window)


def test_definition_of_the_order_stays():
    """Compare with recorded places: a run that resumes with a newer version must not change."""
    parts, blocks = mix_order(7, [7, 2, 1], [100, 30, 5], 10).blocks(40, 49)
    assert list(zip(parts.tolist(), blocks.tolist(), strict=True)) == [
        (1, 14),
        (0, 1),
        (0, 28),
        (0, 16),
        (1, 6),
        (2, 2),
        (0, 54),
        (0, 18),
        (0, 50),
        (0, 35),
    ]
