"""``lehr diagnose`` of files, which needs no server; of runs: test_goldens.py."""

import json

import numpy as np
import pytest

from lehr.schemas.streams import AlertView
from lehr_testing import cli, seeding
from lehr_testing.api import TOKEN, served
from lehr_testing.tfevents import scalar, write
from lehr_trainer import extras


@pytest.fixture
def lehr(tmp_path):
    def call(*args):
        return cli.call(*args, cwd=tmp_path, HOME=str(tmp_path), LEHR_SERVER="http://127.0.0.1:9")

    return call


def rising(count=600):
    """A loss that leaves its lowest value at two thirds."""
    steps = np.arange(1, count + 1)
    loss = 3 + 8 * (1 + steps / 20) ** -0.6 + np.random.default_rng(0).normal(0, 0.03, count)
    loss[400:] += np.minimum(np.arange(count - 400) / 50, 2)
    return steps, loss


@pytest.fixture
def files(tmp_path):
    steps, loss = rising()
    rows = [f"{s},{v}" for s, v in zip(steps, loss, strict=True)]
    (tmp_path / "curve.csv").write_text("\n".join(["step,my_loss", *rows]))
    write(
        tmp_path / "tb" / "events.out.tfevents.1.host",
        [scalar(int(s), loss=float(v)) for s, v in zip(steps, loss, strict=True)],
    )


@pytest.mark.parametrize("source", [("curve.csv", "--metric", "loss=my_loss"), ("tb",)])
def test_file_of_another_tool_is_diagnosed_without_a_server(lehr, files, source):
    result = lehr("diagnose", *source, "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)["diagnosis"]
    (alert,) = [AlertView.model_validate(one) for one in found["alerts"]]
    assert (alert.code, alert.sure) == ("diverging", "likely")
    assert 400 <= alert.step <= 450
    assert found["total_steps"] == found["last_step"] == 600
    assert found["warmup_steps"] == 12
    assert found["unjudged"]["overfitting"] == ["val/loss"]
    assert any("taken for the warmup" in note for note in found["notes"])


def test_text_names_what_was_seen_its_cause_and_what_to_try(lehr, files):
    text = lehr("diagnose", "curve.csv", "--metric", "loss=my_loss").stdout
    assert "! diverging, since step" in text
    for part in (
        "the loss rose from",
        "likely: nearly all such alerts on labelled curves were right",
        "the learning rate is too high",
        "A half to a tenth",
        "arXiv:2309.14322",
    ):
        assert part in " ".join(text.split())
    assert "overfitting: needs val/loss" in text


def test_warmup_comes_from_the_learning_rate_unless_it_is_given(lehr, tmp_path):
    rows = "\n".join(f"{s},3,{min(s, 40)}" for s in range(1, 201))
    (tmp_path / "lr.csv").write_text(f"step,loss,lr\n{rows}\n")
    for given, steps in {(): 40, ("--warmup", "7"): 7}.items():
        found = json.loads(lehr("diagnose", "lr.csv", "--json", *given).stdout)["diagnosis"]
        assert found["warmup_steps"] == steps
    found = json.loads(lehr("diagnose", "lr.csv", "--steps", "900", "--json").stdout)["diagnosis"]
    assert found["total_steps"] == 900


@pytest.mark.parametrize("first", ["nan", "inf", ""])
def test_rates_that_are_no_numbers_tell_nothing_of_the_warmup(lehr, tmp_path, first):
    rows = "\n".join(f"{s},3,{min(s, 40) if s > 1 else first}" for s in range(1, 201))
    (tmp_path / "lr.csv").write_text(f"step,loss,lr\n{rows}\n")
    result = lehr("diagnose", "lr.csv", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["diagnosis"]["warmup_steps"] == 40


def test_few_points_are_no_clean_bill(lehr, tmp_path):
    (tmp_path / "few.csv").write_text("step,loss\n1,3\n2,2\n")
    text = " ".join(lehr("diagnose", "few.csv").stdout.split())
    assert "diverging, spikes: needs 20 points of train/loss after the warmup (it has 2)" in text


def test_many_passes_over_a_small_corpus_are_said(lehr, tmp_path):
    rows = "\n".join(f"{s},3,{s / 5}" for s in range(1, 191))
    (tmp_path / "small.csv").write_text(f"step,loss,data/epoch\n{rows}\n")
    result = lehr("diagnose", "small.csv")
    assert (
        "! 38 passes over the corpus; up to 4 are nearly as good" in result.stdout + result.stderr
    )


def test_name_of_a_run_and_of_a_folder_is_the_folder_unless_it_says_run(tmp_path):
    write(tmp_path / "both" / "events.out.tfevents.1.host", [scalar(1, loss=1.0)])
    with served(tmp_path / "home") as (api, address):
        api.store.runs.create(seeding.run_spec("both"))

        def call(name):
            args = ("--server", address, "diagnose", name)
            return cli.call(*args, cwd=tmp_path, LEHR_TOKEN=TOKEN).stdout.lower()

        assert "both: run," in call("run:both")
        assert "both: tensorboard" in call("both")
        (tmp_path / "rst").mkdir()
        empty = cli.call("--server", address, "diagnose", "rst", cwd=tmp_path, LEHR_TOKEN=TOKEN)
        assert "no file with curves" in empty.stderr
        assert "A run of this name: lehr diagnose run:rst" in empty.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("gone.csv",), "gone.csv: there is no such file."),
        (("curve.csv",), "no known metric in it. It has: my_loss"),
        (("curve.csv", "--metric", "los=my_loss"), "Did you mean loss?"),
        (("k3", "--steps", "3"), "--metric, --steps and --warmup are for files"),
    ],
)
def test_wrong_input_is_one_error_and_exit_code_2(lehr, files, args, message):
    result = lehr("diagnose", *args)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_missing_numpy_is_one_clear_error(lehr, files, monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    result = lehr("diagnose", "curve.csv")
    assert result.returncode == 1
    assert "this needs numpy, which is not installed." in result.stderr


def test_unknown_run_needs_a_server(lehr):
    assert lehr("diagnose", "k3").returncode == 4
