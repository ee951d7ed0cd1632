"""Extension of sweeps: what each method accepts and rejects."""

from __future__ import annotations

import pytest

from lehr.errors import SpecError, UserError
from lehr.specs import SweepSpec, expand, load_spec, read_yaml
from lehr.specs.sweep_extend import extended
from lehr_testing.spec_texts import SWEEP

LR = "train.optimizer.lr"
DATA_OF_GRID = read_yaml(SWEEP).data
RANGE = {LR: {"min": 1e-4, "max": 1e-2}}


def sweep(**changes) -> SweepSpec:
    spec = load_spec({**DATA_OF_GRID, **changes})
    assert isinstance(spec, SweepSpec)
    return spec


def listed() -> SweepSpec:
    data = {name: value for name, value in DATA_OF_GRID.items() if name != "parameters"}
    spec = load_spec({**data, "method": "list", "points": [{LR: 1e-3}]})
    assert isinstance(spec, SweepSpec)
    return spec


def points(spec: SweepSpec) -> list[dict]:
    return [parameters for parameters, _ in expand(spec)]


def test_grid_takes_values_list_takes_points_and_search_takes_trials():
    grid = extended(sweep(), parameters={LR: [1e-2]})
    assert [point[LR] for point in points(grid)] == [1e-4, 1e-3, 1e-2]
    longer = extended(listed(), points=[{LR: 1e-2, "train.seed": 3}])
    assert points(longer) == [{LR: 1e-3}, {LR: 1e-2, "train.seed": 3}]
    drawn = sweep(method="random", trials=2, parameters=RANGE)
    more = extended(drawn, trials=3)
    assert more.trials == 5
    assert points(more)[:2] == points(drawn)
    assert extended(drawn, trials=1).trials == 3


def test_extension_leaves_the_other_fields_unchanged():
    spec = sweep(seeds=[1, 2], max_concurrent=3)
    more = extended(spec, parameters={LR: [1e-2]})
    whole, before = (s.model_dump(exclude={"parameters"}) for s in (more, spec))
    assert whole == before
    assert more.model_fields_set == spec.model_fields_set


@pytest.mark.parametrize("made", [sweep, listed])
def test_seeds_of_each_point_can_be_added(made):
    spec = made().model_copy(update={"seeds": [0, 1]})
    more = extended(spec, parameters={"train.seed": [2, 3]})
    assert more.seeds == [0, 1, 2, 3]
    assert more.parameters == spec.parameters
    assert more.points == spec.points
    with pytest.raises(UserError, match=r"train\.seed is not a parameter|parameters cannot be"):
        extended(made(), parameters={"train.seed": [2, 3]})
    with pytest.raises(SpecError, match="twice"):
        extended(spec, parameters={"train.seed": [1]})


def search() -> SweepSpec:
    return sweep(method="tpe", trials=2, parameters=RANGE)


@pytest.mark.parametrize(
    ("made", "given", "wanted"),
    [
        (sweep, {"points": [{LR: 1e-2}]}, "parameters"),
        (sweep, {"trials": 2}, "parameters"),
        (listed, {"parameters": {LR: [1e-2]}}, "points"),
        (search, {"parameters": {LR: [1e-2]}}, "trials"),
    ],
)
def test_wrong_argument_for_the_method_is_rejected_with_the_right_one(made, given, wanted):
    [name] = given
    spec = made()
    with pytest.raises(UserError) as caught:
        extended(spec, **given)
    assert caught.value.message == (f"{name} cannot be added to grid: its method is {spec.method}.")
    assert caught.value.hint == f"Give {wanted}."


@pytest.mark.parametrize("given", [{}, {"parameters": {}}])
def test_empty_extension_is_rejected(given):
    with pytest.raises(UserError) as caught:
        extended(sweep(), **given)
    assert caught.value.message == "nothing to add to grid."
    assert caught.value.hint == "Give parameters."


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("train.optimizer.lrr", f"Did you mean {LR}?"),
        ("zzz", f"Its parameters: {LR}, train.seed."),
    ],
)
def test_constant_path_is_rejected_with_the_varied_ones(path, hint):
    parameters = {**DATA_OF_GRID["parameters"], "train.seed": {"values": [1]}}
    with pytest.raises(UserError) as caught:
        extended(sweep(parameters=parameters), parameters={path: [1]})
    assert caught.value.message == f"{path} is not a parameter of grid."
    assert caught.value.hint == hint


def test_extension_rejects_invalid_values_and_trials_below_one():
    with pytest.raises(UserError, match="trials is -1; it must be at least 1"):
        extended(search(), trials=-1)
    with pytest.raises(SpecError, match="greater than 0"):
        extended(sweep(), parameters={LR: [-1.0]})
    with pytest.raises(SpecError, match="twice"):
        extended(sweep(), parameters={LR: [1e-3]})
