"""Where a spec comes from: files that cannot be read, overrides, corpus paths, positions."""

from __future__ import annotations

import copy
from textwrap import dedent

import pytest

from lehr.errors import SpecError
from lehr.specs import RunSpec, examples, load_spec, read_yaml
from lehr_testing.spec_texts import RUN, SWEEP, fields, message
from lehr_trainer.configs.train import AdamWConfig

RUN_DATA = read_yaml(RUN).data
CORPUS = {"kind": "text", "paths": ["texts"]}


def problems(source, overrides=()):
    with pytest.raises(SpecError) as caught:
        load_spec(source, overrides)
    return caught.value.problems


def test_error_of_an_unreadable_file_names_the_file_and_the_cause(tmp_path):
    binary = tmp_path / "a.yaml"
    binary.write_bytes(b"name: \xff")
    empty = tmp_path / "empty.yaml"
    empty.write_text("")
    expected_messages = {
        str(binary): "byte 6 is not UTF-8 text; is this a spec?",
        str(tmp_path): "it cannot be read: Is a directory.",
        f"{tmp_path}/a\0b": "it cannot be read: embedded null byte.",
        f"{tmp_path}/zzzz.txt": "no such file.",
        f"{tmp_path}/none/lr_grid.txt": "no such file.",
        str(empty): "it is empty; a spec is a mapping of fields.",
    }
    for path, expected in expected_messages.items():
        [problem] = problems(path)
        assert (problem.path, problem.source, problem.message) == ("", path, expected)
        assert problem.hint is None


def test_every_override_that_cannot_be_parsed_is_reported():
    found = problems(RUN_DATA, ["a b", "train.steps=[1", " train.seed = {", "also"])
    assert [(p.path, p.source) for p in found] == [
        ("", None),
        ("train.steps", "override train.steps=[1"),
        ("train.seed", "override  train.seed = {"),
        ("", None),
    ]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (-5, "-5"),
        (None, "null"),
        (False, "false"),
        ("x y", "x y"),
        ("true", '"true"'),
        (0.5, "0.5"),
        ([1, 2], "[1, 2]"),
        ({"a": 1}, "{'a': 1}"),
    ],
)
def test_override_from_python_is_shown_in_command_line_syntax(value, written):
    [problem] = problems(RUN_DATA, {"train.steps": value})
    assert problem.source == f"override train.steps={written}"


def test_problem_names_the_override_that_caused_it():
    under, over = "train.batch.sequences=0", "train.batch={sequences: 0, sequence_length: 8}"
    assert problems(RUN_DATA, [under, over])[0].source == f"override {over}"
    assert problems(RUN_DATA, [over, under])[0].source == f"override {under}"
    [problem] = problems({**RUN_DATA, "env": {}}, ["env.A.B=3"])
    assert (problem.path, problem.source) == ("env.A", "override env.A.B=3")
    [problem] = problems(RUN.replace("lr: 1e-3", "lr: -1"), ["train.optimizer.weight_decay=0.1"])
    assert (problem.line, problem.source) == (10, None)
    [problem] = problems(RUN_DATA, ["train.data.corpus={}"])
    assert problem.path == "train.data.corpus.kind"
    assert problem.message == (
        "train.data.corpus.kind is missing; it must be one of stdlib, text, jsonl, parquet, chat, hub, mix."
    )


def test_overrides_are_not_modified():
    data = {"corpus": CORPUS, "tokenizer": "byte"}
    changes = {"train.data": copy.deepcopy(data), "train.data.corpus.paths": ["/b"]}
    made = load_spec(RUN_DATA, changes)
    assert isinstance(made, RunSpec)
    assert made.train.data.corpus.paths == ["/b"]
    assert changes["train.data"] == data


def test_corpus_paths_are_relative_to_the_folder_of_the_file(tmp_path, monkeypatch):
    text = RUN.replace("{kind: stdlib}", "{kind: text, paths: [texts, /abs]}")
    folder = tmp_path / "specs"
    folder.mkdir()
    (folder / "run.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    made = load_spec(folder / "run.yaml")
    assert made.train.data.corpus.paths == [str(folder / "texts"), "/abs"]
    over = load_spec(folder / "run.yaml", ["train.data.corpus.paths=[here]"])
    assert over.train.data.corpus.paths == [str(tmp_path / "here")]
    (folder / "sweep.yaml").write_text(
        SWEEP.replace("{kind: stdlib}", "{kind: text, paths: [texts]}")
    )
    assert load_spec(folder / "sweep.yaml").run.train.data.corpus.paths == [str(folder / "texts")]


def test_paths_of_a_mix_are_relative_to_the_folder_of_the_file(tmp_path, monkeypatch):
    mix = (
        "{kind: mix, parts: {web: {weight: 1, corpus: {kind: text, paths: [texts, /abs]}}, "
        "own: {weight: 2.5, corpus: {kind: stdlib}}}}"
    )
    folder = tmp_path / "specs"
    folder.mkdir()
    (folder / "run.yaml").write_text(RUN.replace("{kind: stdlib}", mix))
    (folder / "sweep.yaml").write_text(SWEEP.replace("{kind: stdlib}", mix))
    monkeypatch.chdir(tmp_path)
    parts = load_spec(folder / "run.yaml").train.data.corpus.parts
    assert parts["web"].corpus.paths == [str(folder / "texts"), "/abs"]
    assert parts["own"].weight == 2.5
    paths = "train.data.corpus.parts.web.corpus.paths=[here]"
    over = load_spec(folder / "run.yaml", [paths, "train.data.corpus.parts.own.weight=4"])
    assert over.train.data.corpus.parts["web"].corpus.paths == [str(tmp_path / "here")]
    assert over.train.data.corpus.parts["own"].weight == 4
    swept = load_spec(folder / "sweep.yaml").run.train.data.corpus.parts
    assert swept["web"].corpus.paths == [str(folder / "texts"), "/abs"]


@pytest.mark.parametrize(
    ("text", "path", "position"),
    [
        (SWEEP + "points: [{train.seed: 1}]\n", "points", (12, 1)),
        (SWEEP + "trials: 4\n", "trials", (12, 1)),
        (SWEEP.replace("lr:", "lrr:"), "parameters.train.optimizer.lrr", (4, 3)),
        (SWEEP.replace("train.optimizer.lr", "kind"), "parameters.kind", (4, 3)),
        (RUN + "lr: 3\n", "lr", (11, 1)),
        (RUN.replace("steps: 100", "steps: -5"), "train.steps", (8, 10)),
    ],
)
def test_position_of_a_problem_is_that_of_its_key_or_value(text, path, position):
    [problem] = problems(text)
    assert (problem.path, (problem.line, problem.column)) == (path, position)


OVERRIDES = {
    "a wrong value": (
        RUN,
        ["train.steps=-5"],
        """\
        override train.steps=-5: train.steps is -5; it must be at least 1.
          Optimizer steps. Give these, tokens, tokens_per_parameter or stages.""",
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
