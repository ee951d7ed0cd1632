"""The metric that a comparison shows where the user names none."""

from __future__ import annotations

import pytest

from lehr.analysis.compare import compared_metric, note

OWN = ("train/lr", "tokens_per_s")


@pytest.mark.parametrize(
    ("logged", "metric"),
    [
        ([["val/loss", "train/loss"], ["val/loss"]], "val/loss"),
        ([["val/loss", "train/loss"], ["train/loss"]], "train/loss"),
        ([["val/loss"], ["train/loss"]], "val/loss"),
        ([["aux_loss", "eval/nll_loss"], ["eval/nll_loss", "aux_loss"]], "eval/nll_loss"),
        ([["tokens_per_s", "train/lr", "reward", "eval/acc"]] * 2, "eval/acc"),
        ([["eval/acc", "aux_loss"]] * 2, "aux_loss"),
        ([["tokens_per_s"]] * 2, "val/loss"),
        # A run that has logged nothing yet may log anything.
        ([["loss_a"], []], "loss_a"),
        ([[], []], "val/loss"),
    ],
)
def test_metric_is_one_that_all_runs_have(logged, metric):
    assert compared_metric(logged, OWN) == metric


def test_note_names_another_metric_than_the_usual_one():
    assert note("val/loss", [["val/loss"]]) is None
    assert note("train/loss", [["train/loss"], ["train/loss", "val/loss"]]) == (
        "train/loss is compared, which all these runs have; some have val/loss."
    )
    assert "none has val/loss" in str(note("acc", [["acc"]]))
