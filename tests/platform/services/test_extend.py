"""An extension of a sweep that changes while it is prepared."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lehr.services.context import Context
from lehr.services.extend import extend_sweep
from lehr.services.once import Operation, Record, once
from lehr.services.submit import launch_sweep
from lehr.store.tables import SweepRow
from lehr_testing.api import SWEEP_SPEC
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
