"""Comparisons list differences, and mark those within the noise."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.analysis.compare import ComparedRun, compare, compared_metric, differences, flatten, note
from lehr.analysis.curve import Curve
from lehr.analysis.groups import (
    GroupedRun,
    SeededRun,
    bin_name,
    edges,
    group_names,
    grouped,
    plain,
)


def spec(lr=3e-4, optimizer="adamw", seed=0, **more):
    named = optimizer if isinstance(optimizer, dict) else {"name": optimizer, "lr": lr}
    return {
        "name": "x",
        "train": {"optimizer": named, "seed": seed, **more},
        "resources": {"gpus": 1},
    }


def run(name, values, *, every=10, held_out: str | None = "a" * 64, **kwargs):
    curve = [((n + 1) * every, value) for n, value in enumerate(values)]
    return ComparedRun(id=name, name=name, spec=spec(**kwargs), curve=curve, held_out=held_out)


def test_comparison_with_optimizer_and_rate_changed_has_a_note():
    result = compare([run("fp32", [4, 3]), run("8bit", [4, 2.9], optimizer="adamw8bit", lr=9e-4)])
    assert any("differ in 2 factors" in note for note in result.notes)


def test_one_factor_is_a_fair_comparison():
    result = compare([run("a", [4, 3]), run("b", [4, 2.5], lr=9e-4)])
    assert result.notes == []
    assert result.results[1].delta == pytest.approx(-0.5)


def test_token_budget_and_the_steps_that_follow_from_it_are_one_factor():
    short, long = ({"tokens": 1000 * n, "steps": 10 * n} for n in (1, 2))
    result = compare([run("a", [4, 3], **short), run("b", [4, 2.5], **long)])
    assert result.notes == []
    assert {one.path: one.factor for one in result.differences} == {
        "train.steps": True,
        "train.tokens": False,
    }


def test_a_gap_within_the_noise_between_seeds_is_one_sentence_for_each_group():
    runs = [
        run("a", [3.00]),
        run("a2", [3.04], seed=1),
        run("b", [3.02], lr=9e-4),
        run("b2", [2.98], lr=9e-4, seed=1),
    ]
    result = compare(runs)
    assert result.noise == pytest.approx(0.04 / math.sqrt(2))
    [gap] = result.gaps
    assert (gap.base_ids, gap.run_ids) == (["a", "a2"], ["b", "b2"])
    assert gap.verdict == "within_noise"
    assert gap.difference == pytest.approx(-0.02)
    # The noise of two groups with two seeds each has two degrees of freedom: t is 4.3027.
    assert gap.half_width == pytest.approx(4.302653 * 0.04 / math.sqrt(2))
    assert "noise pooled over 2 groups" in gap.sentence
    assert result.means[0].startswith("a: val/loss 3.02 ± 0.25 (mean of 2 seeds)")


def test_one_seed_each_names_the_command_that_measures_the_noise():
    [gap] = compare([run("a", [3.0]), run("b", [2.9], lr=9e-4)]).gaps
    assert gap.verdict == "unknown"
    assert "one seed each" in gap.sentence
    assert "`lehr seeds a --n 3`" in gap.sentence


def test_no_seeds_are_proposed_for_a_script_without_an_argument_for_them():
    runs = [
        ComparedRun(id=name, name=name, spec={"trainer": {"args": {"lr": lr}}}, curve=[(10, loss)])
        for name, lr, loss in (("a", 1e-3, 3.0), ("b", 2e-3, 2.9))
    ]
    [gap] = compare(runs).gaps
    assert gap.verdict == "unknown"
    assert "lehr seeds" not in gap.sentence


def test_three_seeds_are_judged_by_their_own_noise_and_not_by_that_of_other_groups():
    runs = [
        run(f"{lr}-{seed}", [middle + 0.01 * seed * scale], lr=lr, seed=seed)
        for lr, middle, scale in ((1e-3, 3.0, 1), (2e-3, 2.9, 1), (4e-3, 4.0, 100))
        for seed in range(3)
    ]
    better, worse = compare(runs).gaps
    assert better.verdict == "differs"
    assert "pooled" not in better.sentence
    assert worse.verdict == "within_noise"


def test_a_diverged_seed_is_said_and_never_averaged():
    runs = [run("a", [3.0]), run("a2", [3.1], seed=1), run("b", [math.nan], lr=9e-4)]
    [gap] = compare(runs).gaps
    assert gap.verdict == "diverged"
    assert gap.difference is None
    assert "b diverged" in gap.sentence


def test_values_of_different_held_out_sets_have_no_delta_and_it_is_the_first_note():
    runs = [
        run("docs", [4, 3]),
        run("few", [4, 2], max_tokens=5000, lr=9e-4, held_out="b" * 64),
        run("again", [4, 2.5]),
    ]
    result = compare(runs)
    assert result.held_out == "different"
    assert [s.value for s in result.results] == [3, 2, 2.5]
    assert [s.delta for s in result.results] == [0, None, -0.5]
    assert [s.incomparable for s in result.results] == [None, "another held-out set", None]
    assert result.notes[0] == result.held_out_note
    assert result.notes[0].startswith("val/loss cannot be compared")
    assert len(result.notes) == 2


def test_runs_are_compared_at_a_step_that_all_have_reached():
    result = compare([run("long", [4, 3, 2, 1]), run("short", [4.5, 3.5], lr=1e-3)])
    assert result.common_x == 20
    assert [s.value for s in result.results] == [3, 3.5]


def test_value_long_before_the_common_step_is_not_compared():
    rare = dataclasses.replace(run("rare", [], lr=1e-3), curve=[(0, 3.5), (200, 1.0)])
    result = compare([run("a", [2.0, 1.5]), rare])
    assert result.common_x == 20
    assert [s.value for s in result.results] == [1.5, None]
    assert result.results[1].incomparable == "its last value until then is at 0"
    assert result.gaps == []


def test_runs_without_a_common_point_are_not_compared():
    result = compare([run("a", [1.0]), run("b", [1.0], every=100)])
    assert [(s.value, s.incomparable) for s in result.results] == [
        (None, "no value where the others have one")
    ] * 2


def test_difference_that_changes_only_speed_is_shown_but_is_no_factor():
    (found,) = differences([spec(threads=1), spec(threads=2)])
    assert (found.path, found.factor) == ("train.threads", False)


def test_code_is_one_factor_however_its_files_were_chosen():
    code = {"digest": "a" * 64, "root": ".", "include": ["*.py"], "exclude": [], "limit_mb": 100}
    other = {"digest": "b" * 64, "root": "src", "include": ["."], "exclude": ["x"], "limit_mb": 200}
    runs = [
        dataclasses.replace(run(name, [4, 3]), spec={**spec(), "code": chosen})
        for name, chosen in (("a", code), ("b", other))
    ]
    result = compare(runs)
    assert len(result.differences) == len(code)
    assert [one.path for one in result.differences if one.factor] == ["code.digest"]
    assert result.notes == []


def test_a_field_of_only_one_optimizer_is_not_a_separate_factor():
    fused = {"optimizer": {"name": "adamw", "lr": 3e-4, "fused": True}}
    other = {"optimizer": {"name": "muon", "lr": 3e-4}}
    found = {d.path: d.factor for d in differences([spec(**fused), spec(**other)])}
    assert found == {"train.optimizer.fused": False, "train.optimizer.name": True}
    # The same field missing under the same name is one.
    fewer = {"optimizer": {"name": "adamw", "lr": 3e-4}}
    found = {d.path: d.factor for d in differences([spec(**fused), spec(**fewer)])}
    assert found == {"train.optimizer.fused": True}
    # What only one of them has at all is one factor: its kind.
    scaled = {"rope_scaling": {"kind": "yarn", "factor": 4}}
    found = {d.path: d.factor for d in differences([spec(**scaled), spec()])}
    assert found == {"train.rope_scaling.factor": False, "train.rope_scaling.kind": True}


@pytest.mark.parametrize(
    ("stage", "factors"),
    [
        ({"optimizer": {"lr": 1e-3}}, ["train.stages.anneal.optimizer.lr"]),
        # The steps follow from them.
        ({"tokens": 20}, ["train.stages.anneal.tokens"]),
        ({"batch": {"micro_batch": 2}, "validation": {"every": 5}}, []),
        ({"name": None}, ["train.stages.1.tokens", "train.stages.anneal.tokens"]),
    ],
)
def test_a_stage_differs_by_what_it_changes(stage, factors):
    def staged(**changes):
        stages = [{"name": "main", "tokens": 10}, {"name": "anneal", "tokens": 10, **changes}]
        return spec(stages=stages, steps=sum(one["tokens"] for one in stages))

    found = differences([staged(), staged(**stage)])
    assert [one.path for one in found if one.factor] == factors


@given(
    st.recursive(
        st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2),
        lambda leaf: st.dictionaries(st.text("abc", min_size=1, max_size=2), leaf, max_size=3),
        max_leaves=12,
    )
)
def test_spec_has_no_difference_to_itself(value):
    assert differences([{"a": value}, {"a": value}]) == []
    assert all(not isinstance(v, dict) or not v for v in flatten({"a": value}).values())


STEPS = list(range(1, 21))


def on_batches(name, digests, **kwargs):
    return dataclasses.replace(run(name, [3.0], **kwargs), digests=Curve(STEPS, digests))


def test_other_batches_are_shown_with_their_first_step_and_noted_if_the_specs_are_the_same():
    digests = [float(step**2) for step in STEPS]
    other = [*digests[:11], *(d + 1 for d in digests[11:])]
    result = compare([on_batches("a", digests), on_batches("b", other, lr=9e-4)])
    assert (result.batches, result.results[1].batches_differ_from) == ("different", 12)
    assert "b (from step 12 on)" in result.batches_note
    assert result.notes == [
        "a and b trained on different batches from step 12 on, but their specs do not show why."
    ]


@pytest.mark.parametrize(
    ("changes", "noted"),
    [
        ({"seed": 3}, False),
        ({"data": {"max_tokens": 5}}, False),
        ({"batch": {"sequences": 9}}, False),
        ({"batch": {"micro_batch": 1}}, True),
        ({"data": {"workers": 9}}, True),
        ({"lr": 9e-4}, True),
    ],
)
def test_other_batches_need_no_note_where_the_specs_explain_them(changes, noted):
    digests = [float(step) for step in STEPS]
    result = compare([on_batches("a", digests), on_batches("b", digests[::-1], **changes)])
    assert result.batches == "different"
    assert any("specs do not show why" in note for note in result.notes) == noted


def test_run_without_a_value_leaves_the_others_comparable():
    cancelled = dataclasses.replace(
        run("d", [], seed=3, held_out=None), without="no value (cancelled)"
    )
    runs = [run("a", [1.0]), run("b", [1.2], seed=1), run("c", [1.1], lr=1.0), cancelled]
    result = compare(runs)
    assert [s.value for s in result.results] == [1.0, 1.2, 1.1, None]
    assert [s.incomparable for s in result.results] == [None, None, None, "no value (cancelled)"]
    assert result.noise == pytest.approx(0.2 / math.sqrt(2))
    assert [gap.base_ids for gap in result.gaps] == [["a", "b", "d"]]
    assert compare([cancelled, runs[2], runs[0]]).gaps[0].run_ids == ["c"]
    assert compare([run("e", [], lr=9.0), *runs]).gaps == []
    alone = compare([runs[0], runs[2], cancelled])
    assert "no two have a finite value" in alone.noise_note
    assert "no two of these runs differ only" in compare(runs[1:3]).noise_note


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


CASES = json.loads((Path(__file__).parents[2] / "data" / "metric_bins.json").read_text())
RUNS = [
    GroupedRun(
        f"r{n}",
        {"train.optimizer.lr": lr, "train.model": "tiny", "train.seed": n, "data.lr": 1},
        project,
        tags,
        {"val/loss": loss},
    )
    for n, (lr, project, tags, loss) in enumerate(
        [(1e-3, "a", ["x", "b"], 2.0), (1e-3, "a", [], 2.5), (3e-3, "b", ["x"], 3.25)]
    )
]


@pytest.mark.parametrize("case", CASES, ids=[case["case"] for case in CASES])
def test_values_of_a_metric_are_in_parts_or_groups_of_their_own(case):
    values = [None if value is None else float(value) for value in case["values"]]
    at = edges(value for value in values if value is not None)
    assert [bin_name("m", value, at, plain) for value in values] == case["names"]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=40))
def test_parts_hold_equally_many_distinct_values_and_are_in_order(values):
    at = edges(values)
    if at is None:
        assert all(value.is_integer() for value in values)
        return
    assert at == sorted(set(at))
    assert len(at) <= 3
    parts = [sum(edge <= value for edge in at) for value in sorted(values)]
    assert set(parts) == set(range(len(at) + 1))
    if len(set(values)) == len(values):
        sizes = [parts.count(part) for part in set(parts)]
        assert max(sizes) - min(sizes) <= 1


def test_keys_are_paths_or_their_ends_tags_and_the_project():
    assert group_names(RUNS, "train.optimizer.lr") == ["lr 1.0e-3", "lr 1.0e-3", "lr 3.0e-3"]
    assert group_names(RUNS, "optimizer.LR") == group_names(RUNS, "train.optimizer.lr")
    # The shortest of several paths that end alike, as the filter of the dashboard takes it.
    assert group_names(RUNS, "lr") == ["lr 1"] * 3
    # What a script of its own names so takes it from no other run.
    own = GroupedRun("s", {"args.lr": 0.5, "optimizer.name": "muon"}, "p")
    assert group_names([*RUNS, own], "lr")[2:] == ["lr 1", "lr 0.5"]
    assert group_names([own], "name") == ["optimizer.name muon"]
    assert group_names(RUNS, "tag") == ["b, x", "no tag", "x"]
    assert group_names(RUNS, "tag:x") == ["x", "not x", "x"]
    assert group_names(RUNS, "project, seed") == ["a · seed 0", "a · seed 1", "b · seed 2"]


def test_a_metric_is_divided_into_equal_parts_or_at_a_named_value():
    assert group_names(RUNS, "val/loss") == [
        "val/loss below 2.3",
        "val/loss from 2.3",
        "val/loss from 2.3",
    ]
    many = [GroupedRun(str(n), {"lr": n, "seed": n}, "p") for n in (*range(1, 14), None)]
    assert group_names(many, "lr")[::4] == ["lr below 4", "lr 4 to 7", "lr 7 to 10", "lr from 10"]
    assert group_names(many[:12], "lr")[::11] == ["lr 1", "lr 12"]
    assert len(set(group_names(many, "seed"))) == len(many)
    rates = [GroupedRun(str(n), {"lr": n * 1e-3, "width": 64}, "p") for n in range(13, 0, -1)]
    assert group_names(rates, "lr")[::5] == ["lr from 0.01", "lr 7.0e-3 to 0.01", "lr below 4.0e-3"]
    assert group_names(RUNS, "val/loss<3") == ["val/loss below 3"] * 2 + ["val/loss from 3"]
    assert group_names(RUNS, "tag:x,val/loss<3")[1] == "not x · val/loss below 3"


def test_repetitions_of_a_seed_are_one_value_their_mean():
    runs = [
        SeededRun(name, name, "a", seed, value)
        for name, seed, value in (
            ("r1", 0, 3.0),
            ("r2", 0, 4.0),
            ("r3", 1, 5.0),
            ("r4", 1, None),
        )
    ]
    [group] = grouped(runs)
    assert dict(group.values) == {0: 3.5, 1: 5.0}
