"""The ranking of trials: compared at one step, among finite values, with notes."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.analysis.noise import pooled_noise
from lehr.analysis.sweep_figure import sweep_figure
from lehr.app.presenters.ranking import (
    TrialStatus,
    common_step,
    lead,
    noise_band,
    notes,
    points_of,
    rank,
    seed_notes,
)
from lehr_testing.api import api_client, begin, ingest, line

LR = "train.optimizer.lr"


def trial_status(n, value=None, step=None, state="running", lr=None):
    return TrialStatus(f"r{n}", {LR: lr if lr is not None else n * 1e-4}, state, value, step)


def never(run_id, step):
    raise AssertionError(f"asked for {run_id} at {step}")


def test_trials_at_one_step_are_ranked_by_value():
    trials = [trial_status(1, 3.0, 100), trial_status(2, 1.0, 100), trial_status(3, 2.0, 100)]
    verdict = rank(trials, "minimize", never)
    assert verdict.ranks == {"r2": 1, "r3": 2, "r1": 3}
    assert verdict.best == "r2"
    assert verdict.step == 100
    assert rank(trials, "maximize", never).best == "r1"


def test_trial_ahead_of_the_others_is_compared_at_their_step():
    trials = [
        trial_status(1, 1.0, 1000),
        trial_status(2, 2.0, 500),
        trial_status(3, 2.5, 500),
        trial_status(4, 3.0, 500),
    ]
    verdict = rank(trials, "minimize", lambda run_id, step: {("r1", 500): 2.2}[run_id, step])
    assert verdict.step == 500
    assert verdict.values == {"r1": 2.2, "r2": 2.0, "r3": 2.5, "r4": 3.0}
    assert verdict.best == "r2"


def test_two_live_trials_are_both_ranked_at_the_step_that_both_have_reached():
    trials = [trial_status(1, 2.0, 200), trial_status(2, 1.9, 220)]
    verdict = rank(trials, "minimize", lambda run_id, step: {("r2", 200): 2.1}[run_id, step])
    assert (verdict.step, verdict.ranks) == (200, {"r1": 1, "r2": 2})


def test_only_finished_trials_are_ranked_once_half_have_finished():
    trials = [
        trial_status(1, 1.5, 1000, "completed"),
        trial_status(2, 1.2, 1000, "completed"),
        trial_status(3, 0.9, 100),
        trial_status(4, None, None, "queued"),
    ]
    verdict = rank(trials, "minimize", never)
    assert verdict.step == 1000
    assert verdict.ranks == {"r2": 1, "r1": 2}
    sentences = notes(trials, verdict, metric="val/loss", tried={LR: [1e-4, 2e-4, 3e-4, 4e-4]})
    assert "Ranked at step 1,000; 2 trials not at that step yet." in sentences


def test_trial_with_a_non_finite_value_has_no_rank():
    trials = [
        trial_status(1, math.nan, 10),
        trial_status(2, math.inf, 10),
        trial_status(3, 5.0, 10),
    ]
    assert rank(trials, "minimize", never).ranks == {"r3": 1}
    assert rank(trials, "maximize", never).ranks == {"r3": 1}


@pytest.mark.parametrize(
    ("best", "word", "values"),
    [
        (1e-4, "smallest", 4),
        (4e-4, "largest", 4),
        (2e-4, None, 4),
        (3e-4, None, 4),
        (1, "largest", 2),
    ],
)
def test_note_reports_a_best_value_at_the_edge_of_the_values_tried(best, word, values):
    trials = [
        trial_status(n, abs(n * 1e-4 - best), 10, "completed", lr=n * 1e-4)
        for n in range(1, values + 1)
    ]
    tried = {LR: [trial.parameters[LR] for trial in trials]}
    sentences = notes(trials, rank(trials, "minimize", never), metric="val/loss", tried=tried)
    edge = [note for note in sentences if "edge of the values tried" in note]
    assert len(edge) == (0 if word is None else 1)
    if word:
        assert word in edge[0]
        assert LR in edge[0]


def test_best_rate_is_at_the_edge_though_a_mistyped_one_lies_beyond():
    rates = (1e-4, 3e-4, 1e-3, 3e2)
    trials = [
        TrialStatus(f"r{lr}", {LR: lr}, "completed", math.nan if lr > 1 else 3.0 - lr, 10)
        for lr in rates
    ]
    sentences = notes(trials, rank(trials, "minimize", never), metric="val/loss", tried={LR: rates})
    [edge] = [note for note in sentences if "edge of the values tried" in note]
    assert "is the largest, but for 300, far off; a larger one may be better" in edge


def test_equal_values_are_no_edge_but_a_parameter_without_effect():
    trials = [trial_status(n, 3.0, 10, "completed", lr=n * 1e-4) for n in (1, 2, 3)]
    [note] = notes(
        trials, rank(trials, "minimize", never), metric="val/loss", tried={LR: [1e-4, 2e-4, 3e-4]}
    )
    assert note.startswith("All 3 trials with a rank have the same val/loss: what was varied makes")
    assert LR in note


def test_best_seed_is_not_at_an_edge():
    trials = [
        TrialStatus(f"r{seed}", {"train.seed": seed}, "completed", 3.0 - seed / 100, 10)
        for seed in (1, 2, 3)
    ]
    tried = {"train.seed": [1, 2, 3]}
    verdict = rank(trials, "minimize", never)
    assert notes(trials, verdict, metric="val/loss", tried=tried) == []


def test_notes_list_failed_and_diverged_trials():
    trials = [
        trial_status(1, 1.0, 10, "completed"),
        trial_status(2, math.nan, 5, "failed"),
        trial_status(3, 2.0, 10, "completed"),
    ]
    sentences = notes(trials, rank(trials, "minimize", never), metric="val/loss", tried={})
    assert [one for one in sentences if "failed" in one or "diverged" in one] == [
        "1 diverged: lr 2.0e-4."
    ]


def test_setting_that_all_diverged_trials_have_is_named_once():
    trials = [
        TrialStatus(
            f"{lr} {w}", {LR: lr, "w": w, "v": 1}, "failed", 3.0 if lr < 0.01 else math.nan, 9
        )
        for lr in (1e-3, 1e-2)
        for w in (1, 2)
    ]
    sentences = notes(trials, rank(trials, "minimize", never), metric="val/loss", tried={})
    assert "2 diverged, all at lr 0.01." in sentences
    assert "2 trials failed: lr 1.0e-3, w 1, v 1; lr 1.0e-3, w 2, v 1." in sentences


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_common_step_is_the_furthest_that_half_of_the_trials_reached(steps):
    chosen = common_step(steps)
    reached = [step for step in steps if step >= chosen]
    enough = max(len(steps) / 2, min(2, len(steps)))
    assert len(reached) >= enough
    further = [step for step in steps if step > chosen]
    assert len(further) < enough


@given(
    st.lists(
        st.tuples(
            st.floats(allow_nan=True, allow_infinity=True),
            st.integers(1, 3),
            st.sampled_from(["running", "completed", "failed"]),
        ),
        max_size=12,
    ),
    st.sampled_from(["minimize", "maximize"]),
)
def test_a_better_value_never_has_a_worse_rank(trials, goal):
    standings = [trial_status(n, v, s, state) for n, (v, s, state) in enumerate(trials)]
    verdict = rank(standings, goal, lambda run_id, step: 1.0)
    sign = 1 if goal == "minimize" else -1
    for one, place in verdict.ranks.items():
        assert math.isfinite(verdict.values[one])
        for other, other_place in verdict.ranks.items():
            if sign * verdict.values[one] < sign * verdict.values[other]:
                assert place < other_place
    if verdict.ranks:
        assert min(verdict.ranks.values()) == 1


@pytest.mark.parametrize(
    ("value", "step", "cause", "held_out", "ranks"),
    [
        (1.4, 100, None, "a", {"r1": 1, "r2": 2, "s": 1}),
        (2.8, 100, None, "a", {"r2": 1, "r1": 2, "s": 2}),
        (0.1, 50, None, "a", {"r1": 1, "r2": 2}),
        (0.1, 100, None, "b", {"r1": 1, "r2": 2}),
        (1.4, 50, "nan_loss", "a", {"r2": 1}),
    ],
)
def test_repetition_counts_once_it_has_a_value_of_the_same_set_or_diverged(
    value, step, cause, held_out, ranks
):
    trials = [trial_status(1, 1.5, 100), trial_status(2, 2.0, 100)]
    more = TrialStatus("s", {LR: 1e-4, "train.seed": 1}, "failed", value, step, cause, "r1")
    sets = {"r1": "a", "r2": "a", "s": held_out}
    verdict = rank(trials, "minimize", never, sets, [more])
    assert verdict.ranks == ranks
    assert verdict.best == min(("r1", "r2"), key=lambda run_id: ranks.get(run_id, 9))


def test_trials_of_different_held_out_sets_have_no_rank():
    trials = [trial_status(1, 3.0, 100), trial_status(2, 1.0, 100), trial_status(3, 2.0, 100)]
    verdict = rank(trials, "minimize", never, {"r1": "a", "r2": "b", "r3": "a"})
    assert verdict.held_out.verdict == "different"
    assert (verdict.best, verdict.ranks, verdict.points) == (None, {}, ())
    assert verdict.values == {"r1": 3.0, "r2": 1.0, "r3": 2.0}


LOSSES = {1e-3: [3.00, 3.10, 3.20], 1e-2: [2.00, 2.30, 2.15], 1e-1: [2.10, 2.20, 2.11]}


def standings(losses=LOSSES, step: int = 100) -> list[TrialStatus]:
    return [
        TrialStatus(f"{lr}-{seed}", {LR: lr, "train.seed": seed}, "completed", loss, step)
        for lr, found in losses.items()
        for seed, loss in enumerate(found)
    ]


def judged(losses=LOSSES):
    return rank(standings(losses), "minimize", lambda _run, _step: None)


def test_points_are_ranked_by_their_mean_and_not_by_their_best_seed():
    verdict = judged()
    assert verdict.best == "0.1-0"
    assert verdict.ranks["0.01-0"] == 2  # 2.00 is the lowest single value.
    means = {point.parameters[LR]: point.mean for point in verdict.points}
    assert means == {lr: pytest.approx(statistics.fmean(found)) for lr, found in LOSSES.items()}
    spreads = {point.parameters[LR]: point.spread for point in verdict.points}
    assert spreads == {lr: pytest.approx(statistics.stdev(found)) for lr, found in LOSSES.items()}


def test_point_with_a_diverged_or_missing_seed_has_no_rank():
    losses = {**LOSSES, 1e-1: [2.0, math.nan, 2.0]}
    verdict = judged(losses)
    assert verdict.best == "0.01-0"
    assert not any(run.startswith("0.1-") for run in verdict.ranks)


def test_note_compares_the_lead_with_the_pooled_noise():
    found = judged().points
    estimate = pooled_noise(point.values for point in found)
    assert estimate is not None
    pooled = math.sqrt(statistics.fmean(statistics.variance(v) for v in LOSSES.values()))
    assert estimate.deviation == pytest.approx(pooled)
    assert estimate.freedom == 6
    t = 2.446912  # 97.5 % of Student's t with six degrees of freedom.
    assert noise_band(found, estimate) == pytest.approx(t * pooled * math.sqrt(2 / 3))
    said, note = seed_notes(found, estimate, "val/loss", "minimize")
    assert said == "Seeds of one point differ by 0.109 in val/loss (standard deviation)."
    assert note.startswith("lr 0.1 looks better than lr 0.01 by 0.01 ± 0.22, within seed noise")
    clear = judged({1e-3: [3.0, 3.01], 1e-2: [2.0, 2.01]}).points
    [_, note] = seed_notes(clear, estimate, "val/loss", "minimize")
    assert note.startswith("lr 0.01 is better than lr 1.0e-3 by 1.00 ±")
    assert seed_notes(points_of([], {}, "minimize"), None, "val/loss", "minimize") == []


def test_one_seed_for_each_point_names_the_command_that_measures_the_noise():
    verdict = judged({lr: found[:1] for lr, found in LOSSES.items()})
    note = lead(verdict.points, None, "val/loss", "minimize").sentence
    assert note.startswith("lr 0.01 looks better than lr 0.1 by 0.1 (one seed each)")
    assert note.endswith("`lehr seeds 0.01-0 --n 3` measures it.")
    assert lead(verdict.points[:1], None, "val/loss", "minimize") is None
    fixed = lead(verdict.points, None, "val/loss", "minimize", repeatable=False).sentence
    assert "lehr seeds" not in fixed


def test_sweep_answer_has_the_mean_of_each_point_and_the_noise_band(tmp_path):
    from lehr_testing.api import SWEEP_SPEC

    with api_client(tmp_path / "home") as (api, client):
        spec = {**SWEEP_SPEC, "seeds": [0, 1], "parameters": {LR: {"values": [1e-3, 1e-2]}}}
        sweep = client.post("/api/v1/sweeps", json={"spec": spec}).json()
        for trial, loss in zip(sweep["trials"], (3.0, 3.2, 2.0, 2.4), strict=True):
            attempt = begin(api.store, trial["run"]["id"])
            ingest(
                api.store, attempt, line("evaluation", step=9, tokens=1, values={"val/loss": loss})
            )
        found = client.get(f"/api/v1/sweeps/{sweep['id']}").json()
        assert [point["mean"] for point in found["points"]] == [
            pytest.approx(3.1),
            pytest.approx(2.2),
        ]
        assert found["best_value"] == pytest.approx(2.2)
        assert found["best_parameters"] == {LR: 1e-2}
        assert found["noise"] == pytest.approx(math.sqrt((0.02 + 0.08) / 2))
        detail = api.services.presenter.sweeps.detail(api.store.sweeps.get(sweep["id"]))
        *_, band = sweep_figure(detail, LR).bands
        assert max(band.high) - min(band.low) == pytest.approx(0.9 + found["noise_band"])
