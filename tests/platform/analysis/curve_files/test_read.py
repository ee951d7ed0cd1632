"""Files of any tool: what they are, which names mean what, thinning, and errors."""

import json
import math
import random
import tracemalloc
from itertools import pairwise

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lehr.analysis.curve_files import collector, read_curves
from lehr.analysis.curve_files.collector import Collector
from lehr.analysis.curve_files.names import USUAL, metric_of, overrides
from lehr.errors import UserError
from lehr_testing.specs import train


def csv(tmp_path, text, name="curve.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def lines(steps, value=lambda step: 1.0):
    return "step,loss\n" + "".join(f"{step},{value(step)}\n" for step in steps)


# --- names -------------------------------------------------------------------------------------


def test_no_usual_name_means_two_metrics():
    names = [name for usual in USUAL.values() for name in usual]
    assert len(names) == len(set(names))
    assert all(name == name.lower() for name in names)


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("loss", "train/loss"),
        ("Train/Loss", "train/loss"),
        ("eval_loss", "val/loss"),
        ("Training loss", "train/loss"),
        ("run-7 - train/loss", "train/loss"),
        ("run-7 - train/loss__MIN", None),
        ("params/block_3/grad_norm", "params/block_3/grad_norm"),
        ("accuracy", None),
    ],
)
def test_usual_names_are_known(name, metric):
    assert (metric_of(name) or (None,))[0] == metric


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loss", "expected METRIC=NAME"),
        ("loss=", "expected METRIC=NAME"),
        ("los=x", "there is no metric 'los'"),
    ],
)
def test_wrong_metric_option_is_one_clear_error(text, message):
    with pytest.raises(UserError, match=message):
        overrides([text])


def test_example_of_an_unknown_name_can_be_pasted_into_a_shell(tmp_path):
    path = csv(tmp_path, "step,my own loss\n1,2\n")
    with pytest.raises(UserError) as found:
        read_curves(path)
    assert "--metric 'loss=my own loss'" in str(found.value.hint)


def test_metric_given_twice_is_an_error():
    with pytest.raises(UserError, match="given twice"):
        overrides(["loss=a", "train/loss=b"])


def test_given_name_goes_before_the_usual_one(tmp_path):
    path = csv(tmp_path, "step,loss,mine\n1,5,7\n2,5,8\n")
    assert read_curves(path).curves["train/loss"].values == [5, 5]
    assert read_curves(path, {"mine": "train/loss"}).curves["train/loss"].values == [7, 8]


def test_better_usual_name_wins_in_any_order(tmp_path):
    for header in ("step,loss,train/loss", "step,train/loss,loss"):
        first = header.split(",").index("train/loss")
        path = csv(tmp_path, f"{header}\n1,{'2,3' if first == 1 else '3,2'}\n")
        assert read_curves(path).curves["train/loss"].values == [2]


# --- text --------------------------------------------------------------------------------------


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_cells_may_be_empty_or_not_finite(tmp_path, delimiter):
    text = "step,loss,val_loss\n1,2.5,\n\n2,nan,3\n3,-inf,\n".replace(",", delimiter)
    found = read_curves(csv(tmp_path, text))
    loss = found.curves["train/loss"]
    assert loss.steps == [1, 2, 3]
    assert math.isnan(loss.values[1])
    assert loss.values[2] == -math.inf
    assert found.curves["val/loss"].steps == [2]
    assert "2 empty cells are skipped." in found.remarks


def test_rows_without_a_step_are_counted(tmp_path):
    found = read_curves(csv(tmp_path, "loss\n3\n2\n"))
    assert found.curves["train/loss"].steps == [1, 2]
    assert "rows are counted from 1" in found.remarks[0]


def test_json_lines_of_any_tool_are_read(tmp_path):
    rows = [{"global_step": s, "train_loss": 3.0, "note": "text", "lr": None} for s in (10, 20)]
    path = csv(tmp_path, "\n".join(map(json.dumps, rows)) + '\n{"global_st', "log.jsonl")
    found = read_curves(path)
    assert found.form == "jsonl"
    assert found.curves["train/loss"].steps == [10, 20]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("\n\n", "the first line is empty"),
        ("step,loss\n", "there are no rows"),
        ("1,2.0\n2,3.0\n", "line 1 holds numbers"),
        ("step,loss\n1,2\n2,abc\n", "line 3, loss: 'abc' is not a number"),
        ("step,loss\n1,2,3\n", "line 2 has 3 cells, but the header names 2"),
        ("step,loss\n1.5,2\n", "line 2, step: 1.5 is no step"),
        ("step,loss\n-1,2\n", "is no step"),
        ("step,loss\nnan,2\n", "is no step"),
        ("step,loss\n1e300,2\n", "is no step"),
        ("step,my_los\n1,2\n", "no known metric in it. It has: my_los"),
        ('{"loss": 1}\n[1]\n', "line 2 is not a JSON object"),
        ('{"loss": 1}\n{\n', "line 2 is not JSON"),
        ('{"loss": true}\n', "line 1, loss: 'True' is not a number"),
        ("[1, 2]\n", "it is one JSON array"),
    ],
)
def test_bad_text_is_one_clear_error(tmp_path, text, message):
    with pytest.raises(UserError, match=message.replace("[", r"\[")):
        read_curves(csv(tmp_path, text))


def test_binary_files_folders_and_missing_files_are_errors(tmp_path):
    (tmp_path / "some.bin").write_bytes(bytes(range(256)))
    (tmp_path / "latin.csv").write_bytes(b"step,loss\n1,2\n2,\xe9\n")
    for name, message in {
        "some.bin": "it is a binary file",
        "latin.csv": "not text in UTF-8",
        "gone.csv": "there is no such file",
        ".": "the folder has no file with curves",
    }.items():
        with pytest.raises(UserError, match=message):
            read_curves(tmp_path / name)


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_curves_or_one_error(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("any")
    for name in ("a.csv", "events.out.tfevents.1", "b.wandb"):
        path = folder / name
        path.write_bytes((b":W&B\xe1\xbe\x00" if name == "b.wandb" else b"") + data)
        try:
            found = read_curves(path).curves
        except UserError as error:
            found = error.message.startswith(str(path))
        assert found


def test_name_that_the_file_lacks_gets_the_nearest(tmp_path):
    for name in ("a.csv", "a.jsonl"):
        text = "step,my_loss\n1,2\n" if name == "a.csv" else '{"step": 1, "my_loss": 2}\n'
        with pytest.raises(UserError, match="it has no 'my_los'") as error:
            read_curves(csv(tmp_path, text, name), {"my_los": "train/loss"})
        assert "Did you mean 'my_loss'" in error.value.hint


# --- order, gaps, length -----------------------------------------------------------------------


def test_steps_that_go_back_once_are_a_resumed_run(tmp_path):
    path = csv(tmp_path, lines([*range(1, 31), *range(21, 41)]))
    found = read_curves(path)
    curve = found.curves["train/loss"]
    assert curve.steps == list(range(1, 41))
    assert curve.superseded[0].steps == list(range(21, 31))
    assert "Steps go back 1 times, first at line 32" in found.remarks[0]


def test_equal_steps_are_named_and_the_last_row_of_each_counts(tmp_path):
    steps = [*range(1, 31), 30, 30, *range(31, 41)]
    rows = "\n".join(f"{step},{number}" for number, step in enumerate(steps))
    found = read_curves(csv(tmp_path, f"step,loss\n{rows}\n"))
    curve = found.curves["train/loss"]
    assert curve.steps == list(range(1, 41))
    assert curve.values[29] == 31.0
    assert found.remarks == [
        "2 rows have the step of the one before, first at line 32: of each step the last one counts."
    ]


def test_rows_of_one_step_with_different_metrics_are_no_repetition(tmp_path):
    rows = "\n".join(f"{step},3,\n{step},,4" for step in range(1, 31))
    found = read_curves(csv(tmp_path, f"step,loss,val_loss\n{rows}\n"))
    assert len(found.curves["train/loss"]) == len(found.curves["val/loss"]) == 30
    assert not any("the step of the one before" in remark for remark in found.remarks)


def test_shuffled_rows_are_an_error(tmp_path):
    steps = random.Random(0).sample(range(1000), 1000)
    with pytest.raises(UserError, match="steps are out of order"):
        read_curves(csv(tmp_path, lines(steps)))


def test_gap_is_named(tmp_path):
    found = read_curves(csv(tmp_path, lines([*range(1, 50), *range(300, 320)])))
    assert found.remarks == ["train/loss has no points between steps 49 and 300."]


def test_long_curves_are_thinned_evenly_in_bounded_memory(monkeypatch):
    monkeypatch.setattr(collector, "MOST_POINTS", 1000)
    found = Collector({})
    tracemalloc.start()
    for step in range(1, 40_001):
        found.row(step, {"loss": math.nan if step == 33_333 else float(step)}, "")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    curve = found.curves("x")["train/loss"]
    assert 500 <= len(curve) <= 1000
    assert peak < 200_000
    finite = [(s, v) for s, v in zip(curve.steps, curve.values, strict=True) if v == v]
    assert all(step == value for step, value in finite)
    assert len(finite) == len(curve) - 1
    assert 33_333 in curve.steps
    distances = {b - a for (a, _), (b, _) in pairwise(finite)}
    assert len(distances) <= 2
    assert (
        "thinned to at most 1,000 points (every 64th): train/loss"
        in found.remarks({"train/loss": curve})[0]
    )


def test_curve_that_is_never_finite_is_bounded_too(monkeypatch):
    monkeypatch.setattr(collector, "MOST_POINTS", 100)
    found = Collector({})
    for step in range(10_000):
        found.row(step, {"loss": math.nan}, "")
    assert len(found.curves("x")["train/loss"]) <= 100


# --- of Lehr -----------------------------------------------------------------------------------


def events(*records):
    return "".join(json.dumps({"time": 1.0, **record}) + "\n" for record in records)


def metrics(steps, value):
    return [
        {"kind": "metrics", "step": s, "tokens": s, "values": {"train/loss": value}} for s in steps
    ]


def test_run_directory_is_read_with_its_config_and_attempts(tmp_path):
    config = train(tmp_path, steps=50, schedule={"name": "cosine", "warmup_ratio": 0.2})
    config["batch"] = {
        "sequences": 4,
        "sequence_length": 32,
        "stages": [{"after": 0.5, "sequence_length": 64}],
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    for number, text in {
        1: events({"kind": "started", "total_steps": 50}, *metrics(range(1, 21), 5.0)),
        2: events({"kind": "resumed", "step": 10}, *metrics(range(11, 31), "NaN")),
        10: events({"kind": "resumed", "step": 25}, *metrics(range(26, 41), 3.0)),
    }.items():
        (tmp_path / f"attempt-{number}").mkdir()
        (tmp_path / f"attempt-{number}" / "events.jsonl").write_text(text)
    found = read_curves(tmp_path)
    assert (found.form, found.total_steps, found.warmup_steps) == ("lehr", 50, 10)
    assert found.changes == (25,)
    curve = found.curves["train/loss"]
    assert curve.steps == list(range(1, 41))
    assert curve.values[9:11] == [5.0, pytest.approx(math.nan, nan_ok=True)]
    assert curve.values[-1] == 3.0
    assert curve.superseded[0].steps == list(range(11, 21)) + list(range(26, 31))
    assert found.remarks == []


# --- worse -------------------------------------------------------------------------------------

HUGE = "9" * 400
"""A whole number that no float holds."""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f'{{"loss": {HUGE}}}\n', "line 1, loss: '9999"),
        ('{"step": 1, "loss": 2}\n' + '{"a":' * 90_000 + "\n", "line 2 is not JSON"),
        ('{"a":' * 90_000 + "\n", "line 1 is not JSON"),
        ('{"step": 1, "loss": ' + "1" * (9 << 20), "line 1 is longer than 8,388,608 bytes"),
        ("loss,step\n3,1\n2\n", "line 3 has no step"),
        ("loss,step\n3,1\n2,\n", "line 3 has no step"),
        ("step," + "x" * 2_000_000 + "\n1,2\n", "the first line is longer than 1,000,000"),
    ],
)
def test_worse_text_is_one_clear_error_too(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        read_curves(csv(tmp_path, text))


def test_records_whose_fields_are_of_another_kind_are_skipped(tmp_path):
    path = tmp_path / "events.jsonl"
    good = metrics([5], 2.0)
    bad = [{**good[0], "step": step} for step in (-1, 10**30, True, "7", None, 2.5)]
    bad += [{**good[0], "values": values} for values in (None, [1], {"train/loss": [1]})]
    other = [
        {"kind": "started", "total_steps": total} for total in ("many", -5, 10**30, [1], math.inf)
    ]
    other += [{"kind": "resumed", "step": step} for step in (-1, 10**30, "x")]
    path.write_text(
        events(*other, *good, *bad) + f'{{"time": 1, "kind": "metrics", "step": 6, '
        f'"values": {{"train/loss": {HUGE}}}}}\n'
    )
    found = read_curves(path)
    assert found.curves["train/loss"].steps == [5]
    assert found.total_steps is None
    assert found.remarks == ["10 records without a step or readable values are skipped."]
