"""The plan of a run in stages: the figures of each, and the ways in which it fits."""

import io
import re

import pytest
import yaml
from rich.console import Console

from lehr.analysis.plan import plan_run, plan_spec
from lehr.analysis.plan_json import plan_json
from lehr.faces.cli.plan_text import plan_text, stages_table
from lehr.specs import RunSpec, load_spec
from lehr.specs.course import trunk_of
from lehr_trainer.planning.counts import flops_per_token

from .test_plan import MIX, grid, ways


def staged(**overrides) -> RunSpec:
    """The reference run in three stages of 100, 300 and 100 steps."""
    tokens = {name: steps * 65_536 for name, steps in (("short", 100), ("long", 300), ("mix", 100))}
    changes = {
        "short": {},
        "long": {
            "batch": {"sequence_length": 4096, "micro_batch": 8},
            "model": {"max_sequence_length": 4096},
        },
        "mix": {
            "data": {"corpus": yaml.safe_load(MIX.partition("=")[2])},
            "optimizer": {"lr": 1e-3},
            "schedule": {"name": "wsd", "decay_ratio": 1, "min_lr_ratio": 0},
        },
    }
    values = grid().run.model_dump(mode="json", exclude_unset=True)
    del values["train"]["steps"]
    stages = [{"name": name, "tokens": n, **changes[name]} for name, n in tokens.items()]
    spec = load_spec({**values, "train": {**values["train"], "stages": stages}}, overrides)
    assert isinstance(spec, RunSpec)
    return spec


def test_plan_of_stages_has_the_figures_of_each():
    plan = plan_run(staged(**{"train.optimizer.lr": 2e-3}))
    short, long = (flops_per_token(grid().run.train.model, length) for length in (2048, 4096))
    assert plan.flops == pytest.approx((100 * short + 400 * long) * 65_536)
    first, second, last = plan.stages
    assert [one.steps for one in plan.stages] == [(1, 100), (101, 400), (401, 500)]
    assert [(one.sequences, one.micro_batch) for one in plan.stages] == [(32, 8), (16, 8), (16, 8)]
    assert second.share == pytest.approx(300 * long / (100 * short + 400 * long))
    # Warmed up in 40 of the 400 steps of the first schedule.
    assert first.lr[:2] == (pytest.approx(2e-3 / 40), 2e-3)
    assert (second.lr[2], last.lr[2]) == (pytest.approx(2e-4), 0.0)
    assert last.lr[0] == pytest.approx(1e-3 * 0.99)
    assert last.corpus_tokens == {"web": 4_915_200, "own": 1_638_400}
    assert plan.memory.stage == "long"
    assert plan_json(plan)["stages"][1]["dollars"] == pytest.approx(second.share * plan.dollars)
    table = io.StringIO()
    passes = {"train.data.corpus": 1.5, "train.stages.2.data.corpus.parts.web.corpus": 4.2}
    Console(file=table, width=150).print(stages_table(plan, passes))
    assert "101 to 400  19.7 M  16 x 4,096" in table.getvalue()
    assert re.search(r" 9.9e-4 to 0 +web 4.2", table.getvalue())
    assert "500 steps in 3 stages = 32.8 M" in plan_text(plan_spec(staged()), None)


def test_stages_that_trials_share_are_planned_once():
    spec = staged()
    rates = {"train.stages.mix.optimizer.lr": {"values": [1e-4, 1e-3, 1e-2]}}
    run = spec.model_dump(mode="json", exclude_unset=True)
    sweep = {"kind": "sweep", "name": "s", "parameters": rates, "run": run}
    whole, plan = plan_run(spec), plan_spec(load_spec(sweep))
    trunk = plan_run(trunk_of(load_spec(sweep)))
    rest = whole.gpu_hours - trunk.gpu_hours
    assert plan.gpu_hours == pytest.approx(trunk.gpu_hours + 3 * rest)
    assert plan.seconds == pytest.approx(whole.seconds)
    assert "3 trials that share their first 400 steps" in plan_text(plan, None)
    alone = plan_spec(load_spec({**sweep, "share_stages": False}))
    assert alone.gpu_hours == pytest.approx(3 * whole.gpu_hours)


def test_ways_to_fit_name_the_stages_that_they_change():
    spec = staged(**{"resources.gpu_type": "L4"})
    _, offered = ways(spec)
    assert offered
    for way in offered:
        changed = load_spec(spec.model_dump(mode="json", exclude_unset=True), way.changes)
        assert isinstance(changed, RunSpec)
        plan = plan_run(changed)
        assert plan.memory.peak == way.memory_bytes
        assert plan.fits
