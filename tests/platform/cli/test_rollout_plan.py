"""What a rollout costs, before it is launched."""

from __future__ import annotations

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
