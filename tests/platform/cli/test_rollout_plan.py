"""What a rollout costs, before it is launched."""

from __future__ import annotations

from dataclasses import replace

from lehr.analysis.plan import plan_run
from lehr.cli.rollout_plan import rollout_text
from lehr.specs import RolloutSpec, load_spec, stages
from lehr_testing.paths import ROOT


def test_each_stage_shows_its_dollars():
    spec = load_spec(ROOT / "sweeps" / "rollout_llama_1b.yaml")
    assert isinstance(spec, RolloutSpec)
    planned = [(stage, plan_run(stage.train, price=3.0)) for stage in stages(spec)]
    shown = rollout_text(spec, planned)
    for stage, plan in planned:
        if plan.gpus:
            assert f"${plan.gpu_hours * 3.0:,.2f}" in shown, stage.name


def test_rollout_plan_says_how_its_times_were_obtained():
    spec = load_spec(ROOT / "sweeps" / "rollout_llama_1b.yaml")
    assert isinstance(spec, RolloutSpec)
    planned = [(stage, plan_run(stage.train, price=3.0)) for stage in stages(spec)]
    shown = rollout_text(spec, planned)
    (basis,) = {plan.basis for _, plan in planned if plan.gpus}
    assert shown.count(f"time: {basis}") == 1
    measured = [(stage, replace(plan, basis="from one run")) for stage, plan in planned[:2]]
    several = rollout_text(spec, [*measured, *planned[2:]])
    assert "time of stage 2: from one run" in several
    assert f"time of stages 3, 4: {basis}" in several
