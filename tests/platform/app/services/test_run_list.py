"""The order of lists of runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from lehr.app.services.context import Context
from lehr.app.services.run_list import list_runs
from lehr.control.lifecycle import RunState
from lehr.errors import UserError
from lehr.specs import load_spec
from lehr_testing import seeding, stores

Listed = Callable[..., list[str]]


@pytest.fixture
def listed(context: Context) -> Listed:
    def names(sort: str, **more: Any) -> list[str]:
        return [one["name"] for one in json.loads(list_runs(context, sort=sort, **more))["items"]]

    return names


def trained(context: Context, name: str, loss: float | None, **changes: Any) -> None:
    run = context.store.runs.create(seeding.run_spec(name, **changes))
    if loss is not None:
        attempt = seeding.start(context.store, run)
        attempt.evaluate(10, loss)
        attempt.end(RunState.COMPLETED, 10)


def test_runs_are_sorted_by_a_metric_either_way_and_what_is_no_number_is_last(context, listed):
    for name, loss in {
        "two": 2.0,
        "no": None,
        "nan": math.nan,
        "inf": math.inf,
        "one": 1.0,
    }.items():
        trained(context, name, loss)
    trained(context, "late", 2.0)
    assert listed("val") == listed("val/loss") == ["one", "late", "two", "inf", "nan", "no"]
    assert listed("-val") == ["late", "two", "one", "inf", "nan", "no"]
    assert listed("-best:val/loss")[:3] == ["late", "two", "one"]


def test_runs_are_sorted_by_settings_columns_and_what_follows_where_they_are_equal(context, listed):
    assert listed("lr") == []
    trained(context, "b", None, lr=1e-3, gpus=2)
    trained(context, "A", 3.0, lr=2e-3, tags=["x"])
    trained(context, "c", None, lr=1e-3)
    script = {"script": "t.py", "args": {"lr": 5e-4}}
    context.store.runs.create(load_spec({"kind": "run", "name": "script", "trainer": script}))
    assert listed("train.optimizer.lr") == listed("lr") == ["script", "c", "b", "A"]
    assert listed("-lr,name") == ["A", "b", "c", "script"]
    assert listed("name") == ["A", "b", "c", "script"]
    assert listed("-gpus")[0] == "b"
    assert listed("tags")[0] == listed("step")[0] == listed("-params")[0] == "A"
    assert listed("-submitted") == listed("eta") == ["script", "c", "A", "b"]
    with pytest.raises(UserError, match="no run has a setting or a metric 'los'") as error:
        listed("los")
    assert error.value.hint == "Did you mean loss?"
    with pytest.raises(UserError, match="cursor is 'x1'; use the next_cursor"):
        listed("name", cursor="x1")


def test_logged_setting_of_a_script_counts_as_its_argument(context, listed):
    trained(context, "a", None, lr=1e-3)
    for name, rate in (("low", 4e-4), ("high", 2e-3)):
        spec = {"kind": "run", "name": name, "trainer": {"script": "t.py"}}
        attempt = stores.begin(context.store, context.store.runs.create(load_spec(spec)).id)
        stores.ingest(context.store, attempt.id, stores.line("config", values={"lr": rate}))
    assert listed("lr") == ["low", "a", "high"]


def test_value_of_a_resumed_run_is_the_one_that_counts(context, listed):
    trained(context, "other", 2.0)
    run = context.store.runs.create(seeding.run_spec("resumed"))
    first = seeding.start(context.store, run)
    first.evaluate(10, 3.0)
    first.evaluate(20, 1.0)
    first.flush()
    first.lose("gone")
    seeding.start(context.store, context.store.runs.get(run.id), resume=10)
    assert listed("val") == listed("best:val/loss") == ["other", "resumed"]


def test_groups_stay_together_at_the_place_of_their_best_over_pages(context, listed):
    store = context.store
    _, trials = seeding.create_sweep(store, seeding.lr_sweep("grid", [1e-4, 2e-4, 3e-4]))
    for trial, loss in zip(trials, (4.0, 1.0, 3.0), strict=True):
        attempt = seeding.start(store, trial)
        attempt.evaluate(10, loss)
        attempt.flush()
    trained(context, "alone", 2.0)
    order = ["grid-2", "grid-3", "grid-1", "alone"]
    assert listed("val", group="sweep") == order
    assert (
        listed("val", group="rollout") == listed("best") == ["grid-2", "alone", "grid-3", "grid-1"]
    )
    pages = [listed("val", group="sweep", limit=2, cursor=cursor) for cursor in (None, "2")]
    assert [*pages[0], *pages[1]] == order
    end = json.loads(list_runs(context, sort="val", limit=2, cursor="2"))
    assert (end["next_cursor"], end["total"]) == (None, 4)
    assert listed("val", states=["running"]) == ["grid-2", "grid-3", "grid-1"]
