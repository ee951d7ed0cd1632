"""Errors of overrides and files: each names where the wrong value was written."""

from textwrap import dedent

import pytest

from lehr.errors import SpecError
from lehr.specs import examples, load_spec
from lehr_testing.spec_texts import RUN, SWEEP, fields, message
from lehr_trainer.configs.train import AdamWConfig

OVERRIDES = {
    "a wrong value": (
        RUN,
        ["train.steps=-5"],
        """\
        override train.steps=-5: train.steps is -5; it must be at least 1.
          Optimizer steps. Give these, tokens or tokens_per_parameter.""",
    ),
    "a misspelt path": (
        RUN,
        ["train.optimizer.lrr=1"],
        f"""\
        override train.optimizer.lrr=1: train.optimizer.lrr is not a field.
          Did you mean train.optimizer.lr?   {fields(AdamWConfig)}""",
    ),
    "no equals sign": (
        RUN,
        ["train.steps"],
        """\
        'train.steps' is not an override.
          Write it as path=value, e.g. train.optimizer.lr=1e-3""",
    ),
    "a value that is not YAML": (
        RUN,
        ["tags=[a"],
        """\
        override tags=[a: this is not YAML: while parsing a flow sequence, expected ',' or ']', but got '<stream end>'.""",
    ),
    "a path through a number": (
        RUN,
        ["train.steps.more=1"],
        "override train.steps.more=1: train.steps has no fields.",
    ),
    "a path into a list": (
        RUN + "tags: [a]\n",
        ["tags.0=b"],
        "override tags.0=b: tags is a list; set it whole.",
    ),
    "an empty learning-rate list": (
        SWEEP,
        ["parameters.train.optimizer.lr.values=[]"],
        """\
        override parameters.train.optimizer.lr.values=[]: parameters.train.optimizer.lr.values is empty; give at least 1 value.""",
    ),
}


@pytest.mark.parametrize("case", OVERRIDES, ids=lambda case: case.replace(" ", "-"))
def test_an_override_is_named_as_it_was_written(tmp_path, case):
    text, overrides, expected = OVERRIDES[case]
    assert message(tmp_path, text, overrides) == dedent(expected)


def test_a_file_that_comes_with_lehr_is_found_from_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError) as caught:
        load_spec("sweeps/lr_grid_small.yaml")
    [problem] = caught.value.problems
    assert problem.hint == f"Lehr has an example of that name: cp {examples.LR_GRID_SMALL} ."
    assert load_spec(str(examples.LR_GRID_SMALL)).name == "lr-grid-small"


def test_a_missing_file_names_the_one_beside_it(tmp_path):
    (tmp_path / "lr_grid.yaml").write_text(SWEEP)
    with pytest.raises(SpecError) as caught:
        load_spec(tmp_path / "lr-grid.yaml")
    assert str(caught.value) == (
        f"{tmp_path}/lr-grid.yaml: no such file.\n  Did you mean {tmp_path}/lr_grid.yaml?"
    )


def test_a_problem_in_a_json_file_has_its_line(tmp_path):
    text = '{\n\t"name": "x",\n\t"trian": {}\n}'
    assert message(tmp_path, text, name="run.json").splitlines()[0] == (
        "run.json, line 3: trian is not a field."
    )
