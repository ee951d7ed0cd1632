"""Batches whose sequences grow: the same tokens a step, none repeated and none skipped."""

import pytest
import torch

from lehr_testing.batches import STAGED, load, step_rows
from lehr_trainer.configs.train import BatchConfig


def test_sequences_grow_at_their_share_of_the_steps_and_tokens_stay(prepared):
    with load(prepared, STAGED, steps=100) as loader:
        shapes = [tuple(loader.batch(step)[0].shape) for step in (0, 89, 90, 99)]
    assert shapes == [(12, 16), (12, 16), (6, 32), (6, 32)]


def test_a_step_covers_the_same_tokens_at_either_length(prepared):
    """A change of length neither repeats nor skips anything."""
    long = BatchConfig(sequences=6, sequence_length=32)
    for step in (0, 5, 89):
        short, _ = step_rows(prepared, step, 1, STAGED, steps=100)
        whole, _ = step_rows(prepared, step, 1, long)
        assert torch.equal(short.reshape(6, 32), whole)


def test_prefetching_crosses_the_change_of_length(prepared):
    with (
        load(prepared, STAGED, steps=20, workers=2) as ahead,
        load(prepared, STAGED, steps=20) as plain,
    ):
        for step in range(20):
            assert torch.equal(ahead.batch(step)[1], plain.batch(step)[1])


def test_a_micro_batch_keeps_its_tokens_through_a_change_of_length(prepared):
    shape = STAGED.model_copy(update={"micro_batch": 4})
    with load(prepared, shape, steps=10) as loader:
        assert loader.micro_steps(0) == 3
        assert loader.batch(9)[0].shape == (2, 32)
        assert loader.micro_steps(9) == 3
    assert torch.equal(
        step_rows(prepared, 9, 3, shape, steps=10)[0],
        step_rows(prepared, 9, 1, STAGED, steps=10)[0],
    )


@pytest.mark.parametrize(
    ("stages", "says"),
    [
        ([{"after": 0.5, "sequence_length": 24}], "16 does not divide the longest, 24"),
        ([{"after": 0.5, "sequence_length": 128}], "does not divide the 192 tokens"),
        (
            [{"after": 0.5, "sequence_length": 32}, {"after": 0.4, "sequence_length": 64}],
            "must begin one after another",
        ),
    ],
)
def test_invalid_stages_are_rejected(stages, says):
    with pytest.raises(ValueError, match=says):
        BatchConfig(sequences=12, sequence_length=16, stages=stages)
