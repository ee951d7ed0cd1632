"""The digest of a batch: equal for the same sequences in any order, different for others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lehr_testing.properties import examples
from lehr_trainer.data.loader import MODULUS, added, sequences_digest

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
