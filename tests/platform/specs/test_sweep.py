"""The trials of sweeps beyond the grid: drawn the same every time, none twice, all valid."""

from __future__ import annotations

import itertools
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lehr.errors import SpecError
from lehr.specs import SweepSpec, expand, json_schema, load_spec
from lehr.specs.search import Range, point_key, random_points, size
from lehr.specs.sweep import STARTUP_TRIALS, Metric
from lehr.specs.sweep_expand import trials_at, value_trials
from lehr_testing.properties import examples

LR = {"min": 1e-5, "max": 1e-1, "distribution": "log_uniform_values"}
RUN = {
    "train": {
        "model": "tiny",
        "data": {"corpus": {"kind": "stdlib"}, "tokenizer": "byte"},
        "batch": {"sequences": 4, "sequence_length": 64},
        "steps": 100,
    }
}


def sweep(**fields) -> SweepSpec:
    spec = load_spec({"kind": "sweep", "name": "s", "run": RUN, **fields})
    assert isinstance(spec, SweepSpec)
    return spec


def points(spec):
    return [parameters for parameters, _ in expand(spec)]


@given(seed=st.integers(0, 2**31 - 1), fewer=st.integers(1, 8), more=st.integers(1, 8))
@settings(max_examples=examples(20), deadline=None)
def test_random_trials_are_reproducible_and_more_trials_keep_the_first(seed, fewer, more):
    def drawn(trials):
        space = {"train.optimizer.lr": LR, "train.optimizer.weight_decay": {"values": [0.0, 0.1]}}
        return points(sweep(method="random", parameters=space, trials=trials, seed=seed))

    few, many = drawn(fewer), drawn(fewer + more)
    assert many[:fewer] == few
    assert len(many) == fewer + more
    assert all(1e-5 <= point["train.optimizer.lr"] <= 1e-1 for point in many)


CHOICES = st.one_of(
    st.lists(st.integers(-5, 5), min_size=1, max_size=5, unique=True),
    st.integers(-3, 3).map(lambda low: Range(min=low, max=low + 4, distribution="int_uniform")),
)


@given(space=st.dictionaries(st.sampled_from("abc"), CHOICES, min_size=1), seed=st.integers(0, 99))
@settings(max_examples=examples(50), deadline=None)
def test_random_search_draws_each_point_of_a_finite_space_once(space, seed):
    drawn = list(random_points(space, seed))
    assert len(drawn) == size(space)
    assert len({point_key(point) for point in drawn}) == len(drawn)


@given(
    low=st.floats(1e-6, 10),
    factor=st.floats(1.5, 1e5),
    kind=st.sampled_from(["uniform", "log_uniform_values", "q_uniform", "q_log_uniform_values"]),
    share=st.floats(0, 1),
)
def test_samples_of_a_range_stay_within_its_bounds(low, factor, kind, share):
    q = {"q": low} if kind.startswith("q_") else {}
    made = Range(min=low, max=low * factor, distribution=kind, **q)
    assert made.min <= made.at(share) <= made.max


def test_log_uniform_samples_are_uniform_in_the_logarithm():
    rates = [p["lr"] for p in itertools.islice(random_points({"lr": Range(**LR)}, 1), 200)]
    below = sum(rate < 1e-3 for rate in rates)
    assert 70 <= below <= 130  # half, within four standard deviations
    assert len(set(rates)) == 200


def test_a_metric_without_a_goal_has_that_of_its_name():
    names = {"val/accuracy": "maximize", "train/loss": "minimize", "my/score": "minimize"}
    assert {name: Metric(name=name).goal for name in names} == names
    assert Metric(name="val/accuracy", goal="minimize").goal == "minimize"


def test_each_point_runs_once_with_each_seed():
    spec = sweep(parameters={"train.optimizer.lr": {"values": [1e-3, 1e-2]}}, seeds=[0, 7])
    assert [(run.train.optimizer.lr, run.train.seed) for _, run in expand(spec)] == [
        (1e-3, 0),
        (1e-3, 7),
        (1e-2, 0),
        (1e-2, 7),
    ]
    assert spec.trial_count == 4
    assert spec.paths == ["train.optimizer.lr", "train.seed"]


def test_tpe_creates_only_its_startup_trials_at_first():
    space = {"train.optimizer.lr": LR}
    spec = sweep(method="tpe", parameters=space, trials=30, seeds=[0, 1])
    assert len(points(spec)) == STARTUP_TRIALS * 2
    assert spec.trial_count == 60
    assert len(points(sweep(method="tpe", parameters=space, trials=4))) == 4


@pytest.mark.parametrize("name", ["points", "trials", "seed", "seeds", "max_failed", "pruning"])
def test_schema_describes_every_field(name):
    schema = json_schema("sweep")
    assert schema["properties"][name]["description"] or name == "seed"
    parameter = schema["$defs"]["Parameter"]["anyOf"]
    assert {"$ref": "#/$defs/Range"} in parameter
    assert schema["$defs"]["Range"]["properties"]["distribution"]["enum"]


def test_integer_range_is_uniform_and_includes_both_ends():
    whole = Range(min=-2, max=3, distribution="int_uniform")
    shares = [number / 600 for number in range(601)]
    drawn = [whole.at(share) for share in shares]
    assert drawn == sorted(drawn)
    assert [drawn.count(value) for value in range(-2, 4)] == [100, 100, 100, 100, 100, 101]
    assert all(isinstance(value, int) for value in drawn)


def test_each_optimizer_of_a_sweep_keeps_its_own_defaults():
    spec = sweep(parameters={"train.optimizer.name": {"values": ["adamw", "adamw8bit", "muon"]}})
    names = [run.train.optimizer.name for _, run in expand(spec)]
    assert names == ["adamw", "adamw8bit", "muon"]


@pytest.mark.parametrize("kind", ["parameters", "points"])
def test_number_of_trials_is_limited(monkeypatch, kind):
    rates = [1e-3, 1e-2, 1e-1]
    if kind == "points":
        spec = sweep(method="list", points=[{"train.optimizer.lr": rate} for rate in rates])
    else:
        spec = sweep(parameters={"train.optimizer.lr": {"values": rates}})
    module = sys.modules[expand.__module__]
    monkeypatch.setattr(module, "MAX_TRIALS", 3)
    assert len(expand(spec)) == 3
    monkeypatch.setattr(module, "MAX_TRIALS", 2)
    with pytest.raises(SpecError) as caught:
        expand(spec)
    [problem] = caught.value.problems
    assert (problem.path, problem.message) == (kind, "the parameters make 3 trials; at most 2.")


def test_search_may_exhaust_its_space_and_min_steps_may_exceed_some_steps():
    coarse = {"train.seed": {"min": 1, "max": 3, "distribution": "q_uniform", "q": 1}}
    assert len(points(sweep(method="random", parameters=coarse, trials=3))) == 3
    values = {"train.seed": {"values": [1, 2]}}
    assert len(points(sweep(method="random", parameters=values, trials=2))) == 2
    steps = {"train.steps": {"values": [100, 400]}}
    pruning = {"name": "asha", "min_steps": 200}
    assert len(points(sweep(parameters=steps, budget="any", pruning=pruning))) == 2


def test_value_that_tpe_may_draw_later_is_checked_when_the_sweep_is_read():
    with pytest.raises(SpecError) as caught:
        sweep(parameters={"train.steps": {"values": [100, -1]}}, method="tpe", trials=1, seed=3)
    [problem] = caught.value.problems
    assert problem.path == "parameters.train.steps.values.1"
    values = {"train.steps": {"values": [100, 200]}}
    spec = sweep(parameters={**values, "train.optimizer.lr": LR}, method="tpe", trials=1)
    tried = [parameters for parameters, _ in value_trials(spec)]
    assert {point["train.steps"] for point in tried} == {100, 200}
    assert {point["train.optimizer.lr"] for point in tried} >= {LR["min"], LR["max"]}
    assert value_trials(sweep(parameters=values, budget="any")) == []


def test_invalid_point_is_rejected_when_its_trial_is_created():
    spec = sweep(
        parameters={"train.optimizer.lr": {"min": 1e-4, "max": 1.0}}, method="tpe", trials=3
    )
    with pytest.raises(SpecError) as caught:
        trials_at(spec, [{"train.optimizer.lr": 0.1}, {"train.optimizer.lr": -1.0}], first=2)
    [problem] = caught.value.problems
    assert problem.path == "parameters.train.optimizer.lr"
    assert problem.message == "train.optimizer.lr is -1.0; it must be greater than 0."
    assert [run.name for _, run in trials_at(spec, [{"train.optimizer.lr": 0.1}], first=7)] == [
        "s-7"
    ]
