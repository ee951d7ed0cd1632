"""Judgement of what nobody should trust: each command gives an answer or one clear error.

Sweeps without a finite loss, of one trial or two rates, to be maximized, without a learning rate, with
losses beyond all bounds; runs without any record; specs that cannot be planned. Files of curves are
in test_diagnose.py and in curve_files/test_read.py.
"""

from __future__ import annotations

import json
import math

import pytest

from lehr.control.lifecycle import RunState
from lehr.specs import load_spec
from lehr_testing import cli, rollouts, seeding
from lehr_testing.api import RUN_SPEC, TOKEN, served
from lehr_testing.seeded_rollouts import Seeded

LR = "train.optimizer.lr"
MAXIMIZE = {"name": "tokens_per_s", "goal": "maximize"}
RATES = [1e-3, 2e-3, 4e-3]
SWEEPS = {
    # name: (parameters, the trials' losses, metric)
    "no-losses": ({LR: RATES}, [None, None, None], None),
    "all-diverged": ({LR: RATES}, [math.nan, math.inf, -math.inf], None),
    "one-trial": ({LR: [1e-3]}, [2.0], None),
    "two-rates": ({LR: [1e-3, 2e-3]}, [2.0, 3.0], None),
    "one-finite": ({LR: RATES}, [math.nan, 2.0, math.nan], None),
    "all-equal": ({LR: RATES}, [2.0, 2.0, 2.0], None),
    "same-rate": ({LR: [1e-3, math.nextafter(1e-3, 1), 2e-3]}, [3.0, 2.0, 3.0], None),
    "far-apart": ({LR: [1e-30, 1e-3, 0.9]}, [3.0, 2.0, 3.0], None),
    "no-rate": ({"train.optimizer.weight_decay": [0.0, 0.1]}, [2.0, 3.0], None),
    "texts": ({"train.optimizer.name": ["adamw", "muon"]}, [2.0, math.nan], None),
    "maximize": ({LR: RATES}, [2.0, 3.0, 2.5], MAXIMIZE),
    "other-metric": (
        {LR: RATES},
        [2.0, 3.0, 2.5],
        {"name": "params/nobody/norm", "goal": "minimize"},
    ),
    "huge": ({LR: RATES, "train.seed": [0, 1]}, [2.0, 2.1, 1e200, 1e300, -1e308, 1e308], None),
    "seeds-alone": ({"train.seed": [0, 1, 2]}, [2.0, math.nan, 2.1], None),
    "tiny": ({LR: RATES, "train.seed": [0, 1]}, [0.0, 1e-320, 1e-100, 2e-100, 1.0, 1.0], None),
}
TARGET = json.dumps({**RUN_SPEC, "name": "target"})


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with served(tmp_path_factory.mktemp("bad") / "home") as (api, address):
        for name, (parameters, losses, metric) in SWEEPS.items():
            spec = load_spec(
                {
                    "kind": "sweep",
                    "name": name,
                    "metric": metric or {"name": "val/loss", "goal": "minimize"},
                    "parameters": {path: {"values": them} for path, them in parameters.items()},
                    "run": {"train": seeding.train(steps=100)},
                }
            )
            _, runs = seeding.create_sweep(api.store, spec)
            for run, loss in zip(runs, losses, strict=True):
                _end(api.store, run, loss)
        for name, loss in {"silent": None, "nan": math.nan, "huge-run": 1e300}.items():
            _end(api.store, api.store.runs.create(seeding.run_spec(name, steps=100)), loss)
        api.store.runs.create(seeding.run_spec("waits", steps=100))
        Seeded(api.store, "empty-rollout")
        yield address


def _end(store, run, loss):
    attempt = seeding.start(store, run)
    if loss is not None:
        attempt.train(range(1, 3), logs=False)
        attempt.evaluate(100, loss)
    failed = loss is None or not math.isfinite(loss)
    state = RunState.FAILED if failed else RunState.COMPLETED
    cause = "nan_loss" if loss is not None and failed else "error" if failed else None
    attempt.end(state, 100, cause=cause)


def _no_number(text):
    raise AssertionError(f"{text} is no JSON")


@pytest.fixture
def lehr(server, call):
    return lambda *args: call("--server", server, *args)


@pytest.fixture
def call(tmp_path):
    """Run a command, and check that it gives an answer or one error."""
    (tmp_path / "target.json").write_text(TARGET)

    def run(*args: str) -> cli.CommandResult:
        done = cli.call(*args, cwd=tmp_path, LEHR_TOKEN=TOKEN, HOME=str(tmp_path))
        # 0: an answer. 2: what was given cannot be answered. 3: it cannot work.
        assert done.returncode in {0, 2, 3}, (args, done.stderr)
        if done.returncode == 0:
            assert done.stdout.strip(), args
            if "--json" in args:
                json.loads(done.stdout, parse_constant=_no_number)
        else:
            text = done.stdout if "--json" in args and done.stdout else done.stderr
            assert text.strip(), args
            assert len(text) < 4_000, args
        return done

    return run


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("all-diverged", ["All trials diverged. Learning rate to try next: 5.0e-4."]),
        (
            "one-trial",
            ["there is no interval", "Learning rates to try next: 5.0e-4, 2.0e-3 (2 trials, "],
        ),
        ("maximize", ["looks better than", "tokens_per_s, maximize"]),
    ],
)
def test_bad_sweep_is_judged_as_far_as_its_trials_allow(lehr, name, shown):
    text = " ".join(lehr("show", name).stdout.split())
    trials = json.loads(lehr("show", name, "--json").stdout)["sweep"]["trials"]
    for one in shown:
        assert one in text
    assert "with 95 %" not in text
    ranked = sorted((trial for trial in trials if trial["rank"]), key=lambda trial: trial["rank"])
    assert len(ranked) == {"all-diverged": 0, "one-trial": 1, "maximize": 3}[name]
    values = [trial["compared_value"] for trial in ranked]
    assert values == sorted(values, reverse=name == "maximize")


BATCH = "train.batch.sequences"


@pytest.mark.parametrize(
    "changes",
    [
        ("train.steps=0",),
        ("train.steps=-5",),
        (f"train.steps={10**30}",),
        ("train.steps=nan",),
        (f"{BATCH}=0",),
        (f"{BATCH}={10**15}",),
        ("train.batch.sequence_length=1",),
        ("train.optimizer.lr=.inf",),
        ("train.optimizer.lr=.nan",),
        ("resources.gpus=-1",),
        ("resources.gpus=1000000",),
        ("resources.gpu_type=abacus",),
        ("train.model.hidden_size=0",),
        ("train.model={kind: llama, hidden_size: 1000000, num_hidden_layers: 100000}",),
        ("train.batch.micro_batch=0",),
        ("train.batch.micro_batch=1000000000",),
    ],
)
@pytest.mark.parametrize("kind", ["run", "sweep", "rollout"])
def test_plan_of_a_bad_spec_is_an_answer_or_one_error(call, tmp_path, kind, changes):
    spec = {
        "run": RUN_SPEC,
        "sweep": {
            "kind": "sweep",
            "name": "s",
            "metric": {"name": "val/loss", "goal": "minimize"},
            "parameters": {"train.seed": {"values": [0, 1]}},
            "run": {"train": RUN_SPEC["train"]},
        },
        "rollout": rollouts.plain(name="up"),
    }[kind]
    (tmp_path / "bad.json").write_text(json.dumps(spec))
    changed = [text if kind == "run" else f"run.{text}" for text in changes]
    call("plan", "bad.json", *changed)
    call("plan", "bad.json", *changed, "--json")


@pytest.mark.parametrize("price", ["2.5", "-1", "nan", "inf", "1e308", "cheap"])
def test_price_of_a_plan_is_a_number_of_dollars_or_an_error(call, price):
    done = call("plan", "target.json", "resources.gpus=1", "--price", price, "--json")
    assert done.returncode == (0 if price == "2.5" else 2)


@pytest.mark.parametrize(
    "text", ["", "[]", "7", "{", "kind: run", "\x00", "a: *b", "kind: nothing"]
)
def test_plan_of_what_is_no_spec_is_one_error(call, tmp_path, text):
    (tmp_path / "bad.yaml").write_text(text)
    assert call("plan", "bad.yaml").returncode == 2
