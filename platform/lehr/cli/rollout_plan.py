"""The plan of a rollout as text, stage by stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lehr import formats
from lehr.cli.output import console, escaped, print_json

if TYPE_CHECKING:
    from lehr.analysis.plan import RunPlan
    from lehr.cli.plan import Check
    from lehr.specs import PlannedStage, RolloutSpec, RunSpec


def show_rollout_plan(
    spec: RolloutSpec,
    *,
    price: float | None = None,
    as_json: bool = False,
    check: Check | None = None,
) -> None:
    """Print the plan, then fail if a stage cannot work.

    ``check``: called before anything is printed.

    Raises:
        PlanRefused: a stage does not fit in the requested GPU.
    """
    from lehr.analysis.plan import plan_run
    from lehr.analysis.plan_json import rollout_json
    from lehr.cli.built_model import built_model
    from lehr.cli.connect import connect
    from lehr.cli.plan import refusal
    from lehr.cli.plan_data import print_data
    from lehr.client.plan_server import PlanServer
    from lehr.specs import stages

    server = PlanServer(connect)

    def plan_here(run: RunSpec) -> RunPlan:
        here = server.on_this_cluster(run)
        return plan_run(here, price=price, before=server.measured, built=built_model(run))

    planned = [(stage, plan_here(stage.train)) for stage in stages(spec)]
    refused = refusal(server, [(stage.train, plan) for stage, plan in planned])
    if check is not None and refused is None:
        check(spec)
    if as_json:
        print_json(rollout_json(spec, planned))
    else:
        console().print(rollout_text(spec, planned))
        print_data(stage.train for stage, _ in planned)
    if refused is not None:
        raise refused


def rollout_text(spec: RolloutSpec, planned: list[tuple[PlannedStage, RunPlan]]) -> str:
    """Return the plan as markup: a paragraph per stage, with its needs and its gates."""
    from lehr.specs.stages import left_out

    count = f"{len(planned)} stage{'s' if len(planned) > 1 else ''}"
    lines = [f"[bold]{escaped(spec.name)}[/]  a rollout in {count}; a failed gate stops it"]
    for stage, plan in planned:
        lines += ["", *_stage_lines(stage, plan)]
    bases = list(dict.fromkeys(plan.basis for _, plan in planned if plan.gpus))
    for basis in bases:
        which = [str(stage.number) for stage, plan in planned if plan.gpus and plan.basis == basis]
        of = (
            f" of stage{'s' if len(which) > 1 else ''} {', '.join(which)}" if len(bases) > 1 else ""
        )
        lines += ["", f"[dim]time{of}: {escaped(basis)}[/]"]
    for name, why in left_out(spec).items():
        lines += ["", f"[dim]{name} is left out: {escaped(why)}[/]"]
    return "\n".join(lines)


def _stage_lines(stage: PlannedStage, plan: RunPlan) -> list[str]:
    from lehr.analysis.gates import TITLES, expected
    from lehr.analysis.plan_json import stage_runs

    kind = plan.gpu_type or "GPU"
    place = f"{plan.gpus} x {escaped(kind)}{plan.on_nodes}" if plan.gpus else "no GPU"
    memory = f", {formats.size(plan.memory.peak)} a GPU (plan)" if plan.gpus else ""
    long = plan.seconds is not None and plan.seconds >= 1
    took = f", about {formats.duration(plan.seconds)}" if long else ""
    hours = plan.gpu_hours or 0.0
    cost = f", {hours:.1f} GPU-hours" if hours >= 0.05 else ""
    if plan.dollars is not None and plan.dollars >= 0.01:
        cost += f", ${plan.dollars:,.2f}"
    size = f"{plan.model}, {formats.millions(plan.parameters.total)} parameters"
    tokens = f"{formats.count(plan.tokens_per_step)} tokens a step"
    lines = [
        f"{stage.number}  [bold]{escaped(stage.title)}[/]  [dim]{stage.name}[/]",
        f"   {size}; {tokens} x {formats.count(plan.steps)} steps",
        f"   {place}{memory}{took}{cost}",
    ]
    extra = [run for run in stage_runs(stage) if run["role"] != "train"]
    if extra:
        steps = " + ".join(f"{run['steps']:,}" for run in extra)
        lines.append(f"   and {steps} steps to verify an exact resume")
    if stage.last:
        lines.append(f"   judged at step {stage.judge_after:,}, while the run continues")
    width = max(len(TITLES[name]) for name in stage.gates)
    for name, gate in stage.gates.items():
        text = escaped(expected(name, stage).text) if gate.enabled else "off"
        lines.append(f"   [dim]{TITLES[name]:<{width}}[/]  {text}")
    return lines
