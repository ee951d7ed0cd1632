"""A spec that is written for a script by its source: argparse, click, absl, nanoGPT's globals."""

from __future__ import annotations

import pytest

from lehr.code.script_spec import read_script, spec_text
from lehr.errors import UserError
from lehr.specs import SweepSpec, load_spec

ARGPARSE = """
import argparse, helper
parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("-b", "--batch-size", type=int, default=64)
parser.add_argument("--lr", "--learning-rate", type=float, default=1.25e-3)
parser.add_argument("--amp", action="store_true")
parser.add_argument("--num_steps", type=int, default=500)
parser.add_argument("--out", default=helper.OUT)
print(f"step {step}: loss {loss}, val loss {val}")
"""
NANOGPT = """
out_dir = 'out'
learning_rate = 6e-4 # max learning rate
compile = True
max_iters = 600000
gradient_accumulation_steps = 5 * 8
exec(open('configurator.py').read()) # overrides from command line or config file
"""


def written(folder, kind, source):
    (folder / "train.py").write_text(source)
    return spec_text(kind, "train.py", ".", read_script(folder, "train.py"))


def test_sweep_has_values_around_the_learning_rate_of_argparse(tmp_path):
    (tmp_path / "helper.py").write_text("OUT = 'out'\nprint('epoch', epoch, 'loss', loss)")
    text = written(tmp_path, "sweep", ARGPARSE)
    sweep = load_spec(text)
    assert isinstance(sweep, SweepSpec)
    values = sweep.parameters["trainer.args.lr"].values
    assert values == [0.000125, 0.000375, 0.00125, 0.00375, 0.0125]
    assert (sweep.metric.name, sweep.metric.goal) == ("val/loss", "minimize")
    assert sweep.run.trainer.model_dump(exclude_unset=True) == {
        "script": "train.py",
        "args": {"num_steps": 500},
        "flags": ["amp"],
        "steps_arg": "num_steps",
        "prints": ["step {step}: loss {loss}, val loss {val/loss}"],
    }
    assert "by default: batch-size=64, lr=0.00125, amp=False, out=None" in text


@pytest.mark.parametrize(
    ("source", "args"),
    [
        (NANOGPT, {"max_iters": 600_000, "learning_rate": 6e-4}),
        ('@click.option("--max-lr", default=0.1)\ndef main(max_lr): pass', {"max-lr": 0.1}),
        ('flags.DEFINE_float("learning_rate", 0.2, "its rate")', {"learning_rate": 0.2}),
        ("learning_rate = 0.1", {}),
        ('parser.add_argument("--lr", default="auto")', {}),
    ],
)
def test_run_has_the_learning_rate_and_the_steps(tmp_path, source, args):
    run = load_spec(written(tmp_path, "run", source))
    assert run.trainer.args == args
    if args:
        assert load_spec(written(tmp_path, "sweep", source)).kind == "sweep"
    else:
        with pytest.raises(UserError, match=r"train.py: no argument .* is a learning rate"):
            written(tmp_path, "sweep", source)


def test_script_that_imports_a_logger_is_not_read_by_its_prints(tmp_path):
    (tmp_path / "train.py").write_text("import wandb\nprint(f'step {i} loss {loss}')")
    assert read_script(tmp_path, "train.py").prints == []
    log = ["Step 1 Loss 2.5", "Step 2 Loss 2.4"]
    assert read_script(tmp_path, "train.py", log).prints == ["Step {step} Loss {loss}"]


@pytest.mark.parametrize(
    ("name", "message"), [("gone.py", "gone.py cannot be read"), ("bad.py", "bad.py is no Python")]
)
def test_script_that_cannot_be_read_is_one_error(tmp_path, name, message):
    (tmp_path / "bad.py").write_text("def (")
    with pytest.raises(UserError, match=message):
        read_script(tmp_path, name)
