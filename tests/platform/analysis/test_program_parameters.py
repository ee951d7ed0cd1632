"""Seeds, learning rates and neutral fields of programs, whose arguments have names of their own."""

from __future__ import annotations

from typing import Any

import pytest

from lehr.analysis.compare import ComparedRun, compare, differences
from lehr.app.presenters.ranking import TrialStatus, rank
from lehr.base import formats
from lehr.base.names import is_rate, is_seed
from lehr.specs import RunSpec, SweepSpec, load_spec
from lehr.specs.program import Program
from lehr.specs.stored import StoredSpec

SEEDS = ["seed", "random_seed", "manual_seed", "manual-seed", "data_seed"]
RATES = ["lr", "learning_rate", "learning-rate", "max_lr", "peak_lr", "base_lr", "optim.lr"]


def program(**changes: Any) -> dict[str, Any]:
    args = changes.pop("args", {})
    trainer = Program(script="train.py", steps=10, args=args).model_dump() | changes
    return {"name": "x", "trainer": trainer}


def run(name: str, value: float, **changes: Any) -> ComparedRun:
    return ComparedRun(name, name, program(**changes), [(10.0, value)])


def factors(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return [found.path for found in differences([one, other]) if found.factor]


@pytest.mark.parametrize("name", SEEDS)
def test_runs_of_a_program_that_differ_in_the_seed_alone_are_one_group(name):
    runs = [run(f"r{n}", 3.0 + n / 10, args={name: n, "lr": 0.1}) for n in range(3)]
    result = compare(runs, metric="eval_loss")
    assert [one.path for one in result.differences if one.factor] == []
    assert result.notes == []
    assert result.noise == pytest.approx(0.1)
    [mean] = result.means
    assert mean.endswith("(mean of 3 seeds).")


NEUTRAL = [
    {"style": "space"},
    {"style": "file", "file_arg": "--cfg"},
    {"saves": ["out/*.pt"], "saves_newest": True},
    {"keep": 9, "stop_grace_s": 5.0},
    {"wandb": "records", "tokens_per_step": 64},
    {"resume_args": {"init_from": "resume"}},
    {"args": {"log_interval": 5, "out_dir": "b", "logging-steps": 3, "opt": {"save_every": 2}}},
]


@pytest.mark.parametrize("changes", NEUTRAL)
def test_fields_that_change_no_loss_are_no_factors(changes):
    assert differences([program(), program(**changes)])
    assert factors(program(), program(**changes)) == []
    runs = [run("a", 3.0, args={"seed": 0}), run("b", 3.1, **changes)]
    runs[1].spec["trainer"]["args"]["seed"] = 1
    assert compare(runs, metric="loss").noise is not None


@pytest.mark.parametrize("name", RATES)
def test_learning_rate_of_a_program_is_known_by_its_usual_names(name):
    path = f"trainer.args.{name}"
    assert is_rate(path)
    assert formats.parameter(0.003, path) == "3.0e-3"
    assert not is_rate("trainer.args.min_lr")
    assert not is_rate("train.schedule.lr_ratio")


@pytest.mark.parametrize("name", SEEDS)
def test_points_of_a_sweep_are_ranked_over_the_seeds_of_its_program(name):
    path = f"trainer.args.{name}"
    assert is_seed(path)
    losses = {1e-3: [3.0, 3.2], 1e-2: [2.0, 2.2]}
    trials = [
        TrialStatus(f"{lr}-{n}", {"trainer.args.lr": lr, path: n}, "completed", loss, 10)
        for lr, found in losses.items()
        for n, loss in enumerate(found)
    ]
    found = rank(trials, "minimize", lambda _run, _step: None).points
    assert [point.mean for point in found] == [pytest.approx(3.1), pytest.approx(2.1)]


@pytest.mark.parametrize(
    ("args", "path"),
    [
        ({}, "trainer.args.seed"),
        ({"lr": 0.1, "random_seed": 3}, "trainer.args.random_seed"),
        ({"manual-seed": 3}, "trainer.args.manual-seed"),
        ({"data_seed": 1, "seed": 3}, "trainer.args.seed"),
    ],
)
def test_seeds_of_a_sweep_set_the_argument_that_the_program_has(args, path):
    trainer = {"module": "m", "steps": 3, "args": args}
    parameters = {"trainer.args.lr": {"values": [0.1, 0.2]}}
    sweep = load_spec(
        {"kind": "sweep", "name": "s", "parameters": parameters, "seeds": [4, 5]}
        | {"run": {"trainer": trainer}}
    )
    assert isinstance(sweep, SweepSpec)
    assert [point[path] for point in sweep.all_points()] == [4, 5, 4, 5]
    one = load_spec({"name": "a", "trainer": trainer})
    assert isinstance(one, RunSpec)
    assert StoredSpec(one.model_dump()).seed == (3 if args else None)
