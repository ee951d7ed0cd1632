"""What a spec means: numbers, overrides, kinds, paths, trials."""

import json

import pytest

from lehr.errors import SpecError
from lehr.specs import RunSpec, SweepSpec, dump_yaml, expand, json_schema, load_spec
from lehr.specs.yaml12 import read_json, read_yaml
from lehr_testing.spec_texts import RUN, SWEEP


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        (".5", 0.5),
        ("5.", 5.0),
        ("-1.5e+3", -1500.0),
        ("0x1F", 31),
        ("0o17", 15),
        ("017", 17),
        ("yes", "yes"),
        ("on", "on"),
        ("No", "No"),
        ("true", True),
        ("~", None),
        ("", None),
        ("null", None),
        ('"1e-4"', "1e-4"),
        ("'true'", "true"),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        (".inf", float("inf")),
        ("!!str 5", "5"),
        ("!!float 5", 5.0),
    ],
)
def test_scalars_follow_yaml_1_2(text, value):
    read = read_yaml(text).data
    assert read == value
    assert type(read) is type(value)


def test_positions_are_those_of_the_text():
    document = read_yaml("a:\n  b: [1,\n      2]\n")
    assert document.keys["a.b"].line == 2
    assert document.keys["a.b"].column == 3
    assert document.values["a.b.1"].line == 3


def test_json_escapes_of_surrogate_pairs_are_decoded():
    text = '{"a": "\\ud83d\\ude00",\n\t"b": [1e-4, true, null]}'
    document = read_json(text)
    assert document.data == {"a": "😀", "b": [1e-4, True, None]}
    assert document.keys["b"].line == 2


def test_an_override_changes_a_part_of_a_preset():
    spec = load_spec(RUN, ["train.model.num_hidden_layers=2"])
    assert isinstance(spec, RunSpec)
    assert spec.train.model.num_hidden_layers == 2
    assert spec.train.model.hidden_size == 128


def test_the_kind_is_inferred():
    assert isinstance(load_spec(RUN), RunSpec)
    assert isinstance(load_spec(SWEEP), SweepSpec)
    assert isinstance(load_spec(SWEEP.replace("method: grid", "kind: sweep")), SweepSpec)


@pytest.mark.parametrize(
    "parameters",
    [
        {"train.optimizer.lr": {"values": [1e-4, 1e-3]}, "train.seed": {"value": 3}},
        {"train": {"optimizer": {"lr": {"values": [1e-4, 1e-3]}}, "seed": {"value": 3}}},
        {
            "train": {
                "parameters": {
                    "optimizer": {"parameters": {"lr": {"values": [1e-4, 1e-3]}}},
                    "seed": {"values": [3]},
                }
            }
        },
    ],
    ids=["dotted", "nested", "as W&B nests"],
)
def test_parameters_have_three_notations(parameters):
    spec = load_spec({**read_yaml(SWEEP).data, "parameters": parameters})
    assert isinstance(spec, SweepSpec)
    assert [point for point, _ in expand(spec)] == [
        {"train.optimizer.lr": 1e-4, "train.seed": 3},
        {"train.optimizer.lr": 1e-3, "train.seed": 3},
    ]


def test_a_sweep_over_presets_and_their_parts_sets_the_preset_first():
    data = read_yaml(SWEEP).data
    data["parameters"] = {
        "train.model.num_hidden_layers": {"values": [1, 2]},
        "train.model": {"values": ["tiny", "llama-1b-8layer"]},
    }
    spec = load_spec(data)
    assert isinstance(spec, SweepSpec)
    shapes = [
        (run.train.model.hidden_size, run.train.model.num_hidden_layers) for _, run in expand(spec)
    ]
    assert shapes == [(128, 1), (2048, 1), (128, 2), (2048, 2)]


def test_variables_and_notes_have_limits():
    assert load_spec(RUN, {"env": {"A": "x" * 50_000, "B": "x" * 49_000}}) is not None
    with pytest.raises(SpecError, match=r"together have 102,0\d\d bytes, and at most 100,000"):
        load_spec(RUN, {"env": {"A": "x" * 51_000, "B": "ä" * 25_500}})
    for text, name in ((RUN, "notes"), (SWEEP, "notes"), (SWEEP, "run.notes")):
        assert load_spec(text, {name: "x" * 10_000}) is not None
        with pytest.raises(SpecError, match="notes"):
            load_spec(text, {name: "x" * 10_001})


def test_a_spec_stored_as_json_expands_to_the_same_trials():
    spec = load_spec(SWEEP, ["train.model.num_hidden_layers=2"])
    assert isinstance(spec, SweepSpec)
    again = load_spec(json.loads(spec.model_dump_json()))
    assert isinstance(again, SweepSpec)
    assert expand(again) == expand(spec)


@pytest.mark.parametrize(("kind", "text"), [("run", RUN), ("sweep", SWEEP)])
def test_schema_accepts_what_the_loader_accepts(kind, text):
    from jsonschema import Draft202012Validator

    schema = json_schema(kind)
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    data = read_yaml(text).data
    assert list(validator.iter_errors(data)) == []
    train = data["train"] if kind == "run" else data["run"]["train"]
    train["model"] = {"preset": "tiny", "num_hidden_layers": 2}
    assert list(validator.iter_errors(data)) == []
    short = {"compile": True, "optimizer": "muon", "precision": {"fp8": "tensorwise"}}
    train.update(short, activation_checkpointing="block")
    assert list(validator.iter_errors(data)) == []
    train["compile"] = "blocks"
    assert len(list(validator.iter_errors(data))) == 1
    train["optimizer"] = {"learning_rate": 1}
    assert list(validator.iter_errors(data)) != []


def test_written_yaml_reads_back_unchanged():
    data = {"a": "1e-4", "b": 1e-4, "c": "yes", "d": None, "e": "", "f": 1e22, "g": "~", "h": [0.1]}
    assert read_yaml(dump_yaml(data)).data == data


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        (
            {"data": {"corpus": {"kind": "stdlib", "paths": ["/texts"]}}},
            "paths goes with kind: text, jsonl, parquet, chat.   Fields here: kind",
        ),
        ({"optimizer": {"name": "adamw", "momentum": 0.9}}, "momentum goes with name: muon."),
    ],
)
def test_field_of_another_kind_is_named_with_the_kinds_that_have_it(changes, hint):
    train = {"model": "tiny", "steps": 5, "data": {"corpus": {"kind": "stdlib"}}, **changes}
    with pytest.raises(SpecError) as caught:
        load_spec({"kind": "run", "name": "one", "train": train})
    assert hint in str(caught.value)
    assert "Did you mean" not in str(caught.value)
