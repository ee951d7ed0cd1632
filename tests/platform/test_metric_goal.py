"""The goal of a metric by its name."""

from __future__ import annotations

import pytest

from lehr.base.names import goal_of

GOALS = {
    "minimize": "val/loss loss/val Loss/train evalLoss val/cross_entropy eval/nll test_ppl "
    "val/bits_per_byte raw_ce_fp32 loss_same_tokens step_time_s error_rate eval/wer losses/train",
    "maximize": "val/accuracy Accuracy/test eval_accuracy evalAccuracy top1_acc val/acc acc5 mfu "
    "tokens_per_s eval_samples_per_second acc_norm,none exact_match eval/f1 reward/mean "
    "task/mean task/average/mean task/own/accuracy_centred",
    None: "params/head/norm train/loss_scale train/lr train/grad_norm my/score lossless forward "
    "task/mean_stderr task/own/accuracy_stderr task/own/bits_per_byte_stderr",
}


@pytest.mark.parametrize(("goal", "names"), GOALS.items())
def test_the_words_of_a_name_show_its_goal(goal, names):
    assert {name: goal_of(name) for name in names.split()} == dict.fromkeys(names.split(), goal)
