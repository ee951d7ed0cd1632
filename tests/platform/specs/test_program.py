"""``trainer`` of a spec: how arguments are passed, and what is refused."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from lehr.errors import SpecError
from lehr.specs import RunSpec, SweepSpec, expand, load_spec
from lehr.specs.program import Program, arguments

ARGS = {"lr": 0.1, "compile": True, "name": "a b", "sizes": [1, 2], "opt": {"beta": 0.9}, "x": None}


def given(checkpoint: str | None = None, **fields) -> list[str]:
    program = Program(script="train.py", steps=5, **fields)
    return arguments(program, file="/tmp/args.yaml", checkpoint=checkpoint)


def test_arguments_have_the_form_that_the_spec_chooses():
    equals = ["--lr=0.1", "--compile=True", "--name=a b", "--sizes=1", "--sizes=2"]
    assert given(args=ARGS) == [*equals, "--opt.beta=0.9"]
    space = ["--lr", "0.1", "--compile", "True", "--name", "a b", "--sizes", "1", "2"]
    assert given(args=ARGS, style="space") == [*space, "--opt.beta", "0.9"]
    hydra = ["lr=0.1", "compile=true", 'name="a b"', "sizes=[1,2]", "opt.beta=0.9"]
    assert given(args=ARGS, style="hydra") == hydra
    assert given(args=ARGS, style="file", argv=["fit"]) == ["fit", "--config", "/tmp/args.yaml"]


def test_arguments_of_a_resumption_are_laid_over_the_others():
    resume = {"args": {"lr": 1, "init": "new"}, "resume_args": {"init": "{checkpoint}/x"}}
    assert given(**resume) == ["--lr=1", "--init=new"]
    assert given("/c", **resume) == ["--lr=1", "--init=/c/x"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"script": "a.py", "module": "b"}, "script and module are both given"),
        ({}, "script or module is missing"),
        ({"script": "../a.py"}, "is outside of the project"),
        ({"script": "a.sh"}, "match"),
        ({"script": "a.py", "args": {"--lr": 1}}, "leave out dashes"),
        ({"script": "a.py", "saves": ["/out"]}, "not a path below"),
        ({"script": "a.py", "data": ["../x"]}, "is not a path below the project's folder"),
        (
            {"script": "a.py", "data": ["./a/"], "saves": ["a/x"]},
            "part of trainer.data, which is only",
        ),
        ({"script": "a.py", "args": {"n": 5}, "steps_arg": "n"}, "steps and steps_arg are both"),
        ({"script": "a.py", "steps": None, "steps_arg": "n"}, "args.n is None"),
    ],
)
def test_wrong_program_is_refused(fields, message):
    with pytest.raises(ValidationError, match=message):
        Program(**{"steps": 5, **fields})


def spec(**more) -> dict:
    trainer = {"script": "train.py", "args": {"lr": 0.1, "iters": 9}, "steps_arg": "iters"}
    return {"name": "a", "trainer": trainer, "code": {"include": ["."]}, **more}


def test_field_that_older_nodes_do_not_know_is_left_out_at_its_default():
    """Nodes keep their Lehr while the server is upgraded, and refuse fields they do not know."""
    later = {"deterministic": True, "launcher": "torchrun", "data": ["a"], "data_files": {"a": "b"}}
    later |= {"factors": {"mfu": 0.01}, "prints": ["loss {loss}"]}
    assert not later.keys() & Program(script="a.py").model_dump().keys()
    assert later.items() <= Program(script="a.py", **later).model_dump().items()


def test_run_has_either_train_or_trainer():
    run = load_spec(spec())
    assert isinstance(run, RunSpec)
    assert run.steps == 9
    with pytest.raises(SpecError, match=r"train is missing"):
        load_spec({"name": "a"})
    with pytest.raises(SpecError, match=r"train and trainer are both given|train\."):
        load_spec(spec(train={}))
    assert load_spec({**spec(), "code": {}}).sends_files


def test_any_argument_is_swept_and_any_metric_ranks():
    sweep = {
        "name": "s",
        "parameters": {"trainer.args.lr": {"values": [0.1, 0.2]}},
        "metric": {"name": "my/score", "goal": "maximize"},
        "seeds": [1, 2],
        "run": spec(),
    }
    loaded = load_spec(sweep)
    assert isinstance(loaded, SweepSpec)
    runs = [run for _, run in expand(loaded)]
    assert [run.trainer.args["lr"] for run in runs] == [0.1, 0.1, 0.2, 0.2]
    assert [run.trainer.args["seed"] for run in runs] == [1, 2, 1, 2]


def without_steps(pruning: dict) -> dict:
    trainer = {"script": "train.py", "args": {"lr": 0.1, "epochs": 3}}
    rates = {"trainer.args.lr": {"values": [0.1, 0.2]}}
    return {"name": "s", "parameters": rates, "pruning": pruning, "run": spec(trainer=trainer)}


@pytest.mark.parametrize("name", ["median", "asha"])
def test_program_may_be_swept_and_pruned_without_a_number_of_steps(name):
    loaded = load_spec(without_steps({"name": name, "min_steps": 10_000}))
    assert isinstance(loaded, SweepSpec)
    assert [run.steps for _, run in expand(loaded)] == [None, None]


@pytest.mark.parametrize("pattern", [".", "./", "**x", "out/a**", "./.", "***"])
def test_pattern_of_saves_that_cannot_be_searched_is_refused(pattern):
    with pytest.raises(ValidationError, match="saves"):
        given(saves=[pattern])


@pytest.mark.parametrize(
    "fields",
    [
        {"args": {"a": "\0"}},
        {"args": {"a": {"b": ["x", "\0"]}}},
        {"args": {"a": {"\0": 1}}},
        {"argv": ["\0"]},
        {"file_arg": "\0"},
        {"resume_args": {"a": "\0"}},
    ],
)
def test_argument_with_a_nul_is_refused(fields):
    with pytest.raises(ValidationError, match="contains a NUL"):
        given(**fields)


def test_flags_have_no_value():
    flags = {"args": {"a": True, "b": False}, "flags": ["a", "b"]}
    assert given(**flags) == ["--a"]


def test_hyperband_needs_a_number_of_steps():
    hyperband = without_steps({"name": "hyperband", "min_steps": 4})
    with pytest.raises(SpecError) as caught:
        load_spec(hyperband)
    [problem] = caught.value.problems
    assert problem.path == "pruning.name"
    assert "neither run.trainer.steps nor run.trainer.steps_arg is given" in problem.message
    hyperband["run"]["trainer"]["steps"] = 9
    assert load_spec(hyperband)
    hyperband["parameters"] = {"trainer.steps": {"values": [9, None]}}
    with pytest.raises(SpecError, match="hyperband, which needs the number of steps"):
        load_spec(hyperband)


def test_rollout_takes_no_program():
    rollout = {"name": "r", "run": spec(), "stages": {"cpu": {}}}
    with pytest.raises(SpecError, match="takes no program"):
        load_spec(rollout)
