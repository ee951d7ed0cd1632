"""Extension of sweeps: what each method accepts, and a sweep that changes meanwhile."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lehr.app.services.context import Context, Operation, Record, once
from lehr.app.services.extend import extend_sweep, extended
from lehr.app.services.submit import launch_sweep
from lehr.errors import SpecError, UserError
from lehr.specs import SweepSpec, expand, load_spec, read_yaml
from lehr.store.tables import SweepRow
from lehr_testing.api import SWEEP_SPEC
from lehr_testing.spec_texts import SWEEP
from lehr_testing.statements import transactions, written_statements

LR = "train.optimizer.lr"
RANGE = {LR: {"min": 1e-5, "max": 1e-1, "distribution": "log_uniform_values"}}


def launched(context: Context, **changes: Any) -> SweepRow:
    operation = launch_sweep(context, {**SWEEP_SPEC, **changes}, {}, {})
    return context.store.sweeps.get(once(context.store, None, operation, status=201).body["id"])


def recorded(context: Context, operation: Operation[Any]) -> None:
    once(context.store, None, operation, status=200)


def after(context: Context, other: Operation[Any], operation: Operation[Any]) -> Operation[Any]:
    """The operation, where another one is recorded between its two first steps."""

    def prepare() -> Record:
        record = operation.prepare()
        recorded(context, other)
        return record

    return dataclasses.replace(operation, prepare=prepare)


def test_two_extensions_at_once_are_both_recorded(context: Context) -> None:
    sweep = launched(context)
    first, second = (extend_sweep(context, sweep, parameters={LR: [value]}) for value in (0.1, 0.2))
    recorded(context, after(context, first, second))
    trials = context.store.sweeps.trials(sweep.id)
    assert [trial.number for trial in trials] == [1, 2, 3, 4, 5]
    assert [trial.parameters[LR] for trial in trials[3:]] == [0.1, 0.2]
    names = [run.name for run in context.store.sweeps.runs(sweep.id)]
    assert names == [f"grid-{n}" for n in range(1, 6)]
    assert context.store.sweeps.get(sweep.id).spec["parameters"][LR]["values"][-2:] == [0.1, 0.2]


@pytest.mark.parametrize("method", ["random", "tpe"])
def test_two_extensions_of_a_search_at_once_are_both_counted(context: Context, method: str) -> None:
    sweep = launched(context, method=method, trials=20, parameters=RANGE)
    first, second = (extend_sweep(context, sweep, trials=count) for count in (2, 3))
    recorded(context, after(context, first, second))
    assert context.store.sweeps.get(sweep.id).spec["trials"] == 25


def test_statements_do_not_grow_with_the_extension(context: Context) -> None:
    counts = []
    for count in (2, 40):
        sweep = launched(context, method="random", trials=2, parameters=RANGE)
        with written_statements(context.store) as found:
            recorded(context, extend_sweep(context, sweep, trials=count))
        assert transactions(found) == 1
        counts.append(len(found))
    assert counts[0] == counts[1]


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
    [("train.optimizer.lrr", f"Did you mean {LR}?"), ("zzz", f"Its parameters: {LR}, train.seed.")],
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
