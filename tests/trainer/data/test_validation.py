"""The held-out set: fixed tokens in a fixed order, for any world size and micro-batch."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lehr_testing.corpora import documents, prepare_texts
from lehr_testing.properties import examples
from lehr_trainer.data import ValidationSet
from lehr_trainer.errors import BadData


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return prepare_texts(tmp_path_factory.mktemp("corpus"), documents(300), share=0.2)


def rows(prepared, world_size=1, micro_batch=8, length=16, tokens=10**9):
    found = []
    for rank in range(world_size):
        part = ValidationSet(prepared, length, tokens, rank, world_size, micro_batch=micro_batch)
        found += [
            tuple(both)
            for inputs, targets in part.batches()
            for both in torch.cat([inputs, targets], dim=1).tolist()
        ]
    return found


@settings(max_examples=examples(30), deadline=None)
@given(world_size=st.integers(1, 9), micro_batch=st.integers(1, 40), length=st.integers(1, 100))
def test_every_world_size_scores_the_same_tokens_once(prepared, world_size, micro_batch, length):
    alone = rows(prepared, length=length)
    assert sorted(rows(prepared, world_size, micro_batch, length)) == sorted(alone)
    assert len(alone) == ValidationSet(prepared, length, 10**9, 0, world_size).sequences


@settings(max_examples=examples(30), deadline=None)
@given(world_size=st.integers(1, 9), micro_batch=st.integers(1, 40), tokens=st.integers(400, 4000))
def test_padded_batches_of_all_ranks_have_one_shape_and_score_the_same_tokens(
    prepared, world_size, micro_batch, tokens
):
    shapes = set()
    found = []
    for rank in range(world_size):
        given = (prepared, 16, tokens, rank, world_size)
        plain = list(ValidationSet(*given, micro_batch=micro_batch).batches())
        padded = list(ValidationSet(*given, micro_batch=micro_batch, padded=True).batches())
        for (inputs, targets), (more, scored) in zip(plain, padded, strict=True):
            shapes.add(tuple(more.shape))
            assert torch.equal(more[: len(inputs)], inputs)
            assert torch.equal(scored, targets)
            found.append(len(targets))
    assert len(shapes) == 1
    # No more rows than a rank has, where it has fewer than a micro-batch.
    [(rows_of_a_batch, _)] = shapes
    assert rows_of_a_batch == max(found)


def test_the_first_held_out_tokens_are_scored_end_to_end(prepared):
    held_out = np.fromfile(prepared.directory / "validation.bin", dtype=prepared.dtype)
    part = ValidationSet(prepared, 16, 1000)
    targets = torch.cat([y.flatten() for _, y in part.batches()]).tolist()
    assert part.tokens == len(targets) == 1000 // 16 * 16
    assert targets == held_out[1 : 1 + part.tokens].tolist()
    inputs = torch.cat([x.flatten() for x, _ in part.batches()]).tolist()
    assert inputs == held_out[: part.tokens].tolist()


def test_the_order_is_fixed(prepared):
    part = ValidationSet(prepared, 16, 2000, 1, 2)
    once, twice = list(part.batches()), list(part.batches())
    assert all(torch.equal(a[0], b[0]) for a, b in zip(once, twice, strict=True))
    assert once[0][0].dtype == torch.int64


def test_digest_depends_on_the_scored_tokens(tmp_path, prepared):
    texts = documents(300)
    same = prepare_texts(tmp_path, texts, share=0.2)
    assert same.validation_digest == prepared.validation_digest
    fewer = prepare_texts(tmp_path, texts, share=0.2, tokens=1000)
    assert fewer.digest == same.digest
    assert fewer.validation_digest != same.validation_digest
    assert fewer.validation_tokens == 1000


def test_a_changed_set_is_an_error(prepared):
    prepared.require_same(digest=prepared.digest, validation_digest=prepared.validation_digest)
    prepared.require_same()
    with pytest.raises(BadData, match="validation set changed: 0123456789ab before"):
        prepared.require_same(validation_digest="0123456789abcdef")
    with pytest.raises(BadData, match="training data changed"):
        prepared.require_same(digest="0" * 64)


def test_bytes_per_token_counts_the_scored_text(tmp_path):
    """A token has one byte, but the end of a document has none."""
    texts = documents(200)
    whole = prepare_texts(tmp_path, texts, share=0.2)
    held_out = np.fromfile(whole.directory / "validation.bin", dtype=whole.dtype)
    ends = int((held_out == whole.eos_id).sum())
    assert math.isclose(whole.bytes_per_token, 1 - ends / held_out.size)
    part = prepare_texts(tmp_path, texts, share=0.2, tokens=500)
    ends = int((held_out[:501] == part.eos_id).sum())
    assert math.isclose(part.bytes_per_token, 1 - ends / 501, abs_tol=0.003)


def test_a_set_shorter_than_a_sequence_is_refused(prepared):
    with pytest.raises(BadData, match=r"fewer than one sequence of 100,000.*validation.share"):
        ValidationSet(prepared, 100_000, 10**9)
