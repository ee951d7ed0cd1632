"""The metric of a sweep is one that its runs have."""

from __future__ import annotations

import pytest

from lehr.errors import SpecError
from lehr.specs import load_spec, read_yaml
from lehr_testing.spec_texts import SWEEP


@pytest.mark.parametrize("name", ["val/loss", "val/loss/web", "params/layers.0.mlp/update_ratio"])
def test_metric_that_runs_log_is_valid(name):
    text = SWEEP + f"metric: {{name: {name}}}\n"
    assert load_spec(read_yaml(text).data).metric.name == name


def test_loss_of_the_own_held_out_set_of_a_stage_is_a_metric():
    data = read_yaml(SWEEP + "metric: {name: val/end/loss, goal: minimize}\n").data
    train = data["run"]["train"]
    del train["steps"]
    train["stages"] = [{"tokens": "1M"}, {"name": "end", "tokens": "1M"}]
    assert load_spec(data).metric.name == "val/end/loss"
    train["stages"][1]["name"] = "last"
    with pytest.raises(SpecError, match="val/end/loss, which no run logs"):
        load_spec(data)


OWN = "Its tasks have task/own/accuracy, task/mean"
HINTS = {"task/average/own/loss": "It needs run.train.average", "task/others/accuracy": OWN}


@pytest.mark.parametrize("name", ["task/mean", "task/own/accuracy", *HINTS, "task/own/speed"])
def test_metric_of_a_task_is_one_that_the_run_has(name):
    data = read_yaml(SWEEP + f"metric: {{name: {name}}}\n").data
    data["run"]["train"]["evals"] = [{"name": "own", "path": "/data/own.jsonl"}]
    hint = HINTS.get(name, OWN)
    if name in {"task/mean", "task/own/accuracy"}:
        assert load_spec(data).metric.goal == "maximize"
        del data["run"]["train"]["evals"]
        hint = "It needs run.train.evals"
    with pytest.raises(SpecError) as refused:
        load_spec(data)
    assert refused.value.problems[0].hint.startswith(hint)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, None),
        ({"pruning": {"name": "asha", "min_steps": 2}}, "too late for pruning"),
        ({"method": "tpe", "trials": 2}, "too late for tpe"),
        ({"metric": {"name": "task/mean"}}, "so no step has the mean"),
        ({"metric": {"name": "task/near/accuracy"}, "method": "tpe", "trials": 2}, None),
    ],
)
def test_metric_of_a_task_beside_the_training_chooses_and_prunes_nothing(changes, problem):
    data = read_yaml(SWEEP + "metric: {name: task/own/accuracy}\n").data | changes
    own = {"name": "own", "path": "/data/own.jsonl", "where": "beside"}
    data["run"]["train"]["evals"] = [own, {"name": "near", "path": "/data/near.jsonl"}]
    if problem is None:
        load_spec(data)
        return
    with pytest.raises(SpecError, match=problem):
        load_spec(data)


def test_task_beside_the_training_has_no_steps_of_its_own():
    data = read_yaml(SWEEP).data["run"] | {"kind": "run", "name": "one"}
    own = {"name": "own", "path": "/data/own.jsonl", "where": "beside", "every": 10}
    data["train"]["evals"] = [own]
    with pytest.raises(SpecError, match="every is 10, but a task beside the training"):
        load_spec(data)
