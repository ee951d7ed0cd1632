"""Which trial leads: compared at one step, among finite values, with what there is to know."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.presenters.ranking import TrialStatus, common_step, notes, rank

LR = "train.optimizer.lr"


def standing(n, value=None, step=None, state="running", lr=None):
    return TrialStatus(f"r{n}", {LR: lr if lr is not None else n * 1e-4}, state, value, step)


def never(run_id, step):
    raise AssertionError(f"asked for {run_id} at {step}")


def test_trials_at_one_step_are_ranked_by_value():
    trials = [standing(1, 3.0, 100), standing(2, 1.0, 100), standing(3, 2.0, 100)]
    verdict = rank(trials, "minimize", never)
    assert verdict.ranks == {"r2": 1, "r3": 2, "r1": 3}
    assert verdict.best == "r2"
    assert verdict.step == 100
    assert rank(trials, "maximize", never).best == "r1"


def test_a_trial_that_is_further_is_compared_where_the_others_are():
    trials = [
        standing(1, 1.0, 1000),
        standing(2, 2.0, 500),
        standing(3, 2.5, 500),
        standing(4, 3.0, 500),
    ]
    verdict = rank(trials, "minimize", lambda run_id, step: {("r1", 500): 2.2}[run_id, step])
    assert verdict.step == 500
    assert verdict.values == {"r1": 2.2, "r2": 2.0, "r3": 2.5, "r4": 3.0}
    assert verdict.best == "r2"


def test_when_half_have_finished_the_finished_are_compared_and_the_rest_has_no_rank():
    trials = [
        standing(1, 1.5, 1000, "completed"),
        standing(2, 1.2, 1000, "completed"),
        standing(3, 0.9, 100),
        standing(4, None, None, "queued"),
    ]
    verdict = rank(trials, "minimize", never)
    assert verdict.step == 1000
    assert verdict.ranks == {"r2": 1, "r1": 2}
    told = notes(trials, verdict, metric="val/loss", tried={LR: [1e-4, 2e-4, 3e-4, 4e-4]})
    assert "Ranked at step 1,000; 2 trials not at that step yet." in told


def test_a_trial_that_gave_up_early_does_not_hold_the_others_back():
    trials = [
        standing(1, math.nan, 50, "failed"),
        standing(2, 9.0, 60, "failed"),
        standing(3, 8.0, 60, "cancelled"),
        standing(4, 2.0, 1000, "completed"),
    ]
    verdict = rank(trials, "minimize", never)
    assert verdict.step == 1000
    assert verdict.ranks == {"r4": 1}


def test_what_is_not_finite_has_no_rank():
    trials = [standing(1, math.nan, 10), standing(2, math.inf, 10), standing(3, 5.0, 10)]
    assert rank(trials, "minimize", never).ranks == {"r3": 1}
    assert rank(trials, "maximize", never).ranks == {"r3": 1}


def test_without_values_nobody_leads():
    verdict = rank([standing(1), standing(2)], "minimize", never)
    assert (verdict.step, verdict.best, verdict.ranks) == (None, None, {})


def test_equal_values_share_a_rank():
    trials = [standing(1, 1.0, 5), standing(2, 1.0, 5), standing(3, 2.0, 5)]
    assert rank(trials, "minimize", never).ranks == {"r1": 1, "r2": 1, "r3": 3}


@pytest.mark.parametrize(
    ("best", "word"), [(1e-4, "smallest"), (4e-4, "largest"), (2e-4, None), (3e-4, None)]
)
def test_a_best_at_the_edge_of_the_grid_is_said(best, word):
    trials = [standing(n, abs(n * 1e-4 - best), 10, "completed", lr=n * 1e-4) for n in (1, 2, 3, 4)]
    tried = {LR: [trial.parameters[LR] for trial in trials]}
    told = notes(trials, rank(trials, "minimize", never), metric="val/loss", tried=tried)
    edge = [note for note in told if "edge of the grid" in note]
    assert len(edge) == (0 if word is None else 1)
    if word:
        assert word in edge[0]
        assert LR in edge[0]


@pytest.mark.parametrize("tried", [["adamw", "muon", "sgd"], [True, False, True], [1, 2]])
def test_what_has_no_edge_is_not_said_to_be_at_it(tried):
    trials = [
        TrialStatus(f"r{n}", {"x": value}, "completed", float(n), 10)
        for n, value in enumerate(tried)
    ]
    told = notes(trials, rank(trials, "minimize", never), metric="m", tried={"x": tried})
    assert told == []


def test_failures_and_divergence_are_said_with_the_trials():
    trials = [
        standing(1, 1.0, 10, "completed"),
        standing(2, math.nan, 5, "failed"),
        standing(3, 2.0, 10, "completed"),
    ]
    told = notes(trials, rank(trials, "minimize", never), metric="val/loss", tried={})
    assert "val/loss is not finite in 1 trial: lr 2.0e-4." in told
    assert "1 trial failed: lr 2.0e-4." in told


def test_a_lone_leader_is_said_to_be_alone():
    trials = [standing(1, 1.0, 10, "completed"), standing(2, math.nan, 10, "failed")]
    told = notes(trials, rank(trials, "minimize", never), metric="m", tried={})
    assert any("Only one trial" in note for note in told)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_at_least_half_have_reached_the_common_step_and_it_is_the_furthest_such(steps):
    chosen = common_step(steps)
    reached = [step for step in steps if step >= chosen]
    assert 2 * len(reached) >= len(steps)
    further = [step for step in steps if step > chosen]
    assert 2 * len(further) < len(steps)


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
    standings = [standing(n, v, s, state) for n, (v, s, state) in enumerate(trials)]
    verdict = rank(standings, goal, lambda run_id, step: 1.0)
    sign = 1 if goal == "minimize" else -1
    for one, place in verdict.ranks.items():
        assert math.isfinite(verdict.values[one])
        for other, other_place in verdict.ranks.items():
            if sign * verdict.values[one] < sign * verdict.values[other]:
                assert place < other_place
    if verdict.ranks:
        assert min(verdict.ranks.values()) == 1


def test_trials_of_different_held_out_sets_have_no_rank():
    trials = [standing(1, 3.0, 100), standing(2, 1.0, 100), standing(3, 2.0, 100)]
    verdict = rank(trials, "minimize", never, {"r1": "a", "r2": "b", "r3": "a"})
    assert verdict.held_out is not None
    assert verdict.held_out.verdict == "different"
    assert (verdict.best, verdict.ranks, verdict.points) == (None, {}, ())
    assert verdict.values == {"r1": 3.0, "r2": 1.0, "r3": 2.0}


def test_trials_are_ranked_where_sets_are_the_same_or_not_known():
    trials = [standing(1, 3.0, 100), standing(2, 1.0, 100)]
    same = rank(trials, "minimize", never, {"r1": "a", "r2": "a"})
    assert (same.best, same.held_out and same.held_out.verdict) == ("r2", "same")
    unknown = rank(trials, "minimize", never, {"r1": "a", "r2": None})
    assert (unknown.best, unknown.held_out and unknown.held_out.verdict) == ("r2", "unknown")
    assert rank(trials, "minimize", never).held_out is None


def test_only_the_sets_of_ranked_trials_count():
    trials = [
        standing(1, 3.0, 100),
        standing(2, 1.0, 100),
        standing(3, 9.0, 10, "failed"),
        standing(4, math.nan, 100),
    ]
    verdict = rank(trials, "minimize", never, {"r1": "a", "r2": "a", "r3": "b", "r4": "c"})
    assert verdict.best == "r2"
